"""Bounds for a person with k training records, from the bounds for one record.

Defined in docs/mathematics.md, Several records of one person. All k records are replaced together.

* *Gaussian releases.* Release j moves by ``Σ_i s_ij`` at most, ``s_ij`` what record i may move it.
  ``μ² = Σ_j (Σ_i s_ij)²/σ_j² ≤ (Σ_i μ_i)²`` by Minkowski's inequality: kμ. Clients choose batches,
  and may put all k into each: it is attained.
* *Randomised response.* Labels are drawn independently: kε, attained where all are exchanged.
* *Steps on secret samples.* Two bounds hold, and the smaller is taken; neither is tight. (ε', δ')
  of one record, k times in a row, is kε' at ``δ' (e^{kε'} − 1)/(e^{ε'} − 1)``. And whoever is told
  which samples the person's records are in, j_t of them in sample t, sees Gaussian releases of
  ``μ² = (2/z)² Σ j_t²``; the sum passes a bound by Chernoff's with a chance that δ pays for.
* *Noise on a grid* differs from Gaussian noise in k times as many numbers as for one record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from vertizo.privacy.accounting import label_advantage
from vertizo.privacy.accounting.events import Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import delta_of, epsilon_of
from vertizo.privacy.accounting.guarantee import COARSE, composed, cut_off, rough_mu
from vertizo.privacy.clipping import moved
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.statement import Statement

GRID = 1e-6
"""Allowance for the fine grid of a teacher's noise, as a share of its μ and of its ε."""
SHARE = 0.01
"""Share of δ given to samples with more of the person's records than is counted on."""
RATES = np.geomspace(1e-4, 10.0, 200)
"""Rates that are tried in Chernoff's bound; any of them holds."""
RARE = 1e-6
"""What such samples may add to a label advantage."""
HALVINGS = 40
MOST = 50.0
"""Largest ε of one record that is tried to find that of a group."""


@dataclass(frozen=True)
class Persons:
    """How many training records one person has at most, and how that is known."""

    records: int
    known: str


def of_person(statement: Statement, releases: Releases | None, persons: Persons) -> Statement:
    """The statement with the bounds for a person added, if it states an ε."""
    count, epsilon, advantage = persons.records, statement.epsilon, statement.label_advantage
    if epsilon is None or statement.delta is None:
        return statement
    words = statement.words
    if count > 1:
        bound, most = _several(statement, releases, count)
        epsilon = max(bound, epsilon)
        alone = 1.0 if advantage is None else count * advantage  # distances add up
        found = label_advantage.approximate(epsilon, statement.delta)
        advantage = min(1.0, most, alone, found)
        words += (
            f" For a person with up to {count:,} of these records ({persons.known}): "
            f"ε = {bound_text(epsilon)}, label advantage at most "
            f"{label_advantage.text(advantage)}."
        )
    return replace(
        statement,
        words=words,
        records_per_person=count,
        epsilon_per_person=epsilon,
        label_advantage_per_person=advantage,
    )


def _several(statement: Statement, releases: Releases | None, count: int) -> tuple[float, float]:
    """ε and a bound of the label advantage for ``count`` records together."""
    assert statement.epsilon is not None
    assert statement.delta is not None
    if releases is not None:
        epsilon = epsilon_of_releases(releases, statement.delta, count)
        return epsilon, _advantage(releases, count)
    if statement.mu is None:  # of labels by randomised response
        return count * statement.epsilon, 1.0
    mu = count * statement.mu * (1 + GRID)  # of a teacher's only release
    return epsilon_of(mu, statement.delta) * (1 + GRID), delta_of(mu, 0.0)


def _advantage(releases: Releases, count: int) -> float:
    """See `label_advantage.of_releases`; for ``count`` records together."""
    rare = RARE if releases.secret else 0.0
    alone = delta_of(_mu(releases, count, rare), 0.0) + rare
    if releases.grid is None:
        return alone
    return releases.grid.times(count).delta(lambda at: alone - math.expm1(at), 0.0)


def epsilon_of_releases(releases: Releases, delta: float, count: int) -> float:
    """ε at δ for ``count`` records that are replaced together.

    >>> from vertizo.privacy.accounting.events import GaussianRelease
    >>> once = Releases(1, 1, GaussianRelease(1.0, 2 / 0.268051123))  # ε = 1 at δ = 1e-5
    >>> round(epsilon_of_releases(once, 1e-5, 21), 1)
    39.1
    """

    def gaussian(at: float) -> float:
        if releases.secret is None:
            return epsilon_of(count * releases.known_mu, at)
        told = epsilon_of(_mu(releases, count, SHARE * at), (1 - SHARE) * at)
        return min(told, _in_a_row(releases.known_mu, releases.secret, at, count))

    if releases.grid is None:
        return gaussian(delta)
    return releases.grid.times(count).epsilon(gaussian, delta)


def _mu(releases: Releases, count: int, rare: float) -> float:
    """μ of all ``count`` records, but for a chance ``rare`` where there are secret steps."""
    from scipy.special import logsumexp
    from scipy.stats import binom

    known, secret = count * releases.known_mu, releases.secret
    if secret is None:
        return known
    there = np.arange(count + 1)
    chances = binom.logpmf(there, count, secret.sampling)
    exponents = [float(logsumexp(chances + rate * there**2)) for rate in RATES]
    told = (secret.count * np.array(exponents) - math.log(rare)) / RATES
    most = min(float(told.min()), secret.count * count**2)
    return math.hypot(known, moved(1.0) * math.sqrt(most) / secret.noise_multiplier)


def _in_a_row(mu: float, secret: SecretSteps, delta: float, count: int) -> float:
    """ε by k replacements in a row: kε' of the least ε' whose grown δ' is at most δ; else ∞."""
    steps = (secret,)
    found = composed(mu, steps, COARSE * min(max(rough_mu(mu, steps), 0.01), 10.0))

    def fits(one: float) -> bool:
        rate = float(found.get_delta(one)) + (1 + math.exp(one)) * math.exp(cut_off(steps))
        if rate <= 0:
            return True
        grown = count * one + math.log(-math.expm1(-count * one)) - math.log(math.expm1(one))
        return math.log(rate) + grown <= math.log(delta)

    low, high = 0.0, 1e-3
    while not fits(high):
        low, high = high, 2 * high
        if high > MOST:
            return math.inf
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return count * high
