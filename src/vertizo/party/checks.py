"""What parties check of what they are sent: records, shapes, bounds, and whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vertizo.core import kernels
from vertizo.core.errors import (
    ConflictError,
    NonFiniteError,
    RepeatedRecordError,
    ShapeError,
    UnknownRecordError,
)
from vertizo.privacy.ledger import digest
from vertizo.protocol.messages import Purpose, Query, largest
from vertizo.protocol.wire import Frame

Partition = Mapping[Purpose, Tensor]
"""Features or labels by purpose: ``table`` holds the training records."""
LARGEST = float(np.finfo(np.float32).max)


def ids_in_range(ids: Tensor, records: int, most: int, highest: int | None = None) -> None:
    """Raise RefusedError unless there are 1 to ``most`` record IDs, all below ``records``.

    ``highest`` is the largest of them, where it is known.
    """
    count = ids.numel()
    if not 0 < count <= most:
        raise ShapeError(f"a batch of {count} records; 1 to {most} are accepted")
    highest = largest(ids) if highest is None else highest
    if highest >= records:
        raise UnknownRecordError(f"record ID {highest}; this federation has 0 to {records - 1}")


def has_shape(name: str, array: Tensor, expected: tuple[int, ...]) -> None:
    """Raise ShapeError unless ``array`` has exactly the ``expected`` shape."""
    if array.shape != expected:
        raise ShapeError(f"{name} has shape {tuple(array.shape)}; agreed was {expected}")


def is_bounded(array: Tensor, bound: float) -> bool:
    """Whether all values are finite and at most ``bound`` in absolute value."""
    return kernels.bounded(np.ascontiguousarray(array.numpy(), np.float32), min(bound, LARGEST))


def bounded(name: str, array: Tensor, bound: float) -> None:
    """Raise NonFiniteError unless all values are finite and at most ``bound``."""
    if not is_bounded(array, bound):
        raise NonFiniteError(f"values of {name} are NaN or outside [-{bound:g}, {bound:g}]")


def mended(array: Tensor, bound: float) -> Tensor:
    """``array``, or where it is not within the bound a copy that is.

    NaN and ±∞ become 0, everything else is cut off at ±``bound``.

    >>> mended(torch.tensor([1.0, float("nan"), float("inf"), -9.0]), 5.0).tolist()
    [1.0, 0.0, 0.0, -5.0]
    """
    if is_bounded(array, bound):
        return array
    return torch.where(array.isfinite(), array, 0.0).clamp_(-bound, bound)


def out_of_step(words: str, *, server_is_behind: bool) -> ConflictError:
    """The error of a number that is not the next one, with what can be done about it."""
    who = "the label holder" if server_is_behind else "this member"
    return ConflictError(
        f"{words}: {who} goes on from an older state than the other has seen; put the newest copy "
        "of its folder back, or begin a new job in new folders"
    )


@dataclass(frozen=True)
class Vetted:
    """A query that nothing speaks against."""

    query: Query
    """As it is to be worked on: mended, and with what error feedback left out."""
    frame: Frame
    """As it came."""


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

    def came_before(self, query: Query, frame: Frame) -> bool:
        """Whether a query is the last one once more, byte for byte; else it must be the next one.

        Raises:
            ConflictError: it is neither.
        """
        number, following = query.number, self.next_number
        last = following if self.waits else following - 1
        if number == last and (self.query is not None or self.digest is not None):
            same = frame == self.query
            if self.query is None:
                same = digest(bytes(frame)) == self.digest
            if not same:
                raise ConflictError(
                    f"query {number} of client {query.client} came before, with other content"
                )
            return True
        if number != following:
            words = f"query {number} of client {query.client}; {following} is the next one"
            raise out_of_step(words, server_is_behind=number > following)
        return False

    def state(self) -> list[Any]:
        """What a checkpoint must hold."""
        frames = [None if frame is None else bytes(frame) for frame in (self.query, self.reply)]
        return [self.next_number, *frames, self.digest]


class QueryChecks:
    """What the label holder checks of the queries of one federation.

    Args:
        records: D.
        batch_size: nominal B, the most records of one query.
        points: embeddings of each record in one query.
        dims: d_h of every client, in order.
        bound: H_max, the largest absolute value of an embedding.
        tolerant: whether values beyond it are mended; they are refused otherwise.
    """

    def __init__(
        self,
        records: int,
        batch_size: int,
        points: int,
        dims: Sequence[int],
        bound: float,
        *,
        tolerant: bool,
    ) -> None:
        self._records = records
        self._batch_size = batch_size
        self._points = points
        self._dims = tuple(dims)
        self._bound = bound
        self._tolerant = tolerant
        self._places = np.zeros(records, np.int32)

    def check(self, query: Query) -> None:
        """Raise RefusedError unless it names known records, each once, in the shape agreed on."""
        ids_in_range(query.ids, self._records, self._batch_size, query.largest)
        shape = (self._points, query.ids.numel(), self._dims[query.client])
        has_shape(f"the embeddings of client {query.client}", query.embeddings, shape)
        if not kernels.distinct(self._places, query.ids.numpy()):
            raise RepeatedRecordError(f"client {query.client} names a record twice in one batch")

    def within_bound(self, query: Query) -> Query:
        """A query whose embeddings are within the bound: mended, or refused.

        Under noise nothing that an honest client may send by accident is refused.
        """
        if not self._tolerant:
            bounded(f"the embeddings of client {query.client}", query.embeddings, self._bound)
            return query
        fit = mended(query.embeddings, self._bound)
        return query if fit is query.embeddings else replace(query, embeddings=fit)
