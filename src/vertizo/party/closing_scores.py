"""The figures of a finished model on test records; the first one with its interval.

Figures are scikit-learn's where it has them. Intervals are percentiles of a bootstrap: test records
are drawn with replacement, positives and others apart where two classes are ranked (so that a rare
class is never absent), by one stream that is the same in all runs. They say how much the figure
depends on who was in the test set; what depends on the training's seed, only other seeds show.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.models.losses import Classification, Huber, MultiLabel, Quantile, Regression, Task
from vertizo.party.metrics import Scores, ranking, scores, varying

LEVEL = 0.95
MOST_RESAMPLES, LEAST_RESAMPLES = 1000, 100
MOST_DRAWS = 20_000_000
"""Draws of all resamples together, at most: larger test sets have fewer resamples."""
AT_ONCE = 2_000_000
"""Draws that are in memory together."""
TOP = 0.1
"""The share of records with the highest scores that lift is about."""
THRESHOLD = 0.5
"""The probability from which on a record counts as positive."""

Array = NDArray[np.float64]


def resamples(rows: int) -> int:
    """The number of bootstrap resamples for an interval over so many test records."""
    return max(LEAST_RESAMPLES, min(MOST_RESAMPLES, MOST_DRAWS // max(rows, 1)))


def closing_scores(task: Task, logits: Tensor, labels: Tensor) -> Scores:
    """The figures of `vertizo.party.metrics.scores`, and those of a finished run alone.

    Two classes: ``auc_low`` and ``auc_high``, ``gini`` (2 AUC − 1), ``ks`` (the largest difference
    between the shares of positives and of others above a threshold), ``lift_10`` and ``recall_10``
    (of the tenth with the highest scores: share of positives in it over that in all, and share of
    all positives), ``brier``, and ``precision``, ``recall`` and ``f1`` at probability 0.5. More
    classes: ``accuracy_low`` and ``accuracy_high``, ``balanced_accuracy``, ``f1_macro`` and, where
    all classes occur, ``auc_macro`` (each class against the rest). Regression: ``mae``, and
    ``rmse_low`` and ``rmse_high``, in the labels' own units, or those of ``huber`` or ``pinball``;
    of a quantile ``below``, the share of labels that are not above their predictions. Several
    labels: ``auc_low`` and ``auc_high`` of the mean over labels, ``f1_macro``, ``brier`` (its mean)
    and ``auc_1``, ``auc_2``, ... of each label of which both values occur.
    """
    found = dict(scores(task, logits, labels))
    if not math.isfinite(found["loss"]):
        return found
    if isinstance(task, MultiLabel):
        return found | _of_labels(task, logits, labels)
    if not isinstance(task, Classification):
        return found | _of_values(task, logits, labels)
    return found | (_of_two if task.outputs == 2 else _of_many)(task, logits, labels)


def headline(task: Task) -> str:
    """The name, among the scores, of the figure that `resampled` gives."""
    if isinstance(task, MultiLabel):
        return "auc"
    if isinstance(task, Classification):
        return "auc" if task.outputs == 2 else "accuracy"
    if isinstance(task, Quantile):
        return "pinball"
    return "huber" if isinstance(task, Huber) else "rmse"


def resampled(task: Task, logits: Tensor, labels: Tensor) -> Array:
    """The `headline` figure of every resample, [resamples].

    Resamples of the same labels are the same for all logits, so that differences between models are
    paired. Two classes must both occur in ``labels``, of several labels some must have both values.
    """
    if isinstance(task, MultiLabel):
        return _mean_aucs(labels.numpy() > 0, logits.double().nan_to_num().numpy(), varying(labels))
    if isinstance(task, Classification):
        if task.outputs == 2:
            return _aucs(*_sorted_by(*ranking(task, logits, labels)))
        return _means((labels.numpy() == logits.numpy().argmax(1)).astype(np.float64))
    means = _means(task.losses(logits, labels).values.double().numpy())
    if isinstance(task, Quantile):
        return means * task.spread
    return means * task.spread**2 if isinstance(task, Huber) else task.spread * np.sqrt(2 * means)


def _ends(task: Task, logits: Tensor, labels: Tensor) -> dict[str, float]:
    name, (low, high) = headline(task), interval(resampled(task, logits, labels))
    return {f"{name}_low": low, f"{name}_high": high}


def _of_values(task: Regression, logits: Tensor, labels: Tensor) -> dict[str, float]:
    errors = (task.predict(logits) - labels).double().numpy()
    found = {"mae": float(np.abs(errors).mean())}
    if isinstance(task, Quantile):
        found["below"] = float((errors >= 0).mean())
    return found | _ends(task, logits, labels)


def _of_two(task: Classification, logits: Tensor, labels: Tensor) -> dict[str, float]:
    from sklearn.metrics import brier_score_loss, precision_recall_fscore_support, roc_curve

    positive, margin = ranking(task, logits, labels)
    if positive.all() or not positive.any():
        return {}
    likely = task.predict(logits)[:, task.positive].double().numpy()
    false, true, _ = roc_curve(positive, margin, drop_intermediate=False)
    precision, recall, f1, _ = precision_recall_fscore_support(
        positive, likely > THRESHOLD, average="binary", zero_division=0.0
    )
    caught, size = _in_the_top(positive, margin)
    return _ends(task, logits, labels) | {
        "gini": 2 * float(_auc(*_sorted_by(positive, margin))[0]) - 1,
        "ks": float(np.max(true - false)),
        "lift_10": caught / size / float(positive.mean()),
        "recall_10": caught / int(positive.sum()),
        "brier": float(brier_score_loss(positive, likely)),
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(f1),
    }


def _of_labels(task: MultiLabel, logits: Tensor, labels: Tensor) -> dict[str, float]:
    from sklearn.metrics import f1_score, roc_auc_score

    truth, likely = labels.numpy() > 0, task.predict(logits).double().numpy()
    found = {
        "f1_macro": float(f1_score(truth, likely > THRESHOLD, average="macro", zero_division=0.0)),
        "brier": float(np.square(likely - truth).mean()),
    }
    if not len(places := varying(labels)):
        return found
    margins = logits.double().nan_to_num().numpy()
    for place in places.tolist():
        found[f"auc_{place + 1}"] = float(roc_auc_score(truth[:, place], margins[:, place]))
    return found | _ends(task, logits, labels)


def _of_many(task: Classification, logits: Tensor, labels: Tensor) -> dict[str, float]:
    from sklearn.metrics import f1_score, recall_score, roc_auc_score

    truth, predicted = labels.numpy(), logits.numpy().argmax(1)
    there = np.unique(truth)
    macro = {"average": "macro", "zero_division": 0.0}
    found = _ends(task, logits, labels) | {
        "balanced_accuracy": float(recall_score(truth, predicted, labels=there, **macro)),
        "f1_macro": float(f1_score(truth, predicted, labels=there, **macro)),
    }
    if len(there) == task.outputs:
        likely = task.predict(logits.double()).numpy()
        found["auc_macro"] = float(roc_auc_score(truth, likely, multi_class="ovr"))
    return found


def _in_the_top(positive: NDArray[np.bool_], margin: Array) -> tuple[float, int]:
    """Positives among the `TOP` of scores, and how many records those are; ties share places."""
    size = max(1, round(TOP * len(margin)))
    last = np.partition(margin, -size)[-size]
    above, at = margin > last, margin == last
    share = (size - int(above.sum())) / int(at.sum())
    return float(positive[above].sum() + share * positive[at].sum()), size


def _sorted_by(positive: NDArray[np.bool_], margin: Array) -> tuple[NDArray[np.int64], ...]:
    """Places of the positives' and of the others' scores among all different scores, from 0."""
    places = np.unique(margin, return_inverse=True)[1].reshape(-1)
    return places[positive], places[~positive]


def _auc(seen: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
    """The area under the ROC curve, from places [rows], or [resamples, rows] of many resamples."""
    levels = int(max(seen.max(), others.max())) + 1
    return _areas(*(_counts(np.atleast_2d(each), levels) for each in (seen, others)))


def _counts(
    places: NDArray[np.int64], levels: int, which: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """How often each place is there, among ``which`` of them, [resamples, levels]."""
    flat = places + levels * np.arange(len(places))[:, None]
    counted = flat.ravel() if which is None else flat[which]
    return np.bincount(counted, minlength=levels * len(places)).reshape(len(places), levels)


def _areas(ahead: NDArray[np.int64], behind: NDArray[np.int64]) -> Array:
    """The areas under ROC curves by `_counts` of two classes; NaN where one of them is empty."""
    below = np.cumsum(behind, 1) - behind / 2
    with np.errstate(invalid="ignore"):
        found: Array = (ahead * below).sum(1) / (ahead.sum(1) * behind.sum(1))
    return found


def _aucs(seen: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
    """The area under the ROC curve of every resample."""
    size = len(seen) + len(others)
    return _over(
        size, lambda drawn, some: _auc(_drawn(drawn, seen, some), _drawn(drawn, others, some))
    )


def _mean_aucs(truth: NDArray[np.bool_], margins: Array, places: NDArray[np.intp]) -> Array:
    """The mean over some labels of the area under the ROC curve, of every resample of records.

    A label of which a resample has one value only is left out of its mean.
    """
    ranks = [np.unique(each, return_inverse=True)[1] for each in margins.T[places]]

    def of(generator: np.random.Generator, some: int) -> Array:
        rows, each = generator.integers(0, len(truth), (some, len(truth))), []
        for held, rank in zip(truth.T[places], ranks, strict=True):
            drawn, is_held = rank[rows], held[rows]
            counts = (_counts(drawn, len(truth), which) for which in (is_held, ~is_held))
            each.append(_areas(*counts))
        shown = np.stack(each)
        found: Array = np.nansum(shown, 0) / np.maximum((~np.isnan(shown)).sum(0), 1)
        return found

    return _over(len(truth), of)


def _means(values: Array) -> Array:
    """The mean of every resample."""
    return _over(len(values), lambda drawn, some: _drawn(drawn, values, some).mean(1))


def _over(rows: int, statistic: Callable[[np.random.Generator, int], Array]) -> Array:
    """A statistic of all resamples of ``rows`` records, computed some resamples at a time."""
    generator = Stream.from_seed(0).child("bootstrap of test records").generator()
    wanted, most = resamples(rows), max(1, AT_ONCE // max(rows, 1))
    return np.concatenate(
        [statistic(generator, min(most, wanted - begun)) for begun in range(0, wanted, most)]
    )


def _drawn(generator: np.random.Generator, values: NDArray, some: int) -> NDArray:  # type: ignore[type-arg]
    """Values drawn with replacement, [resamples, rows]."""
    return values[generator.integers(0, len(values), (some, len(values)))]


def interval(found: Array) -> tuple[float, float]:
    """The ends of the interval that holds the middle `LEVEL` of resampled figures."""
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
