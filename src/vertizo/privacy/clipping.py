"""Clipping that holds for every input, and sums that know their own sensitivity (SPEC 6.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vertizo.validate import positive


@dataclass(frozen=True)
class BoundedSum:
    """A sum of per-record vectors of norm at most ``clip_norm``."""

    values: Tensor
    """The sum, shape [K], float64."""
    clip_norm: float

    @property
    def sensitivity(self) -> float:
        """L2 distance that replacing one record can move the sum: 2C."""
        return 2 * self.clip_norm


def clip(values: Tensor, clip_norm: float) -> Tensor:
    """Per-record values, [batch] or [batch, K], each brought to norm at most ``clip_norm``.

    Total, unlike DPZV's one-sided ``min(δ, C)`` and unlike ``torch.clamp``, which passes NaN on:
    NaN and ±∞ become 0, everything else is finite and bounded on both sides.

    >>> clip(torch.tensor([-7.0, 0.5, float("nan"), float("inf")]), 2.0).tolist()
    [-2.0, 0.5, 0.0, 0.0]
    """
    values = values.to(torch.float64)
    if values.dim() == 1:
        return torch.where(values.isfinite(), values, 0.0).clamp_(-clip_norm, clip_norm)
    finite = torch.where(values.isfinite().all(1, keepdim=True), values, 0.0)
    # By the largest entry first: squares of large finite numbers would overflow.
    largest = finite.abs().amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float64).tiny)
    norm = torch.linalg.vector_norm(finite / largest, dim=1, keepdim=True) * largest
    shrink = clip_norm / norm.clamp_(min=clip_norm)
    return finite.mul(shrink)


def bounded_sum(values: Tensor, clip_norm: float) -> BoundedSum:
    """Clip every record, then add: [batch] or [batch, K] → [1] or [K]."""
    positive("clip_norm", clip_norm)
    return BoundedSum(clip(values, clip_norm).sum(0).reshape(-1), clip_norm)
