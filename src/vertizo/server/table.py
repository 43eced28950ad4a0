"""The server's embedding table: the last embedding of every client and record, and its age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.errors import ConfigError
from vertizo.models.base import Points

Join = Literal["concat", "sum", "mean"]
Array = NDArray[np.float32]


class EmbeddingTable:
    """Last embeddings, one row a record: [records, Σ d_h], float32, zeros at the start.

    Args:
        records: D.
        dims: d_h of every client, in order.
        join: how a row becomes the server model's input: side by side, summed or averaged.
    """

    def __init__(self, records: int, dims: Sequence[int], join: Join = "concat") -> None:
        if join != "concat" and len(set(dims)) > 1:
            raise ConfigError(
                f"server.join is {join!r} but the embeddings' sizes are {list(dims)}; "
                "they must be equal, or server.join be 'concat'"
            )
        self.join = join
        self.dims = tuple(dims)
        self._start = [sum(dims[:client]) for client in range(len(dims))]
        self.values = torch.zeros(records, sum(dims))
        self.refreshed = torch.zeros(records, len(dims), dtype=torch.int32)
        """The round in which each entry was stored, [records, clients]."""
        self._values, self._rounds = self.values.numpy(), self.refreshed.numpy()
        stops = [start + dim for start, dim in zip(self._start, dims, strict=True)]
        self._entries = [self._values[:, a:b] for a, b in zip(self._start, stops, strict=True)]

    @property
    def width(self) -> int:
        """Size of the server model's input."""
        return sum(self.dims) if self.join == "concat" else self.dims[0]

    def store(self, client: int, ids: Tensor, embeddings: Tensor, round_: int) -> None:
        """Replace the client's entries of those records, [batch] and [batch, d_h]."""
        rows = ids.numpy()
        self._entries[client][rows] = embeddings.numpy()
        self._rounds[rows, client] = round_

    def stored_in(self, ids: Tensor) -> Tensor:
        """The round in which each entry of those records was stored, int32 [batch, clients]."""
        return torch.from_numpy(self._rounds.take(ids.numpy(), 0))

    def points(self, ids: Tensor, replacements: Sequence[tuple[int, Tensor]] = ()) -> Points:
        """The server model's inputs for those records, with some clients' parts replaced.

        One point for each embedding of each (client, [points, batch, d_h]) pair, in order: the
        table's rows with that client's part replaced. Then the rows as they are, last.
        """
        rows = self._values.take(ids.numpy(), 0)
        shifts = []
        for client, embeddings in replacements:
            stored = rows[:, self._start[client] : self._start[client] + self.dims[client]]
            moved = embeddings.numpy() - stored
            if self.join == "mean":
                moved /= np.float32(len(self.dims))
            start = self._start[client] if self.join == "concat" else 0
            shifts.append((start, torch.from_numpy(moved)))
        return Points(self.combine(torch.from_numpy(rows)), tuple(shifts))

    def combine(self, rows: Tensor) -> Tensor:
        """Rows of all clients' embeddings, [..., Σ d_h], joined to [..., width]."""
        if self.join == "concat":
            return rows
        total = rows.reshape(*rows.shape[:-1], len(self.dims), self.dims[0]).sum(-2)
        return total if self.join == "sum" else total / len(self.dims)

    def part(self, client: int, gradient: Tensor) -> Tensor:
        """The client's share of a gradient on the joined input, [..., width] → [..., d_h]."""
        if self.join == "concat":
            return self._columns(gradient, client)
        return gradient if self.join == "sum" else gradient / len(self.dims)

    def _columns(self, rows: Tensor, client: int) -> Tensor:
        return rows.narrow(-1, self._start[client], self.dims[client])

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {"values": self.values, "refreshed": self.refreshed}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""
        self.values.copy_(state["values"])
        self.refreshed.copy_(state["refreshed"])


@dataclass
class Staleness:
    """Ages of the table entries that answers were computed from, other clients' entries only."""

    total: int = 0
    count: int = 0
    largest: int = 0

    def add(self, refreshed: Tensor, round_: int) -> None:
        """Rounds in which one batch's entries were stored, [batch, clients]; the asker's: now."""
        rounds = refreshed.numpy()
        rows, clients = rounds.shape
        self.total += round_ * rows * clients - int(np.add.reduce(rounds, None, np.int64))
        self.count += rows * (clients - 1)
        self.largest = max(self.largest, round_ - int(np.minimum.reduce(rounds, None)))

    @property
    def mean(self) -> float:
        """Mean age in rounds."""
        return self.total / self.count if self.count else 0.0
