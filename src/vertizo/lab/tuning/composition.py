"""What all trials of a search come to together, as ε at one δ.

Every trial is a run with noise of its own, so that what all of them release composes exactly:
releases from batches that clients know by adding μ², secret steps by their privacy loss
distributions (`vertizo.privacy.accounting.guarantee`). A trial that is stopped early counts whole:
whether it is stopped follows from the records, and what a bound is about is fixed before anything
is seen.
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
"""Relative difference that rounding alone may make between equal releases."""
MOST_LOSS = 5.0
"""Natural logarithm of how much less a trial may get than its share of Gaussian noise."""


def together(trials: Sequence[Releases], delta: float) -> float:
    """ε of runs that may release this of the same records; infinite where none can be shown."""
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
    """Whether two runs release the same, up to the rounding of numbers; a clip is a unit only."""

    ours, theirs = (
        (of.known_mu, *(astuple(of.secret) if of.secret is not None else ())) for of in (one, other)
    )
    close = (math.isclose(a, b, rel_tol=ALIKE) for a, b in zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(close) and one.grid == other.grid


def share_of(total: float, delta: float, trials: int) -> float:
    """ε of each of several alike trials of Gaussian releases that together come to ``total``.

    >>> round(share_of(1.0, 1e-5, 1), 6)
    1.0
    """
    return epsilon_of(mu_of(total, delta) / math.sqrt(trials), delta)


def calibrate(
    total: float, delta: float, trials: int, planned: Callable[[float], Sequence[Releases]]
) -> float:
    """The largest ε of each trial at which all of them, at δ, stay within ``total``.

    ``planned`` says what the trials release when each has an ε. ConfigError if no ε is small
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
