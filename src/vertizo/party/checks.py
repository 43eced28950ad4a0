"""Checks of what a party is sent: records, shapes, bounds, and whose turn it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vertizo.core import arrays, kernels
from vertizo.core.arrays import graphs
from vertizo.core.errors import (
    ConflictError,
    NonFiniteError,
    RepeatedRecordError,
    ShapeError,
    UnknownRecordError,
)
from vertizo.privacy.ledger.base import digest
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.feedback import Received
from vertizo.protocol.messages import Purpose, Query
from vertizo.protocol.wire import Frame

Partition = Mapping[Purpose, Tensor]
"""Features or labels by purpose: ``train`` holds the training records."""
LARGEST = float(np.finfo(np.float32).max)
CPU = torch.device("cpu")
OVERHEAD = 4096
"""Bytes that a body may have beside its arrays and IDs."""


def ids_in_range(ids: Tensor, records: int, most: int) -> None:
    """Raise RefusedError unless there are 1 to ``most`` record IDs, all below ``records``."""
    count = ids.numel()
    if not 0 < count <= most:
        raise ShapeError(f"a batch of {count} records; 1 to {most} are accepted")
    highest = kernels.highest(np.ascontiguousarray(ids.numpy()))
    if highest >= records:
        raise UnknownRecordError(f"record ID {highest}; this federation has 0 to {records - 1}")


def is_bounded(array: Tensor, bound: float) -> bool:
    """Whether all values are finite and at most ``bound`` in absolute value."""
    return kernels.bounded(np.ascontiguousarray(array.numpy(), np.float32), min(bound, LARGEST))


class Watch:
    """Checks bounds of arrays: at once on the processor, and on a card when `look` is called.

    What was beyond a bound on a card has reached models by then, and ends the run. Arrays come from
    a card within one process alone: a message that was decoded is in the processor's memory.
    """

    def __init__(self) -> None:
        self._largest: dict[tuple[str, float], Tensor] = {}
        """Of a card's arrays, by name and bound: the largest absolute value so far, or NaN."""

    def check(self, name: str, array: Tensor, bound: float) -> Tensor:
        """Raise NonFiniteError unless all values are finite and within the bound; the array."""
        if array.is_cpu:
            numbers = np.ascontiguousarray(array.numpy(), np.float32)
            if not kernels.bounded(numbers, min(bound, LARGEST)):
                raise _unbounded(name, bound)
            return array
        largest = torch.linalg.vector_norm(array, math.inf)
        key = name, min(bound, LARGEST)
        if key not in self._largest:
            graphs.eager_only("its running maxima are made in this call")
            self._largest[key] = torch.zeros_like(largest)
        torch.maximum(self._largest[key], largest, out=self._largest[key])
        return array

    def look(self) -> None:
        """Raise NonFiniteError for what was out of bounds on a card."""
        for (name, bound), largest in self._largest.items():
            if not float(largest) <= bound:
                raise _unbounded(name, bound)


def misshapen(name: str, array: Tensor, expected: tuple[int, ...]) -> ShapeError:
    """The error for an array that is not of the shape agreed on."""
    return ShapeError(f"{name} has shape {tuple(array.shape)}; agreed was {expected}")


def _unbounded(name: str, bound: float) -> NonFiniteError:
    return NonFiniteError(f"values of {name} are NaN or outside [-{bound:g}, {bound:g}]")


def mended(array: Tensor, bound: float) -> Tensor:
    """A copy that is within the bound: NaN and ±∞ become 0, what else is beyond is cut off.

    >>> mended(torch.tensor([1.0, float("nan"), float("inf"), -9.0]), 5.0).tolist()
    [1.0, 0.0, 0.0, -5.0]
    """
    return torch.where(array.isfinite(), array, 0.0).clamp_(-bound, bound)


def within(name: str, array: Tensor, bound: float) -> Tensor:
    """The array, or a `mended` copy if it is on a card or beyond the bound."""
    return array if array.is_cpu and is_bounded(array, bound) else mended(array, bound)


def out_of_step(words: str, *, server_is_behind: bool) -> ConflictError:
    """The ConflictError for a number that is not the next one, with what can be done about it."""
    who = "the label holder" if server_is_behind else "this member"
    return ConflictError(
        f"{words}: {who} goes on from an older state than the other has seen; put the newest copy "
        "of its folder back, or begin a new job in new folders"
    )


@dataclass(frozen=True)
class Vetted:
    """A validated query."""

    query: Query
    """The query as it is worked on: mended, and with the tangents that it left out."""
    frame: Frame
    full: Frame | None = None
    """The frame of the earlier query whose tangents this one left out; None if it has its own."""


@dataclass
class Peer:
    """What the server remembers of one client, by its last query::

        query  reply  digest  the last query
        None   None   None    there was none
        frame  None           waits for its synchronous round; repeated, it gets nothing yet
        frame  frame          was answered; repeated, it gets the reply again
        None   frame  digest  was answered before a restart; a ledger knows its digest

    A query with the next number leads to the second row or the third, in asynchronous rounds.
    """

    next_number: int = 0
    query: Frame | None = None
    """The last query that was answered, or the one that waits in a synchronous round."""
    reply: Frame | None = None
    """The answer to it; None while it waits."""
    digest: bytes | None = None
    """In place of the query, where only a ledger remembers it."""
    full: Frame | None = None
    """The query that brought the tangents which the last one left out."""

    def came_before(self, query: Query, frame: Frame) -> bool:
        """Whether a query repeats the last one, byte for byte.

        If not it must be the next one; ConflictError if it is neither.
        """
        number, following = query.number, self.next_number
        waits = self.query is not None and self.reply is None
        last = following if waits else following - 1
        if number == last and (self.query is not None or self.digest is not None):
            same = frame == self.query
            if self.query is None:
                same = digest(bytes(frame)) == self.digest
            if not same:
                raise ConflictError(
                    f"query {number} of client {query.client} came before, with other content"
                )
            self.query = frame
            return True
        if number != following:
            words = f"query {number} of client {query.client}; {following} is the next one"
            raise out_of_step(words, server_is_behind=number > following)
        return False

    @property
    def brought(self) -> Frame | None:
        """The frame of the last query that brought tangents; None without one."""
        return self.query if self.full is None else self.full


def with_tangents(query: Query, before: Query | None) -> Query:
    """Add tangents of an earlier query, ``before``, to one that left them out for its records.

    ConflictError if there is none. Only of methods that send tangents.
    """
    if before is None:
        raise ConflictError(
            f"query {query.number} of client {query.client} leaves out tangents that it never sent"
        )
    order = before.ids.argsort()
    places = order[torch.searchsorted(before.ids[order], query.ids).clamp(max=len(order) - 1)]
    unknown = query.ids[before.ids[places] != query.ids]
    if len(unknown):
        raise ConflictError(
            f"query {query.number} of client {query.client} leaves out the tangents of record "
            f"{int(unknown[0])}, which it never sent"
        )
    if query.embeddings.shape[2] != before.embeddings.shape[2]:
        return query
    whole = torch.cat([query.embeddings, before.embeddings[1:, places]])
    return replace(query, embeddings=whole)


@dataclass(eq=False)
class QueryChecks:
    """The label holder's checks of the queries of one federation."""

    records: int
    """D."""
    batch_size: int
    """Nominal B, the most records of one query."""
    points: int
    """Embeddings of each record in one query."""
    dims: Sequence[int]
    """d_h of every client, in order."""
    bound: float
    """H_max, the largest absolute value of an embedding."""
    tolerant: bool
    """Whether values beyond it are mended; they are refused otherwise."""
    received: Sequence[Received] = ()
    """For each client, the embeddings received so far, for error feedback; empty without it."""
    device: torch.device = CPU
    """Where embeddings are worked on."""

    def __post_init__(self) -> None:
        self.watch, self._moves = Watch(), arrays.is_card(self.device)
        self._places = np.zeros(self.records, np.int32)
        self.bounded = within if self.tolerant else self.watch.check
        """(name, array, bound) → the array, mended or refused. What comes from a card is still to
        be given to it, as part of the round's work there."""

    def largest_body(self, codec: Codec) -> int:
        """The most bytes in the body of a query that can be acceptable."""
        shape = (self.points, self.batch_size, max(self.dims))
        # The codec's may be more: a scale a record may outgrow floats.
        return max(4 * math.prod(shape), codec.size(shape)) + 8 * self.batch_size + OVERHEAD

    def accept(self, query: Query) -> Query:
        """Validate a query and return it as it is worked on; RefusedError if it is not acceptable.

        It names known records, each once, in the shape agreed on. With error feedback its
        embeddings are restored from their difference to the known ones. Embeddings beyond the bound
        are refused, or mended under noise, where nothing may be refused that an honest client may
        send by accident.
        """
        client, ids = query.client, query.ids
        ids_in_range(ids, self.records, self.batch_size)
        name = f"the embeddings of client {client}"
        shape = (self.points, ids.numel(), self.dims[client])
        if query.embeddings.shape != shape:
            raise misshapen(name, query.embeddings, shape)
        if not kernels.distinct(self._places, ids.numpy()):
            raise RepeatedRecordError(f"client {client} names a record twice in one batch")
        if self.received:
            known = self.received[client].known(ids)
            query = replace(query, embeddings=query.embeddings.cpu() + known)
        embeddings = query.embeddings
        if not self._moves or embeddings.is_cpu:
            embeddings = self.bounded(name, embeddings, self.bound)
        if self._moves:
            embeddings = arrays.here(embeddings, self.device)
        return query if embeddings is query.embeddings else replace(query, embeddings=embeddings)
