"""Tasks: what a loss is for one record, its slope, and what a prediction is.

Losses are computed from logits, for each record on its own. Logits come as [rows, outputs]; the
softmax runs over the transposed array, classes first, which vectorises over records and is about
ten times faster than along ten classes.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class RecordLosses(Protocol):
    """The losses of some rows of logits, and their slopes."""

    values: Tensor
    """Each row's loss, shape [rows]."""

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """``weights_i · ∂loss_i/∂logits_i`` of those rows, shape [rows, outputs]."""


class Task(Protocol):
    """What is predicted."""

    outputs: int
    """Number of logits."""

    def losses(self, logits: Tensor, labels: Tensor) -> RecordLosses:
        """Per-record losses of logits [rows, outputs]; labels [records] repeat over points.

        ``rows`` is a multiple of ``records``: several points evaluated for the same records.
        """

    def predict(self, logits: Tensor) -> Tensor:
        """Probabilities [rows, classes], or values [rows] for a regression."""

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """How many rows are predicted right, a scalar."""


class Classification:
    """Softmax cross-entropy over ``classes`` ≥ 2; labels are int64 in [0, classes)."""

    def __init__(self, classes: int) -> None:
        self.outputs = classes

    def losses(self, logits: Tensor, labels: Tensor) -> RecordLosses:
        """−log softmax at the label."""
        return _SoftmaxLosses(logits, labels)

    def predict(self, logits: Tensor) -> Tensor:
        """Class probabilities, [rows, classes]."""
        return torch.softmax(logits, 1)

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """How many rows have their largest logit at the label."""
        return (logits.t().contiguous().argmax(0) == labels).sum()


class _SoftmaxLosses:
    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self._labels = labels
        self._log_probabilities = torch.log_softmax(logits.t(), 0)
        repeats = logits.shape[0] // labels.shape[0]
        picked = labels.repeat(repeats) if repeats > 1 else labels
        self.values = self._log_probabilities.gather(0, picked.unsqueeze(0)).squeeze(0).neg_()

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """Softmax minus one-hot, times the weights."""
        result = self._log_probabilities[:, rows].exp()
        result.scatter_add_(0, self._labels.unsqueeze(0), result.new_full(result.shape, -1.0))
        return result.mul_(weights).t()


class Regression:
    """Half the squared error of one output; labels are float32."""

    outputs = 1

    def losses(self, logits: Tensor, labels: Tensor) -> RecordLosses:
        """(prediction − label)² / 2."""
        return _SquaredLosses(logits, labels)

    def predict(self, logits: Tensor) -> Tensor:
        """Values, [rows]."""
        return logits.squeeze(1)

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Zero: nothing is right or wrong here."""
        return labels.new_zeros((), dtype=torch.int64)


class _SquaredLosses:
    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        repeats = logits.shape[0] // labels.shape[0]
        self._error = logits.squeeze(1) - labels.repeat(repeats)
        self.values = self._error.square().mul_(0.5)

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """The error, times the weights."""
        return (self._error[rows] * weights).unsqueeze(1)
