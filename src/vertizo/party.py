"""The two kinds of party: bytes in, bytes out, and no idea of how they travel.

A party puts together a half of a method, a model, its data, a codec and, at the server, the
privacy plan. It checks everything that comes from outside and changes nothing until all checks have
passed; whatever it refuses it refuses with a `RefusedError` or a `WireError`. It owns no clock, no
socket and no thread: a driver (the simulator, or a network link) calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo import validate, wire
from vertizo.batches import Batches
from vertizo.codecs.base import Codec
from vertizo.errors import (
    ConflictError,
    MalformedError,
    RefusedError,
    RepeatedRecordError,
    ShapeError,
    UnknownPartyError,
    UnknownRecordError,
)
from vertizo.messages import Batch, Message, Purpose, Query, Reply, Upload
from vertizo.methods.base import ClientHalf, ServerHalf, ServerSide, TrainingMeter
from vertizo.metrics import Scores, scores
from vertizo.server.table import Staleness

Partition = Mapping[Purpose, Tensor]
"""Features or labels by purpose: ``table`` holds the training records."""

REPLY_BOUND = 1e12
"""Largest absolute value in a reply that a client applies; divided by λ it is still a float32."""

OVERHEAD = 4096
"""Bytes of a body beside its arrays and IDs."""


class ClientParty:
    """A feature holder.

    Args:
        index: which client it is, from 0.
        half: the method's client half.
        features: its own columns, by purpose; training records under ``table``.
        embed: embeddings at the current parameters, no graph.
        batches: its own order of records.
        up, down: codecs of queries and of replies.
        reply_shape: batch size → shape of a reply's values.
    """

    def __init__(
        self,
        *,
        index: int,
        half: ClientHalf,
        features: Partition,
        embed: Callable[[Tensor], Tensor],
        batches: Batches,
        up: Codec,
        down: Codec,
        reply_shape: Callable[[int], tuple[int, ...]],
    ) -> None:
        self.index = index
        self.batches = batches
        self.answered = 0
        """Queries whose answers were applied; also the number of the next query."""
        self._half = half
        self._features = features
        self._embed = embed
        self._up = up
        self._down = down
        self._reply_shape = reply_shape
        self._ids: Tensor | None = None
        self._batch: Tensor | None = None
        self._frame: bytes | None = None
        self._buffer: NDArray[Any] | None = None

    def ask(self, announcement: bytes | None = None) -> bytes:
        """The next query; while one is unanswered, the same bytes again.

        In synchronous rounds ``announcement`` is the server's `Batch`, else the client's own order
        decides which records it is about.
        """
        if self._frame is None:
            if announcement is None:
                ids = self.batches.ids(self.answered)
            else:
                ids = self._announced(announcement)
            self._ids = ids
            self._batch = self._rows(ids)
            embeddings = self._half.ask(self.answered, self._batch)
            query = Query(self.index, self.answered, ids, embeddings)
            self._frame = wire.encode(query, self._up)
        return self._frame

    def _rows(self, ids: Tensor) -> Tensor:
        """Features of a batch, in a buffer that the next batch overwrites."""
        features = self._features["table"].numpy()
        if self._buffer is None:
            self._buffer = np.empty((self.batches.size, *features.shape[1:]), features.dtype)
        rows = self._buffer[: ids.numel()]
        features.take(ids.numpy(), 0, out=rows, mode="clip")  # IDs are in range
        return torch.from_numpy(rows)

    def _announced(self, frame: bytes) -> Tensor:
        message = wire.decode(frame, self._down)
        if not isinstance(message, Batch):
            raise MalformedError(f"a {type(message).__name__} where a Batch was expected")
        if message.number != self.answered:
            raise ConflictError(f"batch {message.number}; {self.answered} is the next one")
        _check_ids(message.ids, self.batches.records, self.batches.size)
        return message.ids

    def tell(self, frame: bytes) -> None:
        """Apply the answer to the open query.

        Raises:
            WireError: not a message.
            RefusedError: not the answer to the open query, or not one that could be applied.
        """
        reply = wire.decode(frame, self._down)
        if not isinstance(reply, Reply):
            raise MalformedError(f"a {type(reply).__name__} where a Reply was expected")
        if reply.client != self.index:
            raise UnknownPartyError(f"a reply for client {reply.client} reached {self.index}")
        if self._ids is None or self._frame is None or reply.number != self.answered:
            raise ConflictError(f"a reply to query {reply.number}; {self.answered} is the next one")
        validate.shape("the reply", reply.values, self._reply_shape(self._ids.numel()))
        validate.bounded("the reply", reply.values, REPLY_BOUND)
        if self._batch is None:
            self._batch = self._rows(self._ids)
        self._half.tell(reply.number, self._batch, reply.values)
        self._ids = self._batch = self._frame = None
        self.answered += 1

    def upload(self, purpose: Purpose, start: int, stop: int) -> bytes:
        """Embeddings of rows ``start`` to ``stop`` of one partition, at the current parameters."""
        embeddings = self._embed(self._features[purpose][start:stop])
        ids = torch.arange(start, start + embeddings.shape[0])
        return wire.encode(Upload(self.index, purpose, ids, embeddings.unsqueeze(0)), self._up)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold, beside model and optimiser."""
        return {"answered": self.answered, "ids": self._ids, "frame": self._frame}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, an open query included."""
        self.answered = state["answered"]
        self._ids, self._frame, self._batch = state["ids"], state["frame"], None


@dataclass
class _Peer:
    """What the server remembers of one client."""

    next_number: int = 0
    query: bytes | None = None
    """The last query that was answered, or the one that waits in a synchronous round."""
    reply: bytes | None = None
    """The answer to it; None while it waits."""


class ServerParty:
    """The label holder.

    Args:
        half: the method's server half.
        side: what that half works with; shared, so that the party can check and score.
        labels: by purpose.
        points: embeddings of each record in one query.
        batch_size: nominal B, the most records of one query.
        up, down: codecs of queries and of replies.
        bound: H_max, the largest absolute value accepted in an embedding.
        batches: the server's order of records, for synchronous rounds; None for asynchronous ones.
    """

    def __init__(
        self,
        *,
        half: ServerHalf,
        side: ServerSide,
        labels: Partition,
        points: int,
        batch_size: int,
        up: Codec,
        down: Codec,
        bound: float,
        batches: Batches | None = None,
    ) -> None:
        self.side = side
        self.round = 0
        """Server steps made: queries answered, or synchronous rounds completed."""
        self.staleness = Staleness()
        self.clients = len(side.table.dims)
        self._half = half
        self._labels = labels
        self._points = points
        self._batch_size = batch_size
        self._up = up
        self._down = down
        self._bound = bound
        self._batches = batches
        self._peers = [_Peer() for _ in range(self.clients)]
        self._open: list[Query] = []
        self._uploads: dict[Purpose, Tensor] = {}
        records = side.table.values.shape[0]
        widest = max(side.table.dims)
        self._max_body = points * batch_size * widest * 4 + 8 * batch_size + OVERHEAD
        self._position = np.zeros(records, np.int32)
        self._order = np.arange(batch_size, dtype=np.int32)

    def receive(self, frame: bytes) -> list[tuple[int, bytes]]:
        """Take in one frame of a client and say what to send, and to whom.

        A query that was answered before gets the stored answer, computed and charged once.

        Raises:
            WireError: not a message, or larger than any this federation needs.
            RefusedError: not acceptable. Nothing was changed.
        """
        message = wire.decode(frame, self._up, max_body=self._max_body)
        if not isinstance(message, Query):
            raise MalformedError(f"a {type(message).__name__} where a Query was expected")
        peer = self._peer(message)
        stored = self._stored(message, frame, peer)
        if stored is not None:
            return stored
        self._check(message)
        return self._accept(message, frame)

    def _peer(self, message: Query | Upload) -> _Peer:
        if message.client >= self.clients:
            raise UnknownPartyError(
                f"client {message.client} of a federation with {self.clients} clients"
            )
        return self._peers[message.client]

    def _stored(self, query: Query, frame: bytes, peer: _Peer) -> list[tuple[int, bytes]] | None:
        waiting = peer.query is not None and peer.reply is None
        known = peer.next_number - (0 if waiting else 1)
        if query.number == known and peer.query is not None:
            if frame != peer.query:
                raise ConflictError(
                    f"query {query.number} of client {query.client} came before, with other content"
                )
            return [] if peer.reply is None else [(query.client, peer.reply)]
        if query.number != peer.next_number:
            raise ConflictError(
                f"query {query.number} of client {query.client}; {peer.next_number} is the next one"
            )
        return None

    def _check(self, query: Query) -> None:
        records, dims = self._position.size, self.side.table.dims
        who = f"the embeddings of client {query.client}"
        _check_ids(query.ids, records, self._batch_size)
        batch = query.ids.numel()
        validate.shape(who, query.embeddings, (self._points, batch, dims[query.client]))
        ids, order = query.ids.numpy(), self._order[:batch]
        self._position[ids] = order
        if not np.array_equal(self._position[ids], order):
            raise RepeatedRecordError(f"client {query.client} names a record twice in one batch")
        validate.bounded(who, query.embeddings, self._bound)
        if self._batches is not None and not torch.equal(query.ids, self._batches.ids(self.round)):
            raise UnknownRecordError(
                f"client {query.client} answers for other records than round {self.round} names"
            )

    def _accept(self, query: Query, frame: bytes) -> list[tuple[int, bytes]]:
        side = self.side
        side.plan.admit(query.client, query.ids)
        peer = self._peers[query.client]
        if self._batches is not None:
            peer.query, peer.reply = frame, None
            self._open.append(query)
            if len(self._open) < self.clients:
                return []
        queries = sorted(self._open, key=lambda q: q.client) if self._open else [query]
        self._open = []
        self.round += 1
        with np.errstate(all="ignore"):  # overflow is the plan's to clip, or the client's to refuse
            replies = self._half.answer(queries, self.round)
        self.staleness.add(side.table.stored_in(query.ids), self.round)
        sent = []
        for reply in replies:
            answered = self._peers[reply.client]
            if self._batches is None:
                answered.query = frame
            answered.reply = wire.encode(reply, self._down)
            answered.next_number = reply.number + 1
            sent.append((reply.client, answered.reply))
        return sent

    def announce(self) -> bytes:
        """The records of the next synchronous round, for every client."""
        if self._batches is None:
            raise ConflictError("this federation is asynchronous; clients choose their batches")
        return wire.encode(Batch(self.round, self._batches.ids(self.round)), self._down)

    def receive_upload(self, frame: bytes) -> None:
        """Take in plain embeddings: into the table, or set aside for `score`.

        Raises:
            WireError, RefusedError: as `receive`.
        """
        upload = wire.decode(frame, self._up)
        if not isinstance(upload, Upload):
            raise MalformedError(f"a {type(upload).__name__} where an Upload was expected")
        self._peer(upload)
        dims = self.side.table.dims
        rows = self._labels[upload.purpose].shape[0]
        _check_ids(upload.ids, rows, rows)
        if not torch.all(upload.ids[1:] > upload.ids[:-1]):
            raise RepeatedRecordError(f"client {upload.client} uploads rows twice or out of order")
        who = f"the upload of client {upload.client}"
        count = upload.ids.numel()
        validate.shape(who, upload.embeddings, (1, count, dims[upload.client]))
        validate.bounded(who, upload.embeddings, self._bound)
        if upload.purpose == "table":
            if self.round:
                raise ConflictError(f"a table upload after round {self.round}; it comes first")
            self.side.table.store(upload.client, upload.ids, upload.embeddings[0], self.round)
            return
        if upload.purpose not in self._uploads:
            self._uploads[upload.purpose] = torch.full((rows, sum(dims)), torch.nan)
        start = sum(dims[: upload.client])
        columns = self._uploads[upload.purpose].narrow(1, start, dims[upload.client])
        columns.index_copy_(0, upload.ids, upload.embeddings[0])

    def logits(self, purpose: Purpose) -> Tensor:
        """Logits of the uploaded records; the upload is used up."""
        rows = self._uploads.get(purpose)
        if rows is None or bool(rows.isnan().any()):
            raise RefusedError(f"some client has not uploaded its {purpose} embeddings")
        del self._uploads[purpose]
        return self.side.head.logits(self.side.table.combine(rows))

    def score(self, purpose: Purpose) -> Scores:
        """Quality of predictions for the uploaded records; stays with the server."""
        return scores(self.side.head.task, self.logits(purpose), self._labels[purpose])

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold, beside the server model's parameters."""
        return {
            "round": self.round,
            "peers": [[p.next_number, p.query, p.reply] for p in self._peers],
            "staleness": asdict(self.staleness),
            "table": self.side.table.state(),
            "plan": self.side.plan.state(),
            "update": self.side.update.state(),
            "meter": asdict(self.side.meter),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self.round = state["round"]
        self._peers = [_Peer(number, query, reply) for number, query, reply in state["peers"]]
        self.staleness = Staleness(**state["staleness"])
        self.side.table.load(state["table"])
        self.side.plan.load(state["plan"])
        self.side.update.load(state["update"])
        self.side.meter = TrainingMeter(**state["meter"])
        self._open = []
        for peer in self._peers:
            if peer.query is not None and peer.reply is None:
                waiting: Message = wire.decode(peer.query, self._up)
                assert isinstance(waiting, Query)
                self._open.append(waiting)


def _check_ids(ids: Tensor, records: int, most: int) -> None:
    count = ids.numel()
    if not 0 < count <= most:
        raise ShapeError(f"a batch of {count} records; 1 to {most} are accepted")
    largest = int(ids.numpy().max())
    if largest >= records:
        raise UnknownRecordError(f"record ID {largest}; this federation has 0 to {records - 1}")
