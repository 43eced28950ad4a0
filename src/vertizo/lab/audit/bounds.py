"""A lower bound on ε from samples of what an observer saw in two neighbouring worlds.

If a mechanism is (ε, δ)-DP, no event S may have ``P₁(S) > e^ε P₀(S) + δ``, nor the same with the
worlds exchanged. So each event that an observer can name gives ``ε ≥ ln((P₁(S) − δ) / P₀(S))``, and
samples of both worlds give bounds on the two probabilities (Clopper and Pearson 1934) and with them
a bound on ε at a stated confidence (Jagielski, Ullman and Oprea 2020). Nothing is assumed about the
mechanism or its noise, only that trials are independent.

The event is a threshold on a number, the statistic. It is chosen on the first half of the trials,
and so are the weights where the observer saw several numbers in a trial; the bound is taken on the
other half, which had no part in the choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy
from scipy.special import betaincinv

from vertizo.core.errors import ConfigError
from vertizo.core.validate import fraction

Side = Literal["at least", "below"]
np: Any = numpy
"""Untyped: what mypy makes of NumPy's operators depends on the order it takes modules in."""
Array = Any
"""A NumPy array of float64."""
Counts = Any
"""An int or an array of integers."""

FEWEST = 20
"""Smallest number of trials of each world; fewer cannot show anything."""


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε that holds with probability ``confidence``."""

    epsilon: float
    delta: float
    confidence: float
    threshold: float
    """Threshold of the event: the statistic is at least this, or below it (see ``side``)."""
    side: Side
    likelier_in: int
    """The world in which the event is likelier, 0 or 1."""
    trials: int
    """Number of all trials of each world."""
    counted: int
    """Number of trials of each world that the bound was taken on."""
    hits: int
    """Counted trials of the likelier world that were in the event (true positives)."""
    false_hits: int
    """Counted trials of the other world that were in the event (false positives)."""


def rate_at_least(hits: Counts, trials: int, error: float) -> Array:
    """Clopper-Pearson lower bound on a probability, wrong with probability ``error`` at most."""
    counted = np.asarray(hits, np.float64)
    inside = betaincinv(np.maximum(counted, 1), trials - counted + 1, error)
    return np.where(counted > 0, inside, 0.0)


def rate_at_most(hits: Counts, trials: int, error: float) -> Array:
    """Clopper-Pearson upper bound on a probability, wrong with probability ``error`` at most."""
    counted = np.asarray(hits, np.float64)
    inside = betaincinv(counted + 1, np.maximum(trials - counted, 1), 1 - error)
    return np.where(counted < trials, inside, 1.0)


def epsilon_at_least(
    hits: Counts, false_hits: Counts, trials: int, delta: float, confidence: float
) -> Array:
    """Bound ε from below by the counts of one event in both worlds; −∞ where they show nothing.

    Each of the two bounds on probabilities may be wrong with probability (1 − confidence) / 2.
    """
    error = (1 - confidence) / 2
    low, high = rate_at_least(hits, trials, error), rate_at_most(false_hits, trials, error)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(low > delta, np.log(np.maximum(low - delta, 0) / high), -np.inf)


def lower_bound(
    world0: Array, world1: Array, *, delta: float, confidence: float = 0.95
) -> LowerBound:
    """Bound ε at ``delta`` from below by what was seen in trials of each world.

    Args:
        world0, world1: statistics of as many trials of each world, in the order of the trials:
            [trials], or [trials, numbers] if several numbers were seen in each.
        confidence: probability with which the bound must hold.

    Raises:
        ConfigError: there are too few trials, or the confidence is outside (0, 1).
    """
    fraction("confidence", confidence)
    seen0, seen1 = (np.asarray(w, np.float64).reshape(len(w), -1) for w in (world0, world1))
    trials = len(seen0)
    assert seen1.shape == seen0.shape
    if trials < FEWEST:
        raise ConfigError(f"trials is {trials}; use at least {FEWEST} of each label")
    half = trials // 2
    weights = discriminant(seen0[:half], seen1[:half])
    scores0, scores1 = seen0 @ weights, seen1 @ weights
    threshold, side, world = _event(scores0[:half], scores1[:half], delta, confidence)
    above = [int((scores[half:] >= threshold).sum()) for scores in (scores0, scores1)]
    counted = trials - half
    counts = above if side == "at least" else [counted - count for count in above]
    hits, false_hits = counts[world], counts[1 - world]
    epsilon = float(epsilon_at_least(hits, false_hits, counted, delta, confidence))
    return LowerBound(
        epsilon=max(epsilon, 0.0),
        delta=delta,
        confidence=confidence,
        threshold=threshold,
        side=side,
        likelier_in=world,
        trials=trials,
        counted=counted,
        hits=hits,
        false_hits=false_hits,
    )


def discriminant(seen0: Array, seen1: Array) -> Array:
    """Compute Fisher's weights, which separate two normal samples of a common covariance best.

    A single number has weight 1.
    """
    if seen0.shape[1] == 1:
        return np.ones(1)
    between = seen1.mean(0) - seen0.mean(0)
    scale = np.concatenate([seen0 - seen0.mean(0), seen1 - seen1.mean(0)]).std(0)
    scale = np.where(scale > 0, scale, 1.0)
    within = sum(np.cov((seen / scale).T, bias=True) for seen in (seen0, seen1)) / 2
    # A number that never varies has no variance to divide by; the ridge keeps it finite.
    weights = np.linalg.solve(within + 1e-9 * np.eye(len(scale)), between / scale)
    return np.asarray(weights / scale, np.float64)


def _event(
    world0: Array, world1: Array, delta: float, confidence: float
) -> tuple[float, Side, int]:
    """Choose the event with the largest bound: its threshold, side, and likelier world.

    Thresholds lie halfway between neighbouring values. One false hit is added to those counted:
    the best of many thresholds owes some of its lead to luck, which other trials do not repeat.
    """
    values = np.unique(np.concatenate([world0, world1]))
    thresholds = (values[1:] + values[:-1]) / 2 if len(values) > 1 else values
    trials = len(world0)
    below = [np.searchsorted(np.sort(world), thresholds) for world in (world0, world1)]
    best = -math.inf
    found: tuple[float, Side, int] = float(thresholds[0]), "at least", 1
    sides: dict[Side, Any] = {"at least": [trials - count for count in below], "below": below}
    for side, counts in sides.items():
        for world in (0, 1):
            expected = np.minimum(counts[1 - world] + 1, trials)
            scores = epsilon_at_least(counts[world], expected, trials, delta, confidence)
            place = int(scores.argmax())
            if scores[place] > best:
                best, found = float(scores[place]), (float(thresholds[place]), side, world)
    return found
