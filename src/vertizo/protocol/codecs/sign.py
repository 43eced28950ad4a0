"""The sign codec: signs alone, and one size for all numbers of a group.

Bytes: each group's size (float32), then one bit a number, set where it is negative.

What arrives of an array x is ``x̂ = s·sign(x)``. Its *gain* ``⟨x, x̂⟩/⟨x, x⟩`` is how long a step
along it is, where 1 is right. With s the mean of |x| the squared error is least, and never more
than all of x; the gain of normal numbers is 2/π = 0.64. With ``s = ‖x‖₂²/‖x‖₁`` the gain of every x
is 1 (Vargaftik et al. 2021), and the error is larger, without bound where few numbers hold all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from vertizo.core.plugins.lazy_import import torch
from vertizo.protocol.codecs.base import Grouped, Scale
from vertizo.protocol.codecs.packing import Whole

if TYPE_CHECKING:
    from torch import Tensor


class Sign(Grouped):
    """One bit a number: plus or minus one size for all of its group.

    >>> codec = Sign()
    >>> codec.decode(codec.encode(torch.tensor([1.0, -2.0, 3.0])), (3,)).tolist()
    [2.0, -2.0, 2.0]
    >>> codec = Sign(gain="one")
    >>> codec.decode(codec.encode(torch.tensor([1.0, -2.0, 5.0])), (3,)).tolist()
    [3.75, -3.75, 3.75]
    """

    keeps_two_numbers: ClassVar[bool] = False

    name: Literal["sign"] = "sign"
    scale: Scale = "record"
    """record: one size for each record's row. array: one for each point of a query, or for any
    other array."""
    gain: Literal["least-error", "one"] = "least-error"
    """least-error: the size is the mean absolute value, and steps along what arrives are too short:
    0.64 of their length where numbers are normal. one: the sum of squares over the sum of absolute
    values; steps have their length, and the error is larger. For replies and differences, without
    feedback."""

    def _codes_of(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return math.prod(shape), 1

    def _coded(self, numbers: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        sizes = numbers.abs().mean(1, dtype=torch.float64)  # a sum in float32 could overflow
        if self.gain == "one":
            squares = numbers.to(torch.float64).square_().mean(1)
            sizes = torch.where(sizes > 0, squares / sizes, sizes)  # zeros and NaN stay
        return sizes, numbers < 0

    def _decoded(self, floats: Tensor, codes: Whole, shape: tuple[int, ...]) -> Tensor:
        negative = torch.from_numpy(codes).view(len(floats), -1)
        return (1.0 - 2.0 * negative).mul_(floats)
