"""Uniform levels between the lowest and the highest number.

Bytes: low and high of every group (float32, alternating), then the levels of all numbers, packed
(`vertizo.protocol.codecs.packing`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from vertizo.core.deferred import torch
from vertizo.core.options import Options
from vertizo.protocol.codecs.base import Scale, check_size, groups_of
from vertizo.protocol.codecs.packing import pack, pack_floats, packed_size, unpack, unpack_floats

if TYPE_CHECKING:
    from torch import Tensor


class Uniform(Options):
    """2^bits levels from the lowest to the highest number, which are carried along.

    A number is off by at most half a step, (high − low) / (2^bits − 1) / 2; low and high themselves
    are exact, and so is any array of one or two numbers. Where a group has a NaN or an infinity, no
    number of the group is finite after decoding.

    >>> codec = Uniform(bits=2)
    >>> codec.decode(codec.encode(torch.tensor([0.0, 0.9, 3.0])), (3,)).tolist()
    [0.0, 1.0, 3.0]
    """

    keeps_differences: ClassVar[bool] = False
    keeps_two_numbers: ClassVar[bool] = True

    name: Literal["uniform"] = "uniform"
    bits: Literal[8, 4, 2, 1] = 8
    """Bits for each number."""
    scale: Scale = "array"
    """array: one low and high for each point of a query, or for any other array. record: one for
    each record's row."""

    @property
    def mixes_records(self) -> bool:
        """A scale for all records does."""
        return self.scale == "array"

    def size(self, shape: tuple[int, ...]) -> int:
        """8 bytes a group, and ``bits`` a number rounded up to bytes."""
        return 8 * groups_of(shape, self.scale) + packed_size(math.prod(shape), self.bits)

    def encode(self, array: Tensor) -> memoryview:
        """Lows and highs, then levels."""
        shape = tuple(array.shape)
        groups, levels = groups_of(shape, self.scale), 2**self.bits - 1
        if not groups:
            return memoryview(b"")
        # float64: high − low may be beyond float32, or below what it divides by
        numbers = array.reshape(groups, -1).to(torch.float64)
        low, high = torch.aminmax(numbers, dim=1, keepdim=True)
        ends = torch.cat([low, high], 1)
        steps = levels / (high - low)
        steps[~(torch.isfinite(steps))] = 0.0  # nothing to tell apart, or nothing finite
        codes = ((numbers - low) * steps).round_().nan_to_num_(0.0, 0.0, 0.0).to(torch.uint8)
        return memoryview(pack_floats(ends) + pack(codes.numpy(), self.bits))

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array, in shape."""
        check_size(data, shape, self.size(shape))
        groups, levels = groups_of(shape, self.scale), 2**self.bits - 1
        if not groups:
            return torch.zeros(shape)
        ends = unpack_floats(data[: 8 * groups]).view(groups, 2).to(torch.float64)
        codes = unpack(data[8 * groups :], math.prod(shape), self.bits)
        place = torch.from_numpy(codes).view(groups, -1).to(torch.float64).div_(levels)
        # a weighted mean is exact at both ends, and not finite where one of them is not
        numbers = (1 - place).mul_(ends[:, :1]).addcmul_(place, ends[:, 1:])
        return numbers.to(torch.float32).view(shape)
