"""Signs alone, and one size for all numbers of a group.

Bytes: each group's mean absolute value (float32), then one bit a number, set where it is negative.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from vertizo.core.deferred import torch
from vertizo.protocol.codecs.base import Grouped, Scale
from vertizo.protocol.codecs.packing import Whole

if TYPE_CHECKING:
    from torch import Tensor


class Sign(Grouped):
    """One bit a number: plus or minus its group's mean absolute value.

    >>> codec = Sign()
    >>> codec.decode(codec.encode(torch.tensor([1.0, -2.0, 3.0])), (3,)).tolist()
    [2.0, -2.0, 2.0]
    """

    keeps_two_numbers: ClassVar[bool] = False

    name: Literal["sign"] = "sign"
    scale: Scale = "record"
    """record: one size for each record's row. array: one for each point of a query, or for any
    other array."""

    def _codes_of(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return math.prod(shape), 1

    def _coded(self, numbers: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        means = numbers.abs().mean(1, dtype=torch.float64)  # a sum in float32 could overflow
        return means, numbers < 0

    def _decoded(self, floats: Tensor, codes: Whole, shape: tuple[int, ...]) -> Tensor:
        negative = torch.from_numpy(codes).view(len(floats), -1)
        return (1.0 - 2.0 * negative).mul_(floats)
