"""The nearest point of a lattice, after a shift that both sides know.

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
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from vertizo.core.deferred import torch
from vertizo.core.options import Options
from vertizo.core.randomness import Stream
from vertizo.protocol.codecs.base import Scale, check_size, groups_of, rows_of
from vertizo.protocol.codecs.hexagonal import Hexagonal
from vertizo.protocol.codecs.packing import pack, pack_floats, packed_size, unpack, unpack_floats

if TYPE_CHECKING:
    from torch import Tensor

_PERIOD = 2**16


class Lattice(Options):
    """Dithered rounding to an even grid, or of pairs to a hexagonal one (kind).

    With m the largest absolute value of the group, the scalar grid has steps of 2m / (2^bits − 1),
    and a number is off by at most half a step. The hexagonal cell is rounder: at 8 bits its mean
    squared error is 3 % less than the scalar one's. The gain is lost to the points that it needs
    beyond the edge: at 4 bits its error is 3 % more, and at 2 bits 41 % more. Zeros are exact where
    a group has nothing else. Where a group has a NaN or an infinity, no number of it is finite
    after decoding.
    """

    keeps_differences: ClassVar[bool] = False
    keeps_two_numbers: ClassVar[bool] = False

    name: Literal["lattice"] = "lattice"
    kind: Literal["hexagonal", "scalar"] = "hexagonal"
    """The grid: hexagonal for pairs of numbers, scalar for single ones."""
    bits: Literal[8, 4, 2] = 8
    """Bits for each number."""
    scale: Scale = "array"
    """array: one scale for each point of a query, or for any other array. record: one for each
    record's row."""

    @property
    def mixes_records(self) -> bool:
        """A scale for all records does."""
        return self.scale == "array"

    def size(self, shape: tuple[int, ...]) -> int:
        """4 bytes a group, and the points' bits rounded up to bytes."""
        if not math.prod(shape):
            return 0
        return 4 * groups_of(shape, self.scale) + packed_size(*self._points(shape))

    def encode(self, array: Tensor) -> memoryview:
        """Scales, then points."""
        shape = tuple(array.shape)
        groups = groups_of(shape, self.scale)
        if not groups:
            return memoryview(b"")
        numbers = array.reshape(groups, -1)
        largest = numbers.abs().amax(1, keepdim=True)
        units = numbers / largest
        units[~(torch.isfinite(units))] = 0.0  # all are zero, or not all are finite
        units = units.reshape(rows_of(shape))
        if self.kind == "hexagonal":
            grid = Hexagonal.of(2 * self.bits)
            pairs = torch.nn.functional.pad(units, (0, units.shape[1] % 2)).view(-1, 2)
            codes = grid.nearest(pairs, _dither(pairs.numel()).view(-1, 2))
        else:
            half = (2**self.bits - 1) / 2
            shifted = units.reshape(-1).mul(half).add_(_dither(units.numel()))
            codes = shifted.add_(half).round_().clamp_(0, 2 * half)
        _, width = self._points(shape)
        return memoryview(pack_floats(largest) + pack(codes.to(torch.int32).numpy(), width))

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array, in shape."""
        check_size(data, shape, self.size(shape))
        groups = groups_of(shape, self.scale)
        if not groups:
            return torch.zeros(shape)
        rows, columns = rows_of(shape)
        largest = unpack_floats(data[: 4 * groups])
        codes = torch.from_numpy(unpack(data[4 * groups :], *self._points(shape)).astype(np.int32))
        if self.kind == "hexagonal":
            grid = Hexagonal.of(2 * self.bits)
            pairs = grid.point(codes, _dither(2 * codes.numel()).view(-1, 2))
            units = pairs.view(rows, -1)[:, :columns]
        else:
            half = (2**self.bits - 1) / 2
            units = codes.to(torch.float32).sub_(half).sub_(_dither(codes.numel())).div_(half)
        return units.reshape(groups, -1).mul(largest[:, None]).view(shape)

    def _points(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Number of lattice points, and bits of one."""
        rows, columns = rows_of(shape)
        if self.kind == "hexagonal":
            return rows * ((columns + 1) // 2), 2 * self.bits
        return rows * columns, self.bits


@cache
def _period() -> Tensor:
    generator = Stream.from_seed(0).child("codecs", "lattice", "dither").generator()
    return torch.from_numpy(generator.random(_PERIOD, dtype=np.float32)) - 0.5


def _dither(count: int) -> Tensor:
    """The public shifts of positions 0 to count − 1, evenly from [−½, ½); not to be written to."""
    period = _period()
    return period[:count] if count <= _PERIOD else period.repeat(-(-count // _PERIOD))[:count]
