"""The server's embedding table: the last embedding of every client and record, and its age."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core import arrays, kernels, memory
from vertizo.core.arrays import Scalar, card, graphs, storage
from vertizo.core.arrays.tally import Tally
from vertizo.core.errors import ConfigError
from vertizo.core.names import Join
from vertizo.core.state import Stateful
from vertizo.models.base import Points
from vertizo.party.checks import CPU

Array = NDArray[np.float32]
KEPT_WHEN_FREED = memory.FRUGAL
"""Bytes of an array up to which its memory comes back without new pages."""
UNHELD = 2
"""References to an object that one attribute alone holds, with the counting function's own."""


class EmbeddingTable(Stateful):
    """Last embeddings, one row a record: [records, Σ d_h], float32, zeros at the start.

    It is in memory, in a mapped file where it is large (`vertizo.core.arrays.storage`), or on a
    card. A row joined side by side, summed or averaged, with the label holder's ``own`` features,
    [records, columns], behind it, is the server model's input.
    """

    STATE = ("values", "refreshed")

    def __init__(
        self,
        records: int,
        dims: Sequence[int],
        join: Join = "concat",
        own: Tensor | None = None,
        device: torch.device = CPU,
    ) -> None:
        if join != "concat" and len(set(dims)) > 1:
            raise ConfigError(
                f"server.join is {join!r} but the embeddings' sizes are {list(dims)}; "
                "they must be equal, or server.join be 'concat'"
            )
        self.join, self.dims = join, tuple(dims)
        self.device = device
        self._own = None if own is None else own.to(self.device)
        self.has_own = own is not None
        self._start = [sum(dims[:client]) for client in range(len(dims))]
        self._last = np.empty((0, sum(dims)), np.float32)
        self.is_on_card = arrays.is_card(self.device)
        self.values = self._zeros(records, sum(dims), torch.float32)
        self.refreshed = self._zeros(records, len(dims), torch.int32)
        """The round in which each entry was stored, [records, clients]."""
        if not self.is_on_card:
            self._values, self._rounds = self.values.numpy(), self.refreshed.numpy()

    def _zeros(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        if self.is_on_card:
            return torch.zeros(rows, columns, dtype=dtype, device=self.device)
        return storage.zeros((rows, columns), dtype)

    @property
    def width(self) -> int:
        """Size of the joined embeddings."""
        return sum(self.dims) if self.join == "concat" else self.dims[0]

    def here(self, ids: Tensor) -> Tensor:
        """Move record IDs to where the table is."""
        return arrays.here(ids, self.device)

    def stamp(self, round_: int | Tensor) -> Tensor:
        """The number of a round on a card, int32 of no dimension; itself if it is there."""
        if isinstance(round_, Tensor):
            return round_
        stamp: Tensor = graphs.fed(int, round_, device=self.device, dtype=torch.int32)
        return stamp

    def store(self, client: int, ids: Tensor, embeddings: Tensor, stamp: int | Tensor) -> None:
        """Replace the client's entries of those records, [batch] and [batch, d_h].

        ``stamp`` is the round's number, or `stamp` of it.
        """
        if self.is_on_card:
            places = self.here(ids)
            card.put_rows(self.values, places, self.here(embeddings), self._start[client])
            stamps = self.stamp(stamp).expand(len(ids), 1)
            card.put_rows(self.refreshed, places, stamps, client)
            return
        rows, new = ids.numpy(), np.ascontiguousarray(embeddings.numpy())
        kernels.scatter(self._values, rows, new, len(self._values), 4 * self._start[client])
        kernels.stamp(self._rounds, rows, len(self._rounds), client, int(stamp))

    def ages(self, ids: Tensor, stamp: int | Tensor) -> tuple[Scalar, int, Scalar]:
        """Ages of the other clients' entries of those records, in rounds: sum, count and largest.

        The client that asked has stored its entry in this round, so that its age, 0, is left out.
        On a card all ages stand for their sum and for the largest (`Staleness`).
        """
        if self.is_on_card:
            found = self.stamp(stamp) - self.refreshed.index_select(0, self.here(ids))
            return found, len(ids) * (len(self.dims) - 1), found
        rounds, rows = self._rounds, ids.numpy()
        total, least = kernels.ages(rounds, rows, len(rounds))
        count, clients = len(rows), rounds.shape[1]
        now = int(stamp)
        return now * count * clients - total, count * (clients - 1), now - least

    def points(self, ids: Tensor, replacements: Sequence[tuple[int, Tensor]] = ()) -> Points:
        """The server model's inputs for those records, with some clients' parts replaced.

        One point for each embedding of each (client, [points, batch, d_h]) pair, in order: the
        table's rows with that client's part replaced. Then the rows as they are, last.
        """
        if self.is_on_card:
            joined = self.values.index_select(0, self.here(ids))
        else:
            rows = self._rows(ids.numpy())
            joined = torch.from_numpy(rows)
        shifts = []
        for client, replacement in replacements:
            start = self._start[client]
            if self.is_on_card:
                shift = self.here(replacement) - joined.narrow(1, start, self.dims[client])
            else:
                embeddings = np.ascontiguousarray(replacement.numpy())
                moved = np.empty(embeddings.shape, np.float32)
                kernels.apart(moved, embeddings, rows, start)
                shift = torch.from_numpy(moved)
            if self.join == "mean":
                shift /= len(self.dims)
            shifts.append((start if self.join == "concat" else 0, shift))
        if self.join != "concat":
            joined = self.combine(joined)
        if self._own is not None:
            joined = torch.cat([joined, arrays.rows(self._own, ids)], 1)
        return Points(joined, tuple(shifts))

    def _rows(self, ids: NDArray[np.int64]) -> Array:
        """The entries of those records, [batch, Σ d_h].

        Large ones reuse the memory of the last if nobody holds those any more: clearing new pages
        takes as long as copying the rows.
        """
        shape = ids.size, self._values.shape[1]
        if 4 * shape[0] * shape[1] <= KEPT_WHEN_FREED:
            rows = np.empty(shape, np.float32)
        else:
            if self._last.shape[0] < ids.size or sys.getrefcount(self._last) > UNHELD:
                self._last = np.empty(shape, np.float32)
            rows = self._last[: ids.size]
        kernels.gather(rows, self._values, ids, len(self._values))
        return rows

    def combine(self, rows: Tensor) -> Tensor:
        """Rows of all clients' embeddings, [..., Σ d_h], joined to [..., width]."""
        if self.join == "concat":
            return rows
        total = rows.reshape(*rows.shape[:-1], len(self.dims), self.dims[0]).sum(-2)
        return total if self.join == "sum" else total / len(self.dims)

    def part(self, client: int, gradient: Tensor) -> Tensor:
        """The client's share of a gradient on the joined input, [..., width] → [..., d_h]."""
        if self.join == "concat":
            return gradient.narrow(-1, self._start[client], self.dims[client])
        return gradient if self.join == "sum" else gradient / len(self.dims)


@dataclass
class Staleness(Stateful):
    """Ages of the table entries that answers were computed from, other clients' entries only.

    The recent figures begin at the last `mark`, which noted total and count.
    """

    STATE = ("total", "count", "largest", "marked_total", "marked_count", "recent_largest")

    total: int = 0
    count: int = 0
    largest: int = 0
    marked_total: int = 0
    marked_count: int = 0
    recent_largest: int = 0

    def __post_init__(self) -> None:
        self.restored()

    def add_ages(self, total: Scalar, count: int, oldest: Scalar) -> None:
        """Ages of so many entries: their sum, and the largest; on a card all of them, for both."""
        if isinstance(total, Tensor) and isinstance(oldest, Tensor):
            graphs.each_call(partial(self._count, count))
            self._sums.take(total)
            self._largest.take(oldest)
            return
        assert isinstance(total, int) and isinstance(oldest, int), "whole rounds"  # noqa: PT018
        self.count += count
        self.total += total
        self.largest = max(self.largest, oldest)
        self.recent_largest = max(self.recent_largest, oldest)

    def _count(self, count: int) -> None:
        self.count += count

    def state(self) -> dict[str, Any]:
        """The figures, with those on a card; this waits for it."""
        return super(Staleness, self.read()).state()

    def restored(self) -> None:
        """Begin with nothing unread on a card: it is not of the state."""
        self._sums = Tally(torch.add, torch.int64)
        self._largest = Tally(torch.maximum, torch.int32)

    def read(self) -> Staleness:
        """Add what is on a card to the figures, and return them; this waits for it."""
        for ages, oldest in zip(self._sums.read(), self._largest.read(), strict=True):
            self.add_ages(int(ages.sum()), 0, int(oldest.max()))
        return self

    @property
    def mean(self) -> float:
        """Mean age in rounds."""
        return self.total / self.count if self.count else 0.0

    @property
    def recent_mean(self) -> float | None:
        """Mean age since the last `mark`; None where nothing was added."""
        count = self.count - self.marked_count
        return (self.total - self.marked_total) / count if count else None

    def mark(self) -> None:
        """Begin the recent figures here."""
        self.read()
        self.marked_total, self.marked_count, self.recent_largest = self.total, self.count, 0
