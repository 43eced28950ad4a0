"""Signs alone, and one size for all numbers of a group.

Bytes: each group's mean absolute value (float32), then one bit a number, set where it is negative.
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


class Sign(Options):
    """One bit a number: plus or minus its group's mean absolute value.

    A group with a NaN or an infinity has no finite number after decoding.

    >>> codec = Sign()
    >>> codec.decode(codec.encode(torch.tensor([1.0, -2.0, 3.0])), (3,)).tolist()
    [2.0, -2.0, 2.0]
    """

    keeps_differences: ClassVar[bool] = False
    keeps_two_numbers: ClassVar[bool] = False

    name: Literal["sign"] = "sign"
    scale: Scale = "record"
    """record: one size for each record's row. array: one for each point of a query, or for any
    other array."""

    @property
    def mixes_records(self) -> bool:
        """A size for all records does."""
        return self.scale == "array"

    def size(self, shape: tuple[int, ...]) -> int:
        """4 bytes a group, and a bit a number rounded up to bytes."""
        return 4 * groups_of(shape, self.scale) + packed_size(math.prod(shape), 1)

    def encode(self, array: Tensor) -> memoryview:
        """Means, then signs."""
        if not array.numel():
            return memoryview(b"")
        numbers = array.reshape(groups_of(tuple(array.shape), self.scale), -1)
        means = numbers.abs().mean(1, dtype=torch.float64)  # a sum in float32 could overflow
        return memoryview(pack_floats(means) + pack((numbers < 0).numpy(), 1))

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array, in shape."""
        check_size(data, shape, self.size(shape))
        groups = groups_of(shape, self.scale)
        if not groups:
            return torch.zeros(shape)
        means = unpack_floats(data[: 4 * groups])
        negative = torch.from_numpy(unpack(data[4 * groups :], math.prod(shape), 1))
        signs = 1.0 - 2.0 * negative.view(groups, -1)
        return signs.mul_(means[:, None]).view(shape)
