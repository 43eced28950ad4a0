"""The server halves of several runs at once: what is stored, evaluated and replied.

The points of a query come first in every array, then the items: [points, items, batch, …].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vertizo.batched.updates import Evaluated
from vertizo.methods.dpzv import midpoint
from vertizo.privacy.plan import NoPrivacy, Plan


class Answering(Protocol):
    """The server half of a method."""

    by_gradient: bool
    """Whether replies are made of the gradient of the embeddings, or else of losses."""

    def stored(self, embeddings: Tensor) -> Tensor:
        """What the table keeps of a query's embeddings, [items, batch, d_h]."""

    def evaluated(self, embeddings: Tensor) -> Tensor:
        """Those that the server evaluates beside the table's own, [points, items, batch, d_h]."""

    def told(self, shifted: Tensor, plain: Tensor, smoothing: Tensor) -> Sequence[Tensor]:
        """Per-record values that are released one after the other, each [items, batch, …].

        Args:
            shifted: losses at the query's points, [points, items, batch].
            plain: losses at the table's own, [items, batch].
            smoothing: λ or μ of each item, [items, 1].
        """


class DpzvAnswers:
    """As of `DpzvServer`.

    Args:
        count: K.
        jointly: whether a record's K slopes are clipped together.
    """

    by_gradient = False

    def __init__(self, count: int, *, jointly: bool) -> None:
        self._count = count
        self._jointly = jointly

    def stored(self, embeddings: Tensor) -> Tensor:
        """As of `Answering`: the mean."""
        return midpoint(embeddings)

    def evaluated(self, embeddings: Tensor) -> Tensor:
        """As of `Answering`: all."""
        return embeddings

    def told(self, shifted: Tensor, plain: Tensor, smoothing: Tensor) -> Sequence[Tensor]:
        """As of `Answering`: K slopes, or all of a record's at once."""
        slopes = [
            (shifted[2 * k] - shifted[2 * k + 1]) / (2 * smoothing) for k in range(self._count)
        ]
        return [torch.stack(slopes, 2)] if self._jointly else slopes


class ForwardDifferenceAnswers:
    """As of `ForwardDifferenceServer`.

    Args:
        losses: whether both losses are told, or their slope.
    """

    by_gradient = False

    def __init__(self, *, losses: bool) -> None:
        self._losses = losses

    def stored(self, embeddings: Tensor) -> Tensor:
        """As of `Answering`: the unperturbed one."""
        return embeddings[0]

    def evaluated(self, embeddings: Tensor) -> Tensor:
        """As of `Answering`: the perturbed one."""
        return embeddings[1:]

    def told(self, shifted: Tensor, plain: Tensor, smoothing: Tensor) -> Sequence[Tensor]:
        """As of `Answering`: both losses, or their slope."""
        if self._losses:
            return [torch.stack([plain, shifted[0]], 1).transpose(1, 2)]
        return [(shifted[0] - plain) / smoothing]


class FirstOrderAnswers:
    """As of `FirstOrderServer` with one local step."""

    by_gradient = True

    def stored(self, embeddings: Tensor) -> Tensor:
        """As of `Answering`: the one there is."""
        return embeddings[0]

    def evaluated(self, embeddings: Tensor) -> Tensor:
        """As of `Answering`: none."""
        return embeddings[1:]

    def told(self, shifted: Tensor, plain: Tensor, smoothing: Tensor) -> Sequence[Tensor]:
        """As of `Answering`: nothing of losses."""
        raise AssertionError("replies are gradients")


def totals(plans: Sequence[Plan], values: Sequence[Tensor], batch_size: int) -> Tensor:
    """`Plan.total` of every item, of values [items, batch] or [items, batch, K]; [items, numbers].

    Args:
        plans: each item's own.
        values: released one after the other.
        batch_size: nominal B.
    """
    if isinstance(plans[0], NoPrivacy):
        parts = [
            (each.numpy().sum(1, keepdims=each.dim() == 2) / batch_size).astype(np.float32)
            for each in values
        ]
        return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts, 1))
    rows = [
        torch.cat([plan.total(each[item]) for each in values]) for item, plan in enumerate(plans)
    ]
    return torch.stack(rows)


def each_record(plans: Sequence[Plan], values: Tensor, batch_size: int) -> Tensor:
    """`Plan.each` of every item, of values [items, batch, K]."""
    if isinstance(plans[0], NoPrivacy):
        return values / batch_size
    return torch.stack([plan.each(value) for plan, value in zip(plans, values, strict=True)])


def by_gradient(found: Evaluated) -> Tensor:
    """Gradient of each record's loss with respect to its joined embeddings, [items, batch, …]."""
    slopes = found.slopes(1.0).numpy()
    return torch.from_numpy(found.stacks.input_gradients(found.own, found.steps, slopes))
