"""Sums of vectors, in one pass where they are float32 in the processor's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.core import kernels
from vertizo.core.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


def add(vector: Tensor, numbers: Tensor, factor: float) -> None:
    """``vector += factor · numbers``, in place; both [d], wherever and of whatever type."""
    if is_plain(vector) and is_plain(numbers):
        kernels.add(vector.numpy(), numbers.numpy(), factor)
    else:
        vector.add_(numbers.to(vector), alpha=factor)


def is_plain(vector: Tensor) -> bool:
    """Whether it is float32 in the processor's memory, without gaps."""
    return vector.dtype is torch.float32 and vector.is_cpu and vector.is_contiguous()
