"""Operations of a round on arrays that stay where the model is: on the processor or on a card.

On the processor NumPy and C do the work (`vertizo.core.kernels`), on a card PyTorch and, where it
is installed, Triton (`card.py`, `fused.py`). `philox.py` specifies the random numbers of a card.

Operations may be added or become faster. What never changes: nothing on a card is read during a
round, since that would wait for it: a number that a step depends on is a tensor of no dimension
there; and a seed gives the same numbers with Triton and without, up to a logarithm's last digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor

Scalar: TypeAlias = "float | Tensor"
"""A number, or on a card a tensor of no dimension, which stays there."""


def is_card(device: torch.device) -> bool:
    """Whether a device is a card: then PyTorch works on its arrays, and nobody reads them."""
    return device.type != "cpu"


PINNED = 2**26
"""Bytes up to which an array is copied to a card by way of pinned memory."""


def here(array: Tensor, device: torch.device) -> Tensor:
    """Copy an array to a device if it is elsewhere; copies to a card are not waited for."""
    return pinned(array, device).to(device, non_blocking=is_card(device))


def pinned(array: Tensor, device: torch.device) -> Tensor:
    """The array where a card can fetch it while the processor goes on, if it is for a card.

    PyTorch uses that memory again once the copy is made.
    """
    goes = device.type == "cuda" and array.device.type == "cpu" and array.nbytes <= PINNED
    return array.pin_memory() if goes else array


def rows(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table by their IDs, int64 [batch], on the table's device: [batch, ...]."""
    if table.is_cpu:
        return torch.from_numpy(table.numpy().take(ids.numpy(), 0))
    return table.index_select(0, here(ids, table.device))


def scalars(values: Tensor) -> list[Scalar]:
    """The numbers of a vector [K] as a list; those on a card stay there, as tensors."""
    return values.tolist() if values.is_cpu else list(values.unbind())


def times(factor: Scalar, number: Scalar) -> Scalar:
    """Their product; by a factor of 1.0 it takes no operation on a card."""
    return number if isinstance(factor, float) and factor == 1 else factor * number
