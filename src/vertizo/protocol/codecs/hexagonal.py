"""The hexagonal lattice, cut to the points that pairs of numbers from [−1, 1] can need.

Lattice points have distance 1. Rows of ``columns`` points lie √3/2 apart, every second one shifted
by half a point; a point's code is ``row · columns + column``. The dither is even over a rectangle
of 1 by √3/2, which tiles the plane by shifts of the lattice as the hexagonal cell does, and needs
fewer points beyond the edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from vertizo.core.deferred import torch
from vertizo.core.errors import MalformedError

if TYPE_CHECKING:
    from torch import Tensor

_RISE = math.sqrt(3) / 2
"""Distance of two rows."""


@dataclass(frozen=True)
class Hexagonal:
    """``rows · columns`` points around the square of side ``span``, which stands for [−1, 1]²."""

    rows: int
    columns: int

    @classmethod
    @cache
    def of(cls, bits: int) -> Hexagonal:
        """The widest of at most 2^bits points; ``bits`` is even. It has fewer columns than rows."""
        choices = (cls(2**bits // columns, columns) for columns in range(2, 2 ** (bits // 2) + 1))
        return max(choices, key=lambda grid: grid.span)

    @property
    def span(self) -> float:
        """Side of the square whose every point, once dithered, is nearest to one of these."""
        return min(self.columns - 1.5, self.rows * _RISE - 2 / math.sqrt(3))

    def nearest(self, pairs: Tensor, dither: Tensor) -> Tensor:
        """Codes of the points next to pairs from [−1, 1]², after ``dither`` from [−½, ½)²."""
        across, up = (pairs * (self.span / 2)).add_(self._shift(dither)).t().contiguous()
        across, up = across + self._left, up / _RISE + (self.rows - 1) / 2
        codes, distances = [], []
        for odd in (0, 1):  # rows of one kind form a rectangular lattice of their own
            last = (self.rows - 1 - odd) // 2
            row = ((up - odd) / 2).round_().clamp_(0, last).mul_(2).add_(odd)
            column = (across - odd / 2).round_().clamp_(0, self.columns - 1)
            aside, above = across - column - odd / 2, (up - row) * _RISE
            codes.append(row.to(torch.int32) * self.columns + column.to(torch.int32))
            distances.append(aside.square() + above.square())
        return torch.where(distances[1] < distances[0], codes[1], codes[0])

    def point(self, codes: Tensor, dither: Tensor) -> Tensor:
        """The pairs [n, 2] of these codes, ``dither`` taken away.

        Raises:
            MalformedError: a code is of no point.
        """
        if codes.numel() and int(codes.max()) >= self.rows * self.columns:
            raise MalformedError(f"a lattice point beyond {self.rows * self.columns}")
        row = torch.div(codes, self.columns, rounding_mode="floor")
        column = codes - row * self.columns
        across = column + (row % 2) * 0.5 - self._left
        up = (row - (self.rows - 1) / 2) * _RISE
        return torch.stack([across, up], 1).sub_(self._shift(dither)).div_(self.span / 2)

    @property
    def _left(self) -> float:
        """How far the first column lies to the left of the middle."""
        return (self.columns - 0.5) / 2

    def _shift(self, dither: Tensor) -> Tensor:
        return dither * torch.tensor([1.0, _RISE])
