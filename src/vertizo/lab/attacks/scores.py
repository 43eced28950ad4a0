"""Score attacks: each figure has a control and, under a guarantee, an upper bound.

A figure without its control means nothing: every `Measurement` carries the success of an attacker
who saw no transcript (the most frequent class, an AUC of one half, the mean predictor), or a
stronger control that the attack names.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Measurement:
    """The figure of one trial, with its control."""

    value: float
    control: float
    """The same figure without what the attack exploits."""
    count: int
    """Number of guesses behind the figure."""
    bound: float | None = None
    """The largest value that the run's guarantee allows; None without one."""
    label_advantage: float | None = None
    """The label advantage that the run's guarantee allows; None without one."""


@dataclass(frozen=True)
class Figure:
    """The measurements of one figure over several trials."""

    measurements: tuple[Measurement, ...]

    @property
    def mean(self) -> float:
        """Mean value over trials."""
        return statistics.fmean(m.value for m in self.measurements)

    @property
    def control(self) -> float:
        """Mean control over trials."""
        return statistics.fmean(m.control for m in self.measurements)

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean; None for a single trial."""
        count = len(self.measurements)
        values = (m.value for m in self.measurements)
        return None if count < 2 else statistics.stdev(values) / math.sqrt(count)

    @property
    def bound(self) -> float | None:
        """The largest bound of a trial; None where no guarantee holds."""
        return max((m.bound for m in self.measurements if m.bound is not None), default=None)

    def __str__(self) -> str:
        error = self.standard_error
        return f"{self.mean:.3f}" if error is None else f"{self.mean:.3f} ± {error:.3f}"

    def as_dict(self) -> dict[str, Any]:
        """Return the mean, its standard error and every trial, for JSON."""
        known = self.measurements
        advantages = [m.label_advantage for m in known if m.label_advantage is not None]
        return {
            "mean": self.mean,
            "standard_error": self.standard_error,
            "control": self.control,
            "trials": [m.value for m in known],
            "controls": [m.control for m in known],
            "guesses": [m.count for m in known],
            **({} if self.bound is None else {"bound": self.bound}),
            **({"label_advantage": max(advantages)} if advantages else {}),
        }


@dataclass(frozen=True)
class Promise:
    """A run's guarantee for labels: the label advantage, and μ if only replies carry noise."""

    label_advantage: float
    mu: float | None = None
    predicts: bool = False
    """Whether the attacker sees a prediction from features. That is often right without revealing
    the record's own label, so that the share of a class does not limit it."""

    def most(self, chance: float) -> float | None:
        """Bound the expected share of right guesses, if the likeliest class has share ``chance``.

        What is seen under another label is within the advantage, in total variation, of what is
        seen under the likeliest one: ``chance + (1 − chance) · advantage``, which randomised
        response reaches where all classes are equally likely. See `most_allowed` for μ.

        None if guesses are predictions.

        >>> Promise(0.462).most(0.5)
        0.731
        """
        if self.predicts:
            return None
        most = chance + (1 - chance) * self.label_advantage
        return most if self.mu is None else min(most, most_allowed(chance, self.mu))


@dataclass(frozen=True)
class Guesses:
    """An attacker's guesses of labels; a record may be guessed more than once."""

    ids: Tensor
    """Record IDs, int64 [guesses]."""
    labels: Tensor
    """Guessed labels, int64 [guesses]."""

    @classmethod
    def joined(cls, parts: Sequence[Guesses]) -> Guesses:
        """Concatenate several sets of guesses."""
        none = torch.zeros(0, dtype=torch.int64)
        ids, labels = ([none, *(getattr(p, of) for p in parts)] for of in ("ids", "labels"))
        return cls(torch.cat(ids), torch.cat(labels))

    def score(self, truth: Tensor, promise: Promise | None = None) -> Measurement:
        """Measure the share of right guesses; the control is the share of the commonest class.

        ``truth`` are the labels of the training records, int64 [D]; ``promise`` is the run's
        guarantee for them, if one holds.
        """
        right = self.labels == truth[self.ids]
        if not right.numel():
            return Measurement(0.0, 0.0, 0)
        chance = float(torch.bincount(truth).max()) / truth.numel()
        promised = (promise.most(chance), promise.label_advantage) if promise is not None else ()
        return Measurement(float(right.double().mean()), chance, right.numel(), *promised)


def most_allowed(chance: float, mu: float) -> float:
    """Bound the expected share of right guesses under a Gaussian mechanism with total parameter μ.

    Each clipped value lies within C of 0, half the sensitivity 2C that μ is made of, so that all
    releases are within a (μ/2)-Gaussian trade-off of releases that do not depend on the label at
    all (Dong, Roth and Su 2022, section 2: trade-off functions and their composition). A test of
    level a has power Φ(Φ⁻¹(a) + μ/2) at most; this is concave in a, and the levels of the guesses
    for one record add up to 1, so that the mean over classes is at most the value at ``chance``,
    the share of the likeliest class. For two equally likely classes it is reached.

    >>> round(most_allowed(0.5, 1.0), 4), round(most_allowed(0.1, 0.0), 4)
    (0.6915, 0.1)
    """
    if not 0 < chance < 1:
        return 1.0
    normal = statistics.NormalDist()
    return normal.cdf(normal.inv_cdf(chance) + mu / 2)


def auc(scores: Tensor, positive: Tensor) -> float:
    """Compute the area under the ROC curve of scores [n] for booleans [n]; 0.5 if a class is empty.

    >>> auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]))
    0.75
    """
    count = int(positive.sum())
    if not 0 < count < positive.numel():
        return 0.5
    from sklearn.metrics import roc_auc_score

    finite = scores.double().nan_to_num(0.0, 1e300, -1e300)
    return float(roc_auc_score(positive.numpy(), finite.numpy()))


def tpr_at(fpr: float, scores: Tensor, positive: Tensor) -> float:
    """Compute the largest true-positive rate at a false-positive rate of at most ``fpr``.

    >>> tpr_at(0.5, torch.tensor([1.0, 3.0, 2.0, 4.0]), torch.tensor([False, False, True, True]))
    1.0
    """
    negatives = scores[~positive].sort(descending=True).values
    allowed = int(fpr * negatives.numel())
    if allowed >= negatives.numel():
        return 1.0
    return float((scores[positive] > negatives[allowed]).double().mean())


def relative_error(guess: Tensor, truth: Tensor, mean: Tensor) -> float:
    """Divide a reconstruction's squared error by the mean predictor's; below 1 is a leak.

    ``guess`` and ``truth`` are [records, numbers]; ``mean`` is the guess without any message.
    """
    without = float((truth - mean).double().square().sum())
    return float((truth - guess).double().square().sum()) / without if without else 1.0
