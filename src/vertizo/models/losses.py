"""Tasks: each record's loss, the slope of it, and the prediction of logits.

Losses are computed from logits [rows, outputs], for each record on its own; labels [records] (or
[records, outputs], where a record has several) repeat over points, where several were evaluated for
the same records. A task's ``outputs`` is the number of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from vertizo.core import kernels
from vertizo.core.arrays import card


class Classification:
    """Softmax cross-entropy over ``classes`` ≥ 2; labels are int64 in [0, classes).

    Of two classes ``positive`` is the one that AUC, precision, recall and the like are about.
    """

    def __init__(self, classes: int, positive: int = 1) -> None:
        self.outputs, self.positive = classes, positive

    def losses(self, logits: Tensor, labels: Tensor) -> RecordLosses:
        """−log softmax at the label."""
        return (SoftmaxLosses if logits.is_cpu else CardSoftmaxLosses)(logits, labels)

    def predict(self, logits: Tensor) -> Tensor:
        """Class probabilities, [rows, classes]."""
        return torch.softmax(logits, 1)


class SoftmaxLosses:
    """Softmax cross-entropies ``values`` [rows], with their slopes and counts of right rows."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        rows: NDArray[np.float32] = np.ascontiguousarray(logits.numpy(), np.float32)
        self._labels = labels.numpy()
        self._parts: NDArray[np.float32] = np.empty(rows.shape, np.float32)
        self._totals: NDArray[np.float32] = np.empty(len(rows), np.float32)
        losses = np.empty(len(rows), np.float32)
        self._likeliest = np.empty(len(rows), np.int32)
        kernels.softmax(self._parts, self._totals, losses, self._likeliest, rows, self._labels)
        self.values = torch.from_numpy(losses)

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """``weights_i · ∂loss_i/∂logits_i`` of the rows of one point, shape [records, outputs]."""
        found = np.empty((len(self._labels), self._parts.shape[1]), np.float32)
        scale = 1.0 if isinstance(weights, Tensor) else weights
        kernels.slopes(found, self._parts, self._totals, self._labels, rows.start or 0, scale)
        if isinstance(weights, Tensor):
            found *= weights.numpy()[:, None]
        return torch.from_numpy(found)

    def correct(self, rows: slice) -> int:
        """How many of those rows are predicted right."""
        first, stop, _ = rows.indices(len(self._likeliest))
        return kernels.right(self._likeliest, self._labels, first, stop)


class CardSoftmaxLosses:
    """`SoftmaxLosses` by PyTorch, of logits on a card; nothing is read back."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self.values, self._slopes, self._right = card.softmax(logits.float(), labels)

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """``weights_i · ∂loss_i/∂logits_i`` of the rows of one point, shape [records, outputs]."""
        return self._slopes[rows] * (
            weights.unsqueeze(1) if isinstance(weights, Tensor) else weights
        )

    def correct(self, rows: slice) -> Tensor:
        """Which of those rows are predicted right, bool [records]."""
        return self._right[rows]


class ClassWeighted(Classification):
    """Classification in which each record's loss is multiplied by the weight of its class."""

    def __init__(self, weights: Tensor, positive: int = 1) -> None:
        super().__init__(len(weights), positive)
        self._weights = weights

    def losses(self, logits: Tensor, labels: Tensor) -> RecordLosses:
        """−w log softmax at the label."""
        self._weights = self._weights.to(labels.device)
        return WeightedLosses(super().losses(logits, labels), self._weights[labels])


class NoisyLabelClassification(Classification):
    """Classification by labels that were kept with probability ``keep``, and else exchanged.

    Forward correction (Patrini et al. 2017): ``−log(p_ỹ (keep − q) + q)``, where q is ``other``,
    the probability of each other class; a model that minimises it predicts the original labels.
    With class weights w, p is the softmax of the logits less log w, so that the model itself
    predicts p times w.
    """

    def __init__(
        self,
        classes: int,
        keep: float,
        other: float,
        positive: int = 1,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__(classes, positive)
        self._gain, self._other = keep - other, other
        self._shift = None if weights is None else log_weights(weights)

    def losses(self, logits: Tensor, labels: Tensor) -> RecordLosses:
        """Corrected losses of labels that may have been exchanged."""
        if self._shift is not None:
            self._shift = self._shift.to(logits.device)
            logits = logits - self._shift
        return FlippedLosses(super().losses(logits, labels), self._gain, self._other)


class FlippedLosses:
    """The losses of `NoisyLabelClassification`."""

    def __init__(self, plain: RecordLosses, gain: float, other: float) -> None:
        """``plain`` are the losses that take the labels for right; gain is keep − other."""
        self._plain = plain
        kept = gain * self._plain.values.neg().exp()
        likely = (kept + other).clamp(min=torch.finfo(torch.float32).tiny)
        self.values: Tensor = -likely.log()
        self._weights = kept / likely

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """Slopes of the softmax, each times ``(keep − q) p / ((keep − q) p + q)``."""
        return self._plain.slopes(rows, self._weights[rows] * weights)

    def correct(self, rows: slice) -> int | Tensor:
        """How many of those rows are predicted right."""
        return self._plain.correct(rows)


class Regression:
    """Regression by half the squared error of one output; labels are float32, in their own units.

    The output predicts ``(label − mean) / spread``, and the loss is in that unit: prices in
    thousands and in millions train with the same learning rates. ``spread`` is > 0.
    """

    outputs = 1

    def __init__(self, mean: float = 0.0, spread: float = 1.0) -> None:
        self.mean, self.spread = mean, spread

    def losses(self, logits: Tensor, labels: Tensor) -> SquaredLosses:
        """(output − (label − mean)/spread)² / 2."""
        return SquaredLosses(logits, (labels - self.mean) / self.spread)

    def predict(self, logits: Tensor) -> Tensor:
        """Values in the labels' units, [rows]."""
        return logits.squeeze(1) * self.spread + self.mean


class Huber(Regression):
    """Regression by the Huber loss (1964): squared error up to ``delta`` > 0 spreads, then linear.

    A few labels far out then move a model little.
    """

    def __init__(self, mean: float = 0.0, spread: float = 1.0, delta: float = 1.0) -> None:
        super().__init__(mean, spread)
        self.delta = delta

    def losses(self, logits: Tensor, labels: Tensor) -> SquaredLosses:
        """e²/2 of an error e up to δ, else δ (abs(e) − δ/2)."""
        found = super().losses(logits, labels)
        error, delta = found.slope, self.delta
        linear = delta * (error.abs() - delta / 2)
        found.values = torch.where(error.abs() <= delta, found.values, linear)
        found.slope = error.clamp(-delta, delta)
        return found


class Quantile(Regression):
    """Regression of a quantile by the pinball loss (Koenker and Bassett 1978).

    A share ``level``, in (0, 1), of labels is to be below their predictions.
    """

    def __init__(self, mean: float = 0.0, spread: float = 1.0, level: float = 0.5) -> None:
        super().__init__(mean, spread)
        self.level = level

    def losses(self, logits: Tensor, labels: Tensor) -> SquaredLosses:
        """(1 − level) e of an output e too high, level abs(e) of one too low.

        The slope at an exact prediction is the mean of both sides'.
        """
        found = super().losses(logits, labels)
        error, level = found.slope, self.level
        found.values = torch.maximum(-level * error, (1 - level) * error)
        found.slope = torch.heaviside(error, error.new_full((), 0.5)) - level
        return found


class SquaredLosses:
    """Losses ``values`` [rows] of a regression, with their ``slope``; other losses replace both."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        repeats = logits.shape[0] // labels.shape[0]
        self.slope = logits.squeeze(1) - labels.repeat(repeats)
        self.values = self.slope.square().mul_(0.5)

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """``weights_i · ∂loss_i/∂output_i`` of the rows of one point, shape [records, 1]."""
        return (self.slope[rows] * weights).unsqueeze(1)

    def correct(self, rows: slice) -> int:
        """0: a value is not right or wrong."""
        return 0


class MultiLabel:
    """Several yes-or-no labels of a record, any of which may hold: a logistic loss for each.

    Labels are float32 [records, outputs], 1 for yes and 0 for no; ``names`` are their names. A
    record's loss is the mean over its labels, so that learning rates and clips are those of one
    label.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.outputs = tuple(names), len(names)

    def losses(self, logits: Tensor, labels: Tensor) -> RecordLosses:
        """``mean_l −log p(y_l)``, p the logistic function of a logit."""
        return LogisticLosses(logits, labels)

    def predict(self, logits: Tensor) -> Tensor:
        """The probability that each label holds, [rows, outputs]."""
        return torch.sigmoid(logits)


class LogisticLosses:
    """The losses of `MultiLabel`: ``values`` [rows], with their slopes."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        truth = labels.repeat(len(logits) // len(labels), 1)
        self.values = binary_cross_entropy_with_logits(logits, truth, reduction="none").mean(1)
        self._excess = (torch.sigmoid(logits) - truth) / logits.shape[1]
        self._right = ((logits > 0) == (truth > 0)).all(1)

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """``weights_i · ∂loss_i/∂logits_i`` of the rows of one point, shape [records, outputs]."""
        scale = weights.unsqueeze(1) if isinstance(weights, Tensor) else weights
        return self._excess[rows] * scale

    def correct(self, rows: slice) -> int | Tensor:
        """How many of those rows have every label predicted right; on a card, which ones."""
        right = self._right[rows]
        return int(right.sum()) if right.is_cpu else right


class WeightedLosses:
    """Losses and slopes that are multiplied by a weight of each record.

    Replies are made of the weighted ones, and clipped afterwards.
    """

    def __init__(self, losses: RecordLosses, weights: Tensor) -> None:
        """``weights`` are ≥ 0, float32 [records]; a record of weight 0 counts 0, finite or not."""
        self._losses, self._weights = losses, weights
        of_rows = weights.repeat(len(losses.values) // len(weights))
        self.values: Tensor = torch.where(of_rows == 0, of_rows, losses.values * of_rows)

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """Slopes of the losses, times both weights."""
        return self._losses.slopes(rows, self._weights * weights)

    def correct(self, rows: slice) -> int | Tensor:
        """How many of those rows are predicted right; weights do not count."""
        return self._losses.correct(rows)


def blank_labels(task: Task, records: int) -> Tensor:
    """Zeros of the shape and type of the labels of so many records."""
    if isinstance(task, MultiLabel):
        return torch.zeros(records, task.outputs)
    return torch.zeros(records, dtype=torch.int64 if isinstance(task, Classification) else None)


def log_weights(weights: Tensor) -> Tensor:
    """log w of class weights, float32 [classes]; weights below 1e-12, as 0, count as 1e-12."""
    return weights.clamp(min=1e-12).log()


Task: TypeAlias = Classification | MultiLabel | Regression
RecordLosses: TypeAlias = (
    SoftmaxLosses
    | CardSoftmaxLosses
    | FlippedLosses
    | LogisticLosses
    | SquaredLosses
    | WeightedLosses
)
