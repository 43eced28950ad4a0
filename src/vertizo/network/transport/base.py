"""The transport interface: a member asks with bytes, and a service answers with bytes.

A transport (`vertizo.network.transport.grpc`, `vertizo.ops.flare.job`) authenticates the member and
does not look into the bytes. An ask may be repeated, byte for byte, as often as needed after a cut
connection or a restart of either side: the service answers it anew and does nothing twice. So a
channel's whole duty is to repeat an ask until there is an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Answer = Callable[[bytes], None]
"""Callback that takes the answer to one ask, at most once, from any thread; late ones are ignored.
"""

Rest = Callable[[], None]
"""Work that a service leaves for after its answers are sent; the transport calls it."""


class Service(Protocol):
    """The label holder's process, which answers what members ask."""

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members that may ask."""

    @property
    def largest_ask(self) -> int:
        """Length in bytes of the longest valid ask; a transport need not read longer ones."""

    def ask(self, member: str, frame: bytes, answer: Answer) -> Rest | None:
        """Accept a member's ask, and call ``answer`` now or later, from any thread.

        The transport calls the returned function once the answers so far are sent, so that they
        do not wait for it. If it was not called, the next ask begins with it.

        A member has at most one open ask: a new one replaces the last, which is never answered. An
        invalid ask gets an answer that says what is wrong; nothing is raised for it.
        """

    def gone(self, member: str) -> None:
        """Record that a member's connection ended; its open ask will not be answered."""


class Channel(Protocol):
    """A member's connection to the service."""

    def ask(self, frame: bytes) -> bytes:
        """Send an ask, repeat it until it is answered, and return the answer.

        RunError if the ask is refused for good, or nobody answered for longer than agreed.
        """

    def close(self) -> None:
        """Close the connection."""
