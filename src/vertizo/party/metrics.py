"""Figures of how good predictions are, and the one of them that chooses a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.models.losses import (
    Classification,
    Huber,
    MultiLabel,
    Quantile,
    RecordLosses,
    Task,
)

Scores = Mapping[str, float]
METRICS = ("auc", "accuracy", "loss")
"""The figures that choose a model: the first of them that a row has."""


def quality(row: Mapping[str, float], of: str = "validation_") -> tuple[float, float]:
    """The key that the best of a run's models is chosen by; larger is better.

    It is the figure of `chosen_by` (the area under the ROC curve for two classes, accuracy for
    more), then, among equals and for a regression, the loss. ``row`` is one of ``metrics.jsonl``;
    its figures' names begin with ``of``.

    >>> quality({"validation_loss": 0.5, "validation_accuracy": 0.9, "validation_auc": 0.7})
    (0.7, -0.5)
    """
    name = chosen_by(row, of)
    first = 0.0 if name == "loss" else row[f"{of}{name}"]
    return first, -row[f"{of}loss"]


def chosen_by(row: Mapping[str, Any], of: str = "validation_") -> str:
    """The name of the figure that chooses models, among those whose names begin with ``of``."""
    return next((name for name in METRICS if row.get(f"{of}{name}") is not None), METRICS[-1])


def ranking(
    task: Classification, logits: Tensor, labels: Tensor
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which records are positive, and by how much that one of two classes is ahead.

    Both [rows], of logits [rows, 2] and labels [rows].
    """
    positive = task.positive
    margin = (logits[:, positive] - logits[:, 1 - positive]).double().nan_to_num()
    return (labels == positive).numpy(), margin.numpy()


def varying(labels: Tensor) -> NDArray[np.intp]:
    """The places of those of several labels [rows, outputs] that have both values."""
    held = labels.sum(0)
    return np.flatnonzero(((held > 0) & (held < len(labels))).numpy())


def _areas(truth: NDArray[Any], margins: NDArray[np.float64]) -> dict[str, float]:
    """The areas under two curves, of labels [rows]; their means over labels [rows, outputs]."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    auc, precision = roc_auc_score(truth, margins), average_precision_score(truth, margins)
    return {"auc": float(auc), "average_precision": float(precision)}


def _right(losses: RecordLosses) -> int:
    """How many records are predicted right."""
    found = losses.correct(slice(None))
    return int(found.sum()) if isinstance(found, Tensor) else found


def scores(task: Task, logits: Tensor, labels: Tensor) -> Scores:
    """Loss and quality of logits [rows, outputs] against labels [rows].

    Classification: ``loss`` (mean cross-entropy, nats) and ``accuracy``; with two classes also
    ``auc`` (area under the ROC curve) and ``average_precision``, where both classes occur.
    Regression: ``loss`` (half the mean squared error, in units of the task's spread), ``rmse`` (in
    the labels' own units) and ``r2``; of a quantile ``pinball`` and of a Huber loss ``huber``, the
    loss in the labels' own units. Several labels [rows, outputs]: ``loss``, ``accuracy`` (of
    records with every label right), ``hamming`` (the share of labels that are wrong), and ``auc``
    and ``average_precision``, means over the labels of which both values occur, if there are any.
    """
    losses = task.losses(logits, labels)
    loss = float(losses.values.mean(dtype=torch.float64))
    rows = len(labels)
    if isinstance(task, MultiLabel):
        right = _right(losses) / rows
        wrong = float(((logits > 0) != (labels > 0)).double().mean())
        result = {"loss": loss, "accuracy": right, "hamming": wrong}
        if not len(places := varying(labels)):
            return result
        margins = logits.double().nan_to_num().numpy()[:, places]
        return result | _areas(labels.numpy()[:, places], margins)
    if not isinstance(task, Classification):
        residual = float((task.predict(logits) - labels).double().square().mean())
        spread = float(labels.double().var(unbiased=False))
        r2 = 1 - residual / spread if spread else float("nan")
        found = {"loss": loss, "rmse": residual**0.5, "r2": r2}
        if isinstance(task, Quantile):
            found["pinball"] = loss * task.spread
        if isinstance(task, Huber):
            found["huber"] = loss * task.spread**2
        return found
    result = {"loss": loss, "accuracy": _right(losses) / rows}
    if task.outputs == 2 and 0 < int(labels.sum()) < rows:
        result |= _areas(*ranking(task, logits, labels))
    return result
