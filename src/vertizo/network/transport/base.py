"""All that a network is to the parties: a member asks with bytes and is answered with bytes.

What carries the bytes (`vertizo.network.transport.grpc`, `vertizo.ops.flare.job`) vouches for who
asks and knows nothing of what is said. Every ask may be made again, byte for byte, as often as need
be, after a cut connection or a restart of either side: a service answers it anew and does nothing
twice. So a channel's whole duty is to repeat an ask until there is an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Answer = Callable[[bytes], None]
"""Takes the answer to one ask, at most once, from any thread; too late is ignored."""

Rest = Callable[[], None]
"""What a service has left to do once answers have left; for whoever carries them to call."""


class Service(Protocol):
    """What members ask: one process, at the label holder."""

    @property
    def members(self) -> tuple[str, ...]:
        """Who may ask."""

    @property
    def largest_ask(self) -> int:
        """Bytes of the longest ask that could make sense; longer ones need not be read."""

    def ask(self, member: str, frame: bytes, answer: Answer) -> Rest | None:
        """Take in an ask of a member, and call ``answer`` now or later, from whatever thread.

        What is returned is called once the answers that were given have left, so that they do not
        wait for it. Where nobody calls it, the next ask begins with it.

        A member has one open ask at most: a new one takes the place of the last, which is never
        answered. What is wrong with an ask is said in the answer; nothing is raised for it.
        """

    def gone(self, member: str) -> None:
        """A member's connection was lost, or closed; its open ask will not be answered."""


class Channel(Protocol):
    """A member's way to the service."""

    def ask(self, frame: bytes) -> bytes:
        """The answer to an ask, which is repeated until there is one.

        RunError where it is refused for good, or nobody answered for longer than agreed.
        """

    def close(self) -> None:
        """Let go of the connection."""
