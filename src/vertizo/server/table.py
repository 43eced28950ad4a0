"""The server's embedding table: the last embedding of every client and record, and its age."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from vertizo.errors import ConfigError

Join = Literal["concat", "sum", "mean"]


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

    @property
    def width(self) -> int:
        """Size of the server model's input."""
        return sum(self.dims) if self.join == "concat" else self.dims[0]

    def store(self, client: int, ids: Tensor, embeddings: Tensor, round_: int) -> None:
        """Replace the client's entries of those records, [batch] and [batch, d_h]."""
        self._columns(self.values, client).index_copy_(0, ids, embeddings)
        self.refreshed[:, client].index_fill_(0, ids, round_)

    def staleness(self, ids: Tensor, round_: int) -> Tensor:
        """Rounds since each entry was stored, int32 [batch, clients]."""
        return round_ - self.refreshed.index_select(0, ids)

    def points(self, ids: Tensor, replacements: Sequence[tuple[int, Tensor]]) -> Tensor:
        """The server model's inputs at several points, [points, batch, width].

        One point for each embedding of each (client, [points, batch, d_h]) pair, in order: the
        table's rows with that client's part replaced. Then the rows as they are, last.
        """
        rows = self.values.index_select(0, ids)
        count = sum(embeddings.shape[0] for _, embeddings in replacements)
        points = rows.expand(count + 1, -1, -1).contiguous() if count else rows.unsqueeze(0)
        first = 0
        for client, embeddings in replacements:
            last = first + embeddings.shape[0]
            self._columns(points[first:last], client).copy_(embeddings)
            first = last
        return self.combine(points)

    def combine(self, rows: Tensor) -> Tensor:
        """Rows of all clients' embeddings, [..., Σ d_h], joined to [..., width]."""
        if self.join == "concat":
            return rows
        parts = rows.unflatten(-1, (len(self.dims), self.dims[0]))
        return parts.sum(-2) if self.join == "sum" else parts.mean(-2)

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
