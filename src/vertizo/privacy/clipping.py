"""Clipping that holds for every input (docs/mathematics.md, Clipping)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vertizo.core.lazy_import import torch
from vertizo.core.state import Stateful

if TYPE_CHECKING:
    from torch import Tensor

REPLACED = 2.0
"""Clip norms that a sum of clipped rows moves at most where one record is replaced by another: its
row may point the other way. Every ε and all noise rest on it, through `moved`."""


def moved(clip_norm: float) -> float:
    """How far replacing one record moves a sum of rows clipped to a norm, at most: 2C."""
    return REPLACED * clip_norm


def clip(values: Tensor, clip_norm: float) -> Tensor:
    """Per-record values, [batch] or [batch, K], each brought to norm at most ``clip_norm``.

    Total, unlike DPZV's one-sided ``min(δ, C)`` and unlike ``torch.clamp``, which passes NaN on:
    NaN and ±∞ become 0, everything else is finite and bounded on both sides.

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
    """`clip` to one norm, which knows how far one record can move a sum of what it returns."""

    norm: float
    """C."""

    def __call__(self, values: Tensor) -> Tensor:
        """As of `clip`."""
        return clip(values, self.norm)

    @property
    def sensitivity(self) -> float:
        """How far replacing one record moves the sum at most: 2C."""
        return moved(self.norm)


class CountedClip(Stateful):
    """`Clip` of each record's row; it counts those that it changed, for the server's own eyes."""

    STATE = ("counts",)

    def __init__(self, norm: float) -> None:
        self.clip = Clip(norm)
        self.counts = torch.zeros(2, dtype=torch.int64)
        """Rows changed, and rows."""

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
        """Share of rows that it changed; None where there were none."""
        changed, seen = self.counts.tolist()
        return changed / seen if seen else None
