"""Arrays where the model lives: what a round does to them, on the processor and on a card.

On the processor that is NumPy's and C's (`vertizo.core.kernels`), on a card PyTorch's and, where it
is installed, Triton's (`vertizo.core.arrays.card`). What is on a card is not read in a round: a
number that a step depends on is a tensor of no dimension there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Scalar: TypeAlias = "float | Tensor"
"""A number; of a card, a tensor of no dimension that stays there."""


def on_card(array: Tensor) -> bool:
    """Whether an array is a card's: PyTorch works on it where it is, and nobody reads it."""
    return not array.is_cpu


def scalars(values: Tensor) -> list[Scalar]:
    """The numbers of a vector [K]; those of a card stay there."""
    return list(values.unbind()) if on_card(values) else values.tolist()
