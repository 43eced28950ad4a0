"""Record the frames of a run, and decode them to exchanges of queries and replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.party.checks import with_tangents
from vertizo.protocol import wire
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.feedback import Received
from vertizo.protocol.messages import Query, Reply
from vertizo.run.loop.simulator import Way


@dataclass(frozen=True)
class Frame:
    """One frame on the wire, lost or not, with its time on the virtual clock."""

    time: float
    way: Way
    client: int
    data: bytes


@dataclass(frozen=True)
class Exchange:
    """A decoded query with its reply."""

    client: int
    number: int
    """The query's number in the client's own count."""
    ids: Tensor
    """Record IDs, int64 [batch]."""
    embeddings: Tensor
    """The query's embeddings, float32 [points, batch, d_h]."""
    values: Tensor
    """The reply's values, in the shape of the method."""


class Transcript:
    """A recorder of a run's frames; the observer of `vertizo.run.loop.simulator.Simulator`.

    Args:
        latest: number of queries kept of each client, the last ones with replies; None for all.
    """

    def __init__(self, latest: int | None = None) -> None:
        # A query is followed by its announcement-free reply; in synchronous rounds an announcement
        # comes before it. Three frames a query are enough for both, repeats after a loss aside.
        self._most = None if latest is None else 3 * latest
        self._frames: dict[int, deque[Frame]] = {}
        self.frames_seen = 0

    def __call__(self, time: float, way: Way, client: int, frame: bytes) -> None:
        """Record one frame."""
        kept = self._frames.setdefault(client, deque(maxlen=self._most))
        kept.append(Frame(time, way, client, frame))
        self.frames_seen += 1

    def frames(self, client: int | None = None) -> list[Frame]:
        """Return the recorded frames of one client, or of all, client by client."""
        chosen = sorted(self._frames) if client is None else [client]
        return [frame for index in chosen for frame in self._frames.get(index, ())]


@dataclass(frozen=True)
class Reader:
    """A decoder of frames to exchanges; it needs the codecs only, which are no secret."""

    up: Codec
    down: Codec
    records: int
    """The number of training records, D."""
    differences: bool = False
    """Whether queries hold differences to earlier embeddings (``codecs.feedback``)."""
    holds: bool = False
    """Whether queries may leave out tangents that an earlier one had (`Method.sends_tangents`)."""

    @classmethod
    def of(cls, config: ExperimentConfig, records: int) -> Reader:
        """Make the reader for a configured run."""
        codecs = config.codecs
        differences, holds = codecs.feedback in ("up", "both"), config.method.sends_tangents
        return cls(codecs.up, codecs.down, records, differences, holds)

    def exchanges(self, transcript: Transcript, client: int | None = None) -> list[Exchange]:
        """Return the answered queries of one client, or of all, client by client."""
        clients = sorted({frame.client for frame in transcript.frames(client)})
        return [each for own in clients for each in self._of_client(transcript.frames(own))]

    def _of_client(self, frames: list[Frame]) -> Iterator[Exchange]:
        received: Received | None = None
        query: Query | None = None
        for frame in frames:
            message = wire.decode(frame.data, self.up if frame.way == "up" else self.down)
            if isinstance(message, Query):
                if query is not None and message.number == query.number:
                    continue  # sent again after a loss: the same bytes
                if self.differences:
                    received = received or Received(self.records, message.embeddings.shape[2])
                    whole = message.embeddings + received.known(message.ids)
                    received.learn(message.ids, whole)
                    message = replace(message, embeddings=whole)
                if self.holds and len(message.embeddings) == 1:
                    if query is None:
                        continue  # what it left out is not in the transcript
                    message = with_tangents(message, query)
                query, answered = message, False
            elif isinstance(message, Reply) and query is not None:
                if message.number != query.number or answered:
                    continue
                answered = True
                yield Exchange(
                    frame.client, query.number, query.ids, query.embeddings, message.values
                )
