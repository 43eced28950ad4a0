"""The paired codec: two points that are close, as their middle and their difference.

A two-point query's ``h+`` and ``h−`` differ by the order of λ, much less than a quantiser's step:
rounding each of them destroys the difference, which is all that a zeroth-order method looks at. The
middle may be coarse, since it is the same for both; the difference has a scale of its own.

Bytes of K pairs: the middle's, then the largest absolute half difference of every pair (float32),
then those of the scaled differences.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from vertizo.core.options import Options
from vertizo.core.plugins.lazy_import import torch
from vertizo.protocol.codecs.base import Scale, check_size, held
from vertizo.protocol.codecs.catalog import RoundingCodec
from vertizo.protocol.codecs.packing import pack_floats, unpack_floats
from vertizo.protocol.codecs.uniform import Uniform

if TYPE_CHECKING:
    from torch import Tensor


class Paired(Options):
    """One middle of all points, and the difference of every two of them, each with a codec.

    For arrays [2K, batch, embedding_dim], where point 2k and point 2k + 1 are a pair: both sides of
    a shift, or an embedding and a shifted one. All pairs are decoded around the one middle, so that
    K > 1 is for pairs around a common one. Arrays of any other shape (an upload of one point, a
    reply) are written by the middle's codec alone.
    """

    keeps_differences: ClassVar[bool] = True

    name: Literal["paired"] = "paired"
    midpoint: RoundingCodec = Uniform()
    """Writes the middle."""
    difference: RoundingCodec = Uniform()
    """Writes the half differences."""
    scale: Scale = "array"
    """array: one scale for each pair of points. record: one for each record's row of each pair."""

    @property
    def keeps_two_numbers(self) -> bool:
        """See `Codec.keeps_two_numbers`: the middle's codec decides, which writes them."""
        return self.midpoint.keeps_two_numbers

    @property
    def mixes_records(self) -> bool:
        """Whether any of its three scales is for all records."""
        parts = self.midpoint.mixes_records or self.difference.mixes_records
        return parts or self.scale == "array"

    def size(self, shape: tuple[int, ...]) -> int:
        """The middle's size, 4 bytes a pair (or a record of a pair), the differences' size."""
        if not _in_pairs(shape):
            return self.midpoint.size(shape)
        middle, halves = _parts(shape)
        scales = math.prod(self._scales(halves))
        return self.midpoint.size(middle) + 4 * scales + self.difference.size(halves)

    def encode(self, array: Tensor) -> memoryview:
        """The middle, the scales, the differences."""
        if not _in_pairs(tuple(array.shape)):
            return self.midpoint.encode(array)
        first, second = array[0::2], array[1::2]
        halves = first / 2 - second / 2  # which is finite where they are
        dims = (1, 2) if self.scale == "array" else (2,)
        largest = halves.abs().amax(dims, keepdim=True)
        halves = torch.where(largest > 0, halves / largest, halves)  # a NaN stays what it is
        middle = array.mean(0, keepdim=True)
        if not bool(middle.isfinite().all()):  # their sum may be beyond float32
            middle = (array / len(array)).sum(0, keepdim=True)
        parts = (self.midpoint.encode(middle), pack_floats(largest), self.difference.encode(halves))
        return memoryview(b"".join(parts))

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array of that shape; MalformedError for other bytes."""
        check_size(data, shape, self.size(shape))
        if not _in_pairs(shape):
            return self.midpoint.decode(data, shape)
        middle, halves = _parts(shape)
        scales = self._scales(halves)
        start = self.midpoint.size(middle)
        end = start + 4 * math.prod(scales)
        middles = self.midpoint.decode(data[:start], middle)
        largest = unpack_floats(data[start:end]).view(scales)
        differences = self.difference.decode(data[end:], halves).mul_(largest)
        array = torch.stack([middles + differences, middles - differences], 1)
        are_finite = (middles.isfinite() & differences.isfinite()).unsqueeze(1)
        return held(array, are_finite).view(shape)

    def _scales(self, halves: tuple[int, int, int]) -> tuple[int, int, int]:
        """Shape of the largest half differences."""
        return (halves[0], 1 if self.scale == "array" else halves[1], 1)


def _in_pairs(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] % 2 == 0 and math.prod(shape) > 0


def _parts(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shapes of the middle and of the half differences."""
    points, batch, dim = shape
    return (1, batch, dim), (points // 2, batch, dim)
