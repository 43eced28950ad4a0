"""Compose the privacy cost of all trials of a search, as ε at one δ.

Every trial is a run with noise of its own, so that all their releases compose exactly: releases
from batches that clients know by adding μ², secret steps by their privacy loss distributions
(`vertizo.privacy.accounting.guarantee`). A trial that is stopped early counts whole: whether it is
stopped depends on the records, while the releases that a bound covers are fixed beforehand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import reduce
from operator import add

from scipy.optimize import brentq

from vertizo.core.errors import ConfigError
from vertizo.privacy.accounting.events import Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import compose, epsilon_of, mu_of
from vertizo.privacy.accounting.guarantee import joined_epsilon

ALIKE = 1e-9
"""Largest relative difference that rounding may make between equal releases."""
MOST_LOSS = 5.0
"""Largest natural logarithm of the ratio of a trial's share under Gaussian noise to its ε."""


def together(trials: Sequence[Releases], delta: float) -> float:
    """Return ε at δ of several runs' releases on the same records; infinite if none is known."""
    mu = compose(trial.known_mu for trial in trials)
    counts: Counter[tuple[float, float]] = Counter()  # steps of one kind are counted together
    for steps in (trial.secret for trial in trials if trial.secret is not None):
        counts[steps.sampling, steps.noise_multiplier] += steps.count
    secret = tuple(SecretSteps(count, q, z) for (q, z), count in sorted(counts.items()))
    grids = [trial.grid for trial in trials if trial.grid is not None]

    def gaussian(at: float) -> float:
        return joined_epsilon(mu, secret or None, at)

    return reduce(add, grids).epsilon(gaussian, delta) if grids else gaussian(delta)


def are_alike(one: Releases, other: Releases) -> bool:
    """Whether two runs' releases have equal privacy parameters, up to rounding; not their clips."""

    ours, theirs = (
        (of.known_mu, *(astuple(of.secret) if of.secret is not None else ())) for of in (one, other)
    )
    close = (math.isclose(a, b, rel_tol=ALIKE) for a, b in zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(close) and one.grid == other.grid


def share_of(total: float, delta: float, trials: int) -> float:
    """Return the ε of each of several equal Gaussian trials whose ε together is ``total``.

    >>> round(share_of(1.0, 1e-5, 1), 6)
    1.0
    """
    return epsilon_of(mu_of(total, delta) / math.sqrt(trials), delta)


def calibrate(
    total: float, delta: float, trials: int, planned: Callable[[float], Sequence[Releases]]
) -> float:
    """Find the largest ε of each trial at which all of them together stay within ``total`` at δ.

    ``planned`` returns the releases of all trials for an ε of each. ConfigError if no ε is small
    enough, or it leaves nothing to train with.
    """

    def excess(log_epsilon: float) -> float:
        return together(planned(math.exp(log_epsilon)), delta) - total

    found = math.log(share_of(total, delta, trials))
    if excess(found) > 0:
        low = found - 0.05
        while excess(low) > 0:
            low -= 2 * (found - low)
            if low < found - MOST_LOSS:
                raise ConfigError(
                    f"no epsilon of a trial brings {trials} of them to {total:g} at delta "
                    f"{delta:g}; use fewer trials or a larger --total-epsilon"
                )
        found = float(brentq(excess, low, found, xtol=1e-3))
        while excess(found) > 0:
            found -= 1e-3
    epsilon = math.exp(found)
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 4)
    return float(f"{math.floor(epsilon / unit) * unit:.4e}")  # five digits, never more
