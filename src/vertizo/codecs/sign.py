"""Signs alone, and one size for all numbers of a row.

Bytes: each row's mean absolute value (float32), then one bit a number, set where it is negative.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vertizo.codecs.base import check_size, rows_of
from vertizo.codecs.packing import pack, pack_floats, packed_size, unpack, unpack_floats
from vertizo.options import Options


class Sign(Options):
    """One bit a number: plus or minus its row's mean absolute value.

    A row with a NaN or an infinity has no finite number after decoding.

    >>> codec = Sign()
    >>> codec.decode(codec.encode(torch.tensor([1.0, -2.0, 3.0])), (3,)).tolist()
    [2.0, -2.0, 2.0]
    """

    keeps_differences: ClassVar[bool] = False
    keeps_two_numbers: ClassVar[bool] = False
    mixes_records: ClassVar[bool] = False

    name: Literal["sign"] = "sign"

    def size(self, shape: tuple[int, ...]) -> int:
        """4 bytes a row, and a bit a number rounded up to bytes."""
        numbers = math.prod(shape)
        return 4 * rows_of(shape)[0] + packed_size(numbers, 1) if numbers else 0

    def encode(self, array: Tensor) -> memoryview:
        """Means, then signs."""
        if not array.numel():
            return memoryview(b"")
        numbers = array.reshape(rows_of(tuple(array.shape)))
        means = numbers.abs().mean(1, dtype=torch.float64)  # a sum in float32 could overflow
        return memoryview(pack_floats(means) + pack((numbers < 0).numpy(), 1))

    def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The array, in shape."""
        check_size(data, shape, self.size(shape))
        numbers = math.prod(shape)
        if not numbers:
            return torch.zeros(shape)
        rows, columns = rows_of(shape)
        means = unpack_floats(data[: 4 * rows])
        negative = torch.from_numpy(unpack(data[4 * rows :], numbers, 1))
        signs = 1.0 - 2.0 * negative.view(rows, columns)
        return signs.mul_(means[:, None]).view(shape)
