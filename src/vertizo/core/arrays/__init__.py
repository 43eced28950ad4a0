"""Arrays where the model lives: what a round does to them, on the processor and on a card.

On the processor that is NumPy's and C's (`vertizo.core.kernels`), on a card PyTorch's and, where it
is installed, Triton's (`vertizo.core.arrays.card`). What is on a card is not read in a round: a
number that a step depends on is a tensor of no dimension there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from vertizo.core.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor

Scalar: TypeAlias = "float | Tensor"
"""A number; of a card, a tensor of no dimension that stays there."""


def is_card(device: torch.device) -> bool:
    """Whether what lives there is a card's: PyTorch works on it, and nobody reads it."""
    return device.type != "cpu"


def here(array: Tensor, device: torch.device) -> Tensor:
    """An array on that device; what goes to a card is not waited for."""
    return array.to(device, non_blocking=is_card(device))


def rows(table: Tensor, ids: Tensor) -> Tensor:
    """The rows of those IDs, int64 [batch], where the table is: [batch, ...]."""
    if table.is_cpu:
        return torch.from_numpy(table.numpy().take(ids.numpy(), 0))
    return table.index_select(0, here(ids, table.device))


def scalars(values: Tensor) -> list[Scalar]:
    """The numbers of a vector [K]; those of a card stay there."""
    return values.tolist() if values.is_cpu else list(values.unbind())
