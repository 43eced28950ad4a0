"""The feature holder: asks, is told, and updates its own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core import kernels, validate
from vertizo.core.errors import ConflictError, MalformedError, UnknownPartyError
from vertizo.methods.base import ClientHalf, RowReader
from vertizo.models.base import Selected
from vertizo.party.batches import Batches
from vertizo.party.checks import Partition, ids_in_range, out_of_step
from vertizo.privacy.embedding_noise import EmbeddingNoise
from vertizo.protocol import wire
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.feedback import Received
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Batch, Purpose, Query, Reply, Upload

REPLY_BOUND = 1e12
"""Largest absolute value in a reply that a client applies; divided by λ it is still a float32."""


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
        noise: what embeddings pass through before they are sent; None for nothing.
        received: what the server has of each record, for error feedback; None for none.
        encode: how messages are given away.
        known: whether the server knows ``batches`` as well (in synchronous rounds they are its
            own), so that a number stands for a batch's IDs.
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
        noise: EmbeddingNoise | None = None,
        received: Received | None = None,
        encode: wire.Encode = wire.encode,
        known: bool = False,
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
        self._noise = noise
        self._received = received
        self._encode = encode
        self._order: wire.Order | None = self._named if known else None
        self._open: Batch | None = None
        self._batch: Any = None
        """Features of the open query: a `Tensor`, or what a `RowReader` reads."""
        self._frame: wire.Frame | None = None
        self._selected_from: Tensor | None = None
        if isinstance(half, RowReader) and "table" in features:
            self._selected_from = half.table_of(features["table"])
        self._table: NDArray[Any] | None = None
        self._buffer: NDArray[Any] = np.empty(0)

    def ask(self, announcement: wire.Frame | None = None) -> wire.Frame:
        """The next query; while one is unanswered, the same bytes again.

        In synchronous rounds ``announcement`` is the server's `Batch`, else the client's own order
        decides which records it is about.
        """
        if self._frame is None:
            if self._open is None:  # else reopened, to be made anew
                if announcement is None:
                    self._open = self._next()
                else:
                    self._open = self._announced(announcement)
            ids = self._open.ids
            self._batch = self._rows(ids)
            embeddings = self._half.ask(self.answered, self._batch)
            if self._noise is not None:
                embeddings = self._noise.release(self.answered, embeddings)
            query = Query(self.index, self.answered, ids, embeddings, self._open.batch)
            self._frame = self._coded(query)
        return self._frame

    def _next(self) -> Batch:
        """The next batch of this client's own order."""
        known = None if self._order is None else self.answered
        return Batch(self.answered, self.batches.ids(self.answered), known)

    def _named(self, client: int | None, batch: int) -> Tensor:
        """Record IDs that the number of a batch stands for."""
        return self.batches.ids(batch)

    def _coded(self, query: Query) -> wire.Frame:
        """The frame of a query; with error feedback, of how it differs from what is known."""
        if self._received is None:
            return self._encode(query, self._up)
        known = self._received.known(query.ids)
        frame = wire.encode(replace(query, embeddings=query.embeddings - known), self._up)
        sent = wire.decode(frame, self._up, order=self._order)
        assert isinstance(sent, Query)
        self._received.learn(query.ids, sent.embeddings + known)
        return frame

    def _rows(self, ids: Tensor) -> Tensor | Selected:
        """Features of a batch, where they are or in a buffer that the next batch overwrites."""
        if self._selected_from is not None:
            return Selected(self._selected_from, ids)
        if self._table is None:
            self._table = np.ascontiguousarray(self._features["table"].numpy())
            shape = (self.batches.size, *self._table.shape[1:])
            self._buffer = torch.empty(shape, dtype=self._features["table"].dtype).numpy()
        wanted = ids.numpy()
        rows = self._buffer[: wanted.size]
        kernels.gather(rows, self._table, wanted, len(self._table))
        return torch.from_numpy(rows)

    def _announced(self, frame: wire.Frame) -> Batch:
        message = wire.decode(frame, self._down, order=self._order)
        if not isinstance(message, Batch):
            raise MalformedError(f"a {type(message).__name__} where a Batch was expected")
        self._check_next(message)
        ids_in_range(message.ids, self.batches.records, self.batches.size)
        return message

    def _check_next(self, batch: Batch) -> None:
        if batch.number != self.answered:
            words = f"batch {batch.number}; {self.answered} is the next one"
            raise out_of_step(words, server_is_behind=batch.number < self.answered)

    def tell(self, frame: wire.Frame) -> None:
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
        if self._open is None or reply.number != self.answered:
            raise ConflictError(f"a reply to query {reply.number}; {self.answered} is the next one")
        validate.shape("the reply", reply.values, self._reply_shape(self._open.ids.numel()))
        validate.bounded("the reply", reply.values, REPLY_BOUND)
        if self._batch is None:
            self._batch = self._rows(self._open.ids)
        self._half.tell(reply.number, self._batch, reply.values)
        self._open = self._batch = self._frame = None
        self.answered += 1

    @property
    def open_ids(self) -> Tensor | None:
        """The records of the open query; None where there is none."""
        return None if self._open is None else self._open.ids

    @property
    def is_reopened_by_ids(self) -> bool:
        """Whether the records of a query are all that its answer is applied by."""
        return self._received is None

    def reopen_next(self) -> None:
        """Take up the next query of this client's own order, to be answered or made anew."""
        if self._open is None:
            self._open = self._next()

    def opened(self) -> bytes:
        """The open query's number and records, for `reopen`; far smaller than the query."""
        assert self._open is not None, "a query is open"
        return wire.encode(self._open, self._up)

    def reopen(self, frame: bytes) -> None:
        """Take up a query that this party made before it was stopped.

        Args:
            frame: the query, or what `opened` gave for it: then it can be answered, and is made
                anew if it is asked.

        Raises:
            WireError: not a message.
            ConflictError: not the next query.
        """
        query = wire.decode(frame, self._up, order=self._order)
        if not isinstance(query, Query | Batch) or query.number != self.answered:
            raise ConflictError(f"not query {self.answered}, which is the next one")
        if isinstance(query, Batch):
            ids_in_range(query.ids, self.batches.records, self.batches.size)
            self._open, self._frame, self._batch = query, None, None
            return
        if self._received is not None:
            known = self._received.known(query.ids)
            self._received.learn(query.ids, query.embeddings + known)
        self._open = Batch(query.number, query.ids, query.batch)
        self._frame, self._batch = frame, None

    def is_overtaken(self, announcement: bytes) -> bool:
        """Whether the open query is for another round than the one announced for its number.

        Raises:
            WireError: not an announcement.
            ConflictError: no query is open, and it is not for the next one.
        """
        message = wire.decode(announcement, self._down, order=self._order)
        if not isinstance(message, Batch):
            raise MalformedError(f"a {type(message).__name__} where a Batch was expected")
        if self._open is None:
            self._check_next(message)
        if self._open is None or message.number != self.answered:
            return False
        return not torch.equal(message.ids, self._open.ids)

    def withdraw(self) -> None:
        """Forget the open query, for a synchronous round that went on without it.

        Its number is used anew. Not for clients whose messages leave a trace that must be made
        once: noise on embeddings, and error feedback.
        """
        if self._noise is not None or self._received is not None:
            raise ConflictError("a query with noise or error feedback cannot be taken back")
        self._open = self._batch = self._frame = None

    def upload(self, purpose: Purpose, start: int, stop: int) -> bytes:
        """Embeddings of rows ``start`` to ``stop`` of one partition, at the current parameters.

        With error feedback they are sent as they are: there is nothing to differ from, and what
        the server was trained on has next to no error.
        """
        embeddings = self._embed(self._features[purpose][start:stop])
        if self._noise is not None:  # the table's count as releases; the others carry no noise
            if purpose == "table":
                embeddings = self._noise.release_upload(start, embeddings)
            else:
                embeddings = self._noise.clipped(embeddings)
        ids = torch.arange(start, start + embeddings.shape[0])
        codec = self._up if self._received is None else NoCompression()
        return wire.encode(Upload(self.index, purpose, ids, embeddings.unsqueeze(0)), codec)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold, beside model and optimiser."""
        known = {} if self._received is None else self._received.state()
        ids, batch = (None, None) if self._open is None else (self._open.ids, self._open.batch)
        frame = None if self._frame is None else bytes(self._frame)
        state = {"answered": self.answered, "ids": ids, "batch": batch}
        return {**state, "frame": frame, "known": known}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, an open query included."""
        self.answered = state["answered"]
        ids = state["ids"]
        self._open = None if ids is None else Batch(self.answered, ids, state["batch"])
        self._frame, self._batch = state["frame"], None
        if self._received is not None:
            self._received.load(state["known"])
