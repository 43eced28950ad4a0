"""Record the frames of a run, and decode them to exchanges of queries and replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.party.checks import with_tangents
from vertizo.protocol import wire
from vertizo.protocol.codecs.feedback import Received
from vertizo.protocol.messages import Query, Reply
from vertizo.run.loop.simulator import Way

Frame = tuple[Way, bytes]
"""One frame on the wire, lost or not, with its way."""


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

    ``latest`` is the number of queries kept of each client, the last ones; None keeps all.
    """

    def __init__(self, latest: int | None = None) -> None:
        # A query is followed by its announcement-free reply; in synchronous rounds an announcement
        # comes before it. Three frames a query are enough for both, repeats after a loss aside.
        self._most = None if latest is None else 3 * latest
        self.frames: dict[int, deque[Frame]] = {}
        """Client → its frames."""

    def __call__(self, time: float, way: Way, client: int, frame: bytes) -> None:
        """Record one frame."""
        self.frames.setdefault(client, deque(maxlen=self._most)).append((way, frame))


def exchanges(
    transcript: Transcript, config: ExperimentConfig, records: int, client: int | None = None
) -> list[Exchange]:
    """Decode the answered queries of one client, or of all, client by client.

    Of the configuration it takes what is no secret: the codecs, and whether the method sends
    tangents. ``records`` is the number D of training records.
    """
    return [
        each
        for own, frames in sorted(transcript.frames.items())
        if client in (None, own)
        for each in _exchanges(own, frames, config, records)
    ]


def _exchanges(
    client: int, frames: Iterable[Frame], config: ExperimentConfig, records: int
) -> Iterator[Exchange]:
    codecs = config.codecs
    received: Received | None = None
    query: Query | None = None
    for way, frame in frames:
        message = wire.decode(frame, codecs.up if way == "up" else codecs.down)
        if isinstance(message, Query):
            if query is not None and message.number == query.number:
                continue  # sent again after a loss: the same bytes
            if codecs.feedback in ("up", "both"):  # a difference to earlier embeddings
                received = received or Received(records, message.embeddings.shape[2])
                whole = message.embeddings + received.known(message.ids)
                received.learn(message.ids, whole)
                message = replace(message, embeddings=whole)
            if config.method.sends_tangents and len(message.embeddings) == 1:
                if query is None:
                    continue  # what it left out is not in the transcript
                message = with_tangents(message, query)
            query, answered = message, False
        elif isinstance(message, Reply) and query is not None:
            if message.number != query.number or answered:
                continue
            answered = True
            yield Exchange(client, query.number, query.ids, query.embeddings, message.values)
