"""What the label holder remembers of each client, and when it trains between their queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vertizo.core.errors import ConflictError
from vertizo.party.checks import out_of_step
from vertizo.privacy.ledger import digest
from vertizo.protocol.messages import Query
from vertizo.protocol.wire import Frame


@dataclass
class Peer:
    """What the server remembers of one client."""

    next_number: int = 0
    query: Frame | None = None
    """The last query that was answered, or the one that waits in a synchronous round."""
    reply: Frame | None = None
    """The answer to it; None while it waits."""
    digest: bytes | None = None
    """In place of the query, where only a ledger remembers it."""

    @property
    def waits(self) -> bool:
        """Whether a query of it waits in a synchronous round."""
        return self.query is not None and self.reply is None

    def is_last(self, frame: Frame) -> bool:
        """Whether ``frame`` is the last query, byte for byte."""
        if self.query is None:
            return digest(bytes(frame)) == self.digest
        return frame == self.query

    def state(self) -> list[Any]:
        """What a checkpoint must hold."""
        frames = [None if frame is None else bytes(frame) for frame in (self.query, self.reply)]
        return [self.next_number, *frames, self.digest]

    def came_before(self, query: Query, frame: Frame) -> bool:
        """Whether a query is the last one once more, byte for byte; else it must be the next one.

        Raises:
            ConflictError: it is neither.
        """
        known = self.next_number - (0 if self.waits else 1)
        if query.number == known and (self.query or self.digest) is not None:
            if not self.is_last(frame):
                raise ConflictError(
                    f"query {query.number} of client {query.client} came before, with other content"
                )
            return True
        if query.number != self.next_number:
            words = f"query {query.number} of client {query.client}"
            words = f"{words}; {self.next_number} is the next one"
            raise out_of_step(words, server_is_behind=query.number > self.next_number)
        return False


@dataclass(frozen=True)
class Vetted:
    """A query that nothing speaks against."""

    query: Query
    """As it is to be worked on: mended, and with what error feedback left out."""
    frame: Frame
    """As it came."""


@dataclass(frozen=True)
class Schedule:
    """When the server trains on secret samples: by the public round counter alone.

    Args:
        every: rounds between two steps.
        warm_up: steps before the first round.
        most: steps in all.
    """

    every: int
    warm_up: int
    most: int

    def due(self, round_: int) -> int:
        """Steps to have been made once ``round_`` rounds are over."""
        return min(self.most, self.warm_up + round_ // self.every)
