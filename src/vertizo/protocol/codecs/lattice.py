"""The lattice codec: the nearest point of a lattice, after a shift that both sides know.

Subtractive dither: before rounding, every number is shifted by a public pseudo-random constant that
depends on its position alone; the receiver takes the shift away again. The error is then spread
evenly over one cell of the lattice whatever the numbers are (Schuchman 1964; Zamir and Feder 1992).
The dither is the same in every message, needs no bytes and no state, and hides nothing.

Bytes: the largest absolute value of every group (float32), then the points, packed
(`vertizo.protocol.codecs.packing`): ``bits`` a number for the scalar lattice, ``2·bits`` a pair of
neighbours of one row for the hexagonal one, a row of odd length being continued by a zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from vertizo.core.errors import MalformedError
from vertizo.core.plugins.lazy_import import torch
from vertizo.core.randomness import Stream
from vertizo.protocol.codecs.base import Grouped, Scale, held, rows_of
from vertizo.protocol.codecs.packing import Whole

if TYPE_CHECKING:
    from torch import Tensor

_PERIOD = 2**16


class Lattice(Grouped):
    """Dithered rounding to an even grid, or of pairs to a hexagonal one (kind).

    With m the largest absolute value of the group, the scalar grid has steps of 2m / (2^bits − 1),
    and a number is off by at most half a step. The hexagonal cell is rounder: at 8 bits its mean
    squared error is 3 % less than the scalar one's. The gain is lost to the points that it needs
    beyond the edge: at 4 bits its error is 3 % more, and at 2 bits 41 % more. Zeros are exact where
    a group has nothing else.
    """

    keeps_two_numbers: ClassVar[bool] = False

    name: Literal["lattice"] = "lattice"
    kind: Literal["hexagonal", "scalar"] = "hexagonal"
    """The grid: hexagonal for pairs of numbers, scalar for single ones."""
    bits: Literal[8, 4, 2] = 8
    """Bits for each number."""
    scale: Scale = "array"
    """array: one scale for each point of a query, or for any other array. record: one for each
    record's row."""

    def _codes_of(self, shape: tuple[int, ...]) -> tuple[int, int]:
        rows, columns = rows_of(shape)
        if self.kind == "hexagonal":
            return rows * ((columns + 1) // 2), 2 * self.bits
        return rows * columns, self.bits

    def _coded(self, numbers: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        largest = numbers.abs().amax(1, keepdim=True)
        units = numbers / largest
        units[~(torch.isfinite(units))] = 0.0  # all are zero, or not all are finite
        units = units.reshape(rows_of(shape))
        if self.kind == "hexagonal":
            pairs = torch.nn.functional.pad(units, (0, units.shape[1] % 2)).reshape(-1, 2)
            dither = _dither(pairs.numel()).view(-1, 2)
            codes = Hexagonal.of(2 * self.bits).nearest(pairs, dither)
        else:
            half = (2**self.bits - 1) / 2
            shifted = units.reshape(-1).mul(half).add_(_dither(units.numel()))
            codes = shifted.add_(half).round_().clamp_(0, 2 * half)
        return largest, codes.to(torch.int32)

    def _decoded(self, floats: Tensor, codes: Whole, shape: tuple[int, ...]) -> Tensor:
        points = torch.from_numpy(codes.astype(np.int32))
        if self.kind == "hexagonal":
            dither = _dither(2 * points.numel()).view(-1, 2)
            pairs = Hexagonal.of(2 * self.bits).point(points, dither)
            rows, columns = rows_of(shape)
            units = pairs.view(rows, -1)[:, :columns]
        else:
            half = (2**self.bits - 1) / 2
            units = points.to(torch.float32).sub_(half).sub_(_dither(points.numel())).div_(half)
        found = units.reshape(len(floats), -1).mul(floats)
        return held(found, floats.isfinite())  # rounding may point beyond the largest of a group


@cache
def _period() -> Tensor:
    generator = Stream.from_seed(0).child("codecs", "lattice", "dither").generator()
    return torch.from_numpy(generator.random(_PERIOD, dtype=np.float32)) - 0.5


def _dither(count: int) -> Tensor:
    """The public shifts of positions 0 to count − 1, evenly from [−½, ½); not to be written to."""
    period = _period()
    return period[:count] if count <= _PERIOD else period.repeat(-(-count // _PERIOD))[:count]


_RISE = math.sqrt(3) / 2
"""Distance of two rows."""


@dataclass(frozen=True)
class Hexagonal:
    """A hexagonal lattice: ``rows · columns`` points around the square of side ``span``.

    The square stands for [−1, 1]². Lattice points have distance 1. Rows lie √3/2 apart, every
    second one shifted by half a point; a point's code is ``row · columns + column``. The dither is
    even over a rectangle of 1 by √3/2, which tiles the plane by shifts of the lattice as the
    hexagonal cell does, and needs fewer points beyond the edge.
    """

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
        """The pairs [n, 2] of these codes, ``dither`` taken away; MalformedError beyond them."""
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
