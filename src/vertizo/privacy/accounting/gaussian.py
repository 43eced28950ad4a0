"""Gaussian differential privacy in exact form (Dong, Roth and Su 2022).

A mechanism that adds ``N(0, σ² I)`` to a quantity of L2 sensitivity ``s`` is μ-GDP with
``μ = s/σ``; adaptive composition adds squares, ``μ² = Σ μ_i²``, without loss. ``μ`` and ``(ε, δ)``
determine each other by ``δ(ε; μ) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from vertizo.core.errors import ConfigError
from vertizo.core.validate import fraction, non_negative, positive

UNIT = 1e-12
"""μ² of one unit of spending: whole units make sums of any length exact."""
MOST_EPSILON = 1e6
"""Largest ε that noise is calibrated for: beyond it, floating point has no μ."""


def units(mu: float) -> int:
    """The spending of a μ-GDP release, in units, rounded up."""
    return math.ceil(mu * mu / UNIT)


def mu_of_units(spent: int) -> float:
    """μ of that many units of spending."""
    return math.sqrt(spent * UNIT)


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest δ at which a μ-GDP mechanism is (ε, δ)-DP."""
    from scipy.special import log_ndtr  # here, since it takes long to import

    if mu < 1e-100:
        return 0.0
    first = log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(-math.exp(first) * math.expm1(min(second - first, 0.0)))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε at which a μ-GDP mechanism is (ε, δ)-DP.

    >>> round(epsilon_of(1.0, 1e-5), 6)
    4.377178
    """
    from scipy.optimize import brentq

    non_negative("mu", mu)
    fraction("delta", delta)
    if mu == 0 or delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return float(brentq(lambda x: delta_of(mu, x) - delta, 0.0, high, xtol=1e-12, rtol=1e-14))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ at which a μ-GDP mechanism is (ε, δ)-DP. ConfigError above `MOST_EPSILON`.

    >>> round(mu_of(1.0, 1e-5), 6)
    0.268051
    """
    from scipy.optimize import brentq

    positive("epsilon", epsilon)
    fraction("delta", delta)
    if epsilon > MOST_EPSILON:
        raise ConfigError(
            f"epsilon is {epsilon:g}, which protects nothing; use at most {MOST_EPSILON:g}"
        )
    high = 1.0
    while delta_of(high, epsilon) < delta:
        high *= 2
    low = high
    while delta_of(low, epsilon) > delta:
        low /= 2
    return float(brentq(lambda x: delta_of(x, epsilon) - delta, low, high, xtol=1e-15, rtol=1e-14))


def compose(mus: Iterable[float]) -> float:
    """μ of several Gaussian mechanisms in a row, chosen adaptively or not."""
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def noise_std_for(sensitivity: float, epsilon: float, delta: float, participations: int) -> float:
    """σ at which ``participations`` releases of one record are together (ε, δ)-DP.

    >>> sigma = noise_std_for(sensitivity=10.0, epsilon=1.0, delta=1e-5, participations=100)
    >>> round(epsilon_of(compose([10.0 / sigma] * 100), 1e-5), 9)
    1.0
    """
    positive("sensitivity", sensitivity)
    positive("participations", participations)
    return sensitivity * math.sqrt(participations) / mu_of(epsilon, delta)


def published_mu(noise_std: float, clip_norm: float, rounds: float, sampling: float) -> float:
    """μ as DPZV's theorem has it, ``2C√T·B / (D σ)`` with σ on the sum; it does not hold.

    The formula multiplies by the sampling rate B/D, though whoever draws the batch knows who is in
    it. It is offered for comparison with published figures only. The paper's own σ is on the mean,
    σ/B; T are all queries of all clients whose noise it is.
    """
    positive("noise_std", noise_std)
    return 2 * clip_norm * math.sqrt(rounds) * sampling / noise_std


def published_noise_std(clip_norm: float, mu: float, rounds: float, sampling: float) -> float:
    """σ on the sum at which `published_mu` finds μ; it gives less privacy than it says."""
    positive("mu", mu)
    return published_mu(1.0, clip_norm, rounds, sampling) / mu
