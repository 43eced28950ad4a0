"""The feature holder's party: it asks, is told, and updates its own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core import arrays, kernels
from vertizo.core.arrays.levels import LevelTable
from vertizo.core.errors import ConflictError, UnknownPartyError
from vertizo.core.state import Stateful
from vertizo.methods.base import ClientPair, Features
from vertizo.models.base import Selected
from vertizo.party.batches import Augmentation, Batches
from vertizo.party.checks import CPU, Partition, Watch, ids_in_range, misshapen, out_of_step
from vertizo.privacy.noise.embedding import EmbeddingNoise
from vertizo.protocol import wire
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.feedback import Received
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Batch, Purpose, Query, Reply, Upload

REPLY_BOUND = 1e12
"""Largest absolute value in a reply that a client applies; divided by λ it is still a float32."""


@dataclass
class OpenQuery:
    """The query that waits for its answer: its records, their features, and its frame."""

    batch: Batch
    """Its number and its records."""
    features: Features | None = None
    """Features of those records; None until they are needed after a restart."""
    frame: wire.Frame | None = None
    """As sent; None where it was reopened by its records alone, to be made anew if it is asked."""


@dataclass(eq=False, kw_only=True)
class ClientParty(Stateful):
    """A feature holder's party.

    Its phase is that of ``_open``, the query that waits for an answer::

        _open                    ask            tell             reopen, load      withdraw
        None                     makes a query  refused          what was open     stays None
        a query with its frame   same bytes     None, next one   refused           None
        a query without a frame  makes a query  None, next one   what was open     None

    Its state lacks model and optimiser, which drivers keep.
    """

    STATE = ("answered", "_waiting", "received")

    index: int
    """Which client it is, from 0."""
    pair: ClientPair
    """The method's client half (`vertizo.methods.base.Method.client`)."""
    features: Partition
    """Its own columns, by purpose; training records under ``train``."""
    embed: Callable[[Tensor], Tensor]
    """Embeddings at the current parameters, no graph."""
    batches: Batches
    """Its own order of records."""
    up: Codec
    down: Codec
    """Codecs of queries (``up``) and of replies."""
    reply_shape: Callable[[int], tuple[int, ...]]
    """Batch size → shape of a reply's values."""
    noise: EmbeddingNoise | None = None
    """Noise on embeddings before they are sent; None for none."""
    received: Received | None = None
    """The embeddings that the server has of each record, for error feedback; None without it."""
    encode: wire.Encode = wire.encode
    known: bool = False
    """Whether the server knows ``batches`` as well (in synchronous rounds they are its own), so
    that a number stands for a batch's IDs."""
    augmentation: Augmentation | None = None
    """Changes a batch's images before they are embedded and trained on; None for no change."""
    teaching: Callable[[Tensor], Tensor] | None = None
    """Features → the numbers that private labels are made with; None where they need none."""
    levels: LevelTable | None = None
    """Training features where the model is, as bytes; None to read them in ``features``."""
    device: torch.device = CPU
    """Where training features are, and where replies are worked on."""
    watch: Watch = field(default_factory=Watch)
    """Checks the bounds of replies."""

    def __post_init__(self) -> None:
        self._moves = arrays.is_card(self.device)
        self.answered = 0
        """Queries whose answers were applied; also the number of the next query."""
        self._order: wire.Order | None = self._named if self.known else None
        self._open: OpenQuery | None = None
        train = self.features.get("train")
        self._selected_from: Tensor | None = None
        if train is not None and self.augmentation is None:
            self._selected_from = self.pair.table_of(train)
        self._table: NDArray[Any] | None = None
        self._buffer: NDArray[Any] = np.empty(0)

    def ask(self, announcement: wire.Frame | None = None) -> wire.Frame:
        """Make the next query; while one is unanswered, return the same bytes again.

        In synchronous rounds ``announcement`` is the server's `Batch`, else the client's own order
        decides which records it is about.
        """
        opened = self._open
        if opened is None:
            batch = self._next() if announcement is None else self._announced(announcement)
            opened = self._open = OpenQuery(batch)
        if opened.frame is None:
            number, ids = self.answered, opened.batch.ids
            opened.features = self._rows(ids, number)
            embeddings = self.pair.ask(number, opened.features)
            if self.noise is not None:
                embeddings = self.noise.release(number, embeddings)
            query = Query(self.index, number, ids, embeddings, opened.batch.batch)
            if self.received is None:
                opened.frame = self.encode(query, self.up)
            else:
                opened.frame = self._difference(query, self.received)
        return opened.frame

    def _next(self) -> Batch:
        """The next batch of this client's own order."""
        known = None if self._order is None else self.answered
        return Batch(self.answered, self.batches.ids(self.answered), known)

    def _named(self, client: int | None, batch: int) -> Tensor:
        """Record IDs of the batch of that number."""
        return self.batches.ids(batch)

    def _difference(self, query: Query, received: Received) -> wire.Frame:
        """Frame a query's difference to the embeddings that the server has (error feedback)."""
        known = received.known(query.ids)
        frame = wire.encode(replace(query, embeddings=query.embeddings.cpu() - known), self.up)
        sent = wire.decode(frame, self.up, Query, order=self._order)
        received.learn(query.ids, sent.embeddings + known)
        return frame

    def _rows(self, ids: Tensor, number: int) -> Tensor | Selected:
        """Features of a query's batch, where they are or in a buffer that the next overwrites."""
        if self._selected_from is not None:
            return Selected(self._selected_from, ids)
        train, levels = self.features["train"], self.levels
        if levels is not None or not train.is_cpu:
            batch = arrays.rows(train, ids) if levels is None else levels.rows(ids)
            return batch if self.augmentation is None else self.augmentation(number, batch)
        if self._table is None:
            self._table = np.ascontiguousarray(train.numpy())
            shape = (self.batches.size, *self._table.shape[1:])
            self._buffer = torch.empty(shape, dtype=train.dtype).numpy()
        wanted = ids.numpy()
        rows = self._buffer[: wanted.size]
        kernels.gather(rows, self._table, wanted, len(self._table))
        batch = torch.from_numpy(rows)
        if self._moves:  # while the card works on what came before
            batch = arrays.here(batch, self.device)
        return batch if self.augmentation is None else self.augmentation(number, batch)

    def _announced(self, frame: wire.Frame) -> Batch:
        message = wire.decode(frame, self.down, Batch, order=self._order)
        self._check_next(message)
        ids_in_range(message.ids, self.batches.records, self.batches.size)
        return message

    def _check_next(self, batch: Batch) -> None:
        if batch.number != self.answered:
            words = f"batch {batch.number}; {self.answered} is the next one"
            raise out_of_step(words, server_is_behind=batch.number < self.answered)

    def tell(self, frame: wire.Frame) -> None:
        """Apply the answer to the open query.

        WireError if it is no message, RefusedError if it is no answer to that query or cannot be
        applied.
        """
        reply = wire.decode(frame, self.down, Reply)
        if reply.client != self.index:
            raise UnknownPartyError(f"a reply for client {reply.client} reached {self.index}")
        opened = self._open
        if opened is None or reply.number != self.answered:
            raise ConflictError(f"a reply to query {reply.number}; {self.answered} is the next one")
        values, shape = reply.values, self.reply_shape(opened.batch.ids.shape[0])
        if values.shape != shape:
            raise misshapen("the reply", values, shape)
        if values.is_cpu or not self.pair.checks:
            self.watch.check("the reply", values, REPLY_BOUND)
        if opened.features is None:
            opened.features = self._rows(opened.batch.ids, reply.number)
        if self._moves:
            values = arrays.here(values, self.device)
        self.pair.tell(reply.number, opened.features, values)
        self._open = None
        self.answered += 1

    def restored(self) -> None:
        """Forget what was prepared for tensors that a loaded state has replaced."""
        self.pair.forget()

    @property
    def open_ids(self) -> Tensor | None:
        """The records of the open query; None where there is none."""
        return None if self._open is None else self._open.batch.ids

    @property
    def is_reopened_by_ids(self) -> bool:
        """Whether a query's records are enough to reopen it and apply its answer."""
        return self.received is None

    def reopen_next(self) -> None:
        """Open the next query of this client's own order, to be answered or made anew."""
        if self._open is None:
            self._open = OpenQuery(self._next())

    def opened(self) -> bytes:
        """The open query's number and records, for `reopen`; far smaller than the query."""
        assert self._open is not None, "a query is open"
        return wire.encode(self._open.batch, self.up)

    def reopen(self, frame: bytes) -> None:
        """Reopen a query that this party made before it was stopped.

        Given the query, or what `opened` gave for it: then it can be answered, and is made anew if
        it is asked. WireError if it is no message, ConflictError if not the next query.
        """
        query = wire.decode(frame, self.up, order=self._order)
        if not isinstance(query, Query | Batch) or query.number != self.answered:
            raise ConflictError(f"not query {self.answered}, which is the next one")
        if isinstance(query, Batch):
            ids_in_range(query.ids, self.batches.records, self.batches.size)
            self._open = OpenQuery(query)
            return
        if self.received is not None:
            known = self.received.known(query.ids)
            self.received.learn(query.ids, query.embeddings + known)
        self._open = OpenQuery(Batch(query.number, query.ids, query.batch), frame=frame)

    def is_overtaken(self, announcement: bytes) -> bool:
        """Whether the open query is for another round than the one announced for its number.

        WireError if it is no announcement, ConflictError if no query is open and it is not for the
        next one.
        """
        message = wire.decode(announcement, self.down, Batch, order=self._order)
        if self._open is None:
            self._check_next(message)
        if self._open is None or message.number != self.answered:
            return False
        return not torch.equal(message.ids, self._open.batch.ids)

    def withdraw(self) -> None:
        """Forget the open query, for a synchronous round that went on without it.

        Its number is used anew. Not for clients whose messages leave a trace that must be made
        once: noise on embeddings, and error feedback.
        """
        if self.noise is not None or self.received is not None:
            raise ConflictError("a query with noise or error feedback cannot be taken back")
        self._open = None

    def upload(self, purpose: Purpose, start: int, stop: int) -> bytes:
        """Embeddings of rows ``start`` to ``stop`` of one partition, at the current parameters.

        With error feedback they are sent as they are: there is nothing to differ from, and what
        the server was trained on has next to no error.
        """
        if purpose == "teacher":
            assert self.teaching is not None, "agreed on before the job began"
            embeddings = self.teaching(self.features["train"][start:stop])
        else:
            embeddings = self.embed(self.features[purpose][start:stop]).cpu()
        if self.noise is not None:  # the table's count as releases; the others carry no noise
            if purpose == "train":
                embeddings = self.noise.release_upload(start, embeddings)
            else:
                embeddings = self.noise.clipped(embeddings)
        ids = torch.arange(start, start + embeddings.shape[0])
        codec = self.up if self.received is None else NoCompression()
        return wire.encode(Upload(self.index, purpose, ids, embeddings.unsqueeze(0)), codec)

    @property
    def _waiting(self) -> Mapping[str, Any] | None:
        """Records and frame of the open query."""
        opened = self._open
        if opened is None:
            return None
        frame = None if opened.frame is None else bytes(opened.frame)
        return {"ids": opened.batch.ids, "batch": opened.batch.batch, "frame": frame}

    @_waiting.setter
    def _waiting(self, kept: Mapping[str, Any] | None) -> None:
        self._open = None
        if kept is not None:
            batch = Batch(self.answered, kept["ids"], kept["batch"])
            self._open = OpenQuery(batch, frame=kept["frame"])
