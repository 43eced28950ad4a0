"""Clipping of per-record values, and its sensitivity (docs/mathematics.md, Clipping)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vertizo.core.plugins.lazy_import import torch
from vertizo.core.state import Stateful

if TYPE_CHECKING:
    from torch import Tensor

REPLACED = 2.0
"""Clip norms by which replacing one record moves a sum of clipped rows at most: its row may point
the other way. Every ε and all noise rest on it, through `moved`."""


def moved(clip_norm: float) -> float:
    """The most that replacing one record moves a sum of rows clipped to ``clip_norm``: 2C."""
    return REPLACED * clip_norm


def relabelled(norm: float) -> float:
    """The clip norm whose `moved` is √2 R: how far one label moves sums by class of rows of norm R.

    The row leaves the sum of one class and enters that of another.
    """
    return norm / math.sqrt(2) * (2 / REPLACED)  # √2 R / REPLACED, rounded as it always was


def clip(values: Tensor, clip_norm: float) -> Tensor:
    """Clip each record's values, [batch] or [batch, K], to norm at most ``clip_norm``; float64.

    Every input is bounded, unlike by DPZV's one-sided ``min(δ, C)`` and by ``torch.clamp``, which
    passes NaN on: a row with NaN or ±∞ becomes 0, all others are bounded on both sides.

    >>> import torch
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


@dataclass(frozen=True)
class Clip:
    """A clip to norm C, and the sensitivity of a sum of what it returns."""

    norm: float
    """C."""

    def __call__(self, values: Tensor) -> Tensor:
        """See `clip`."""
        return clip(values, self.norm)

    @property
    def sensitivity(self) -> float:
        """The most that replacing one record moves the sum: 2C."""
        return moved(self.norm)


class CountedClip(Stateful):
    """A `Clip` that counts the rows it changes, for the server's own eyes."""

    STATE = ("counts",)

    def __init__(self, norm: float) -> None:
        self.clip = Clip(norm)
        self.counts = torch.zeros(2, dtype=torch.int64)
        """Rows that were changed, and rows that were seen, int64 [2]."""

    def __call__(self, values: Tensor) -> Tensor:
        """Each record's clipped contribution, float64 [batch, K]; of [batch], [batch, 1]."""
        rows = values.reshape(values.shape[0], -1)
        self.counts = self.counts.to(rows.device)
        norms = rows.abs().squeeze(1) if rows.shape[1] == 1 else rows.norm(dim=1)
        self.counts[0] += (~(norms <= self.clip.norm)).sum()
        self.counts[1] += norms.numel()
        return self.clip(values).reshape(rows.shape)

    @property
    def fraction(self) -> float | None:
        """Share of rows that were changed; None before the first row."""
        changed, seen = self.counts.tolist()
        return changed / seen if seen else None
