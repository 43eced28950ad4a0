"""ε of everything that leaves the server, and the noise that a wanted ε asks for.

Releases from batches that clients know compose as Gaussian DP, ``μ² = Σ μ_i²``, exactly and under
full adaptivity: their sum is a filter (Smith and Thakurta 2022; for each record: Koskela, Tobaben
and Honkela 2023). Steps on secret samples are composed by their privacy loss distribution
(``dp_accounting``, replace-one, pessimistic rounding). Both together are ``G_μ ⊗ PLD``, in whatever
order clients make the two alternate (concurrent composition, Vadhan and Zhang 2023).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from vertizo.core.errors import ConfigError
from vertizo.core.validate import fraction, positive
from vertizo.privacy.accounting.events import Charges, GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import UNIT, epsilon_of, mu_of, mu_of_units
from vertizo.privacy.clipping import moved

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

FINE = 1e-4
"""Grid step of privacy loss distributions, as a share of ε; rounding to it counts as spent."""
COARSE = 1e-3
"""The same while a root is searched."""
TAIL = 1e-25
"""Probability, at most, that a secret sample is larger than `capacity` and loses some records."""
LARGEST_MU = 200.0
"""Largest `rough_mu` that is composed on a grid, whose size grows with its square."""
LARGEST_EPSILON = 20.0
"""Largest ε for secret steps: up to it the cost of a cut-off sample (`TAIL`) is negligible."""
MOST_LOG_NOISE = 25.0
"""Log of the noise beyond which more changes nothing: a sample may still be too large."""
LEAST_LOG_NOISE = -7.0
"""Log of the least noise, a thousandth of the clip: as good as none."""


def epsilon(releases: Releases, delta: float) -> float:
    """The ε that holds for one record against all clients together, at δ."""
    return _epsilon(releases, releases.known_mu, releases.secret, delta, FINE)


def epsilon_so_far(releases: Releases, delta: float, *, named: int, steps: int) -> float:
    """ε of a run's first releases, rounded to the safe side; at most that of all of them.

    ``named`` is the most answered queries, of all clients together, that named one record;
    ``steps`` are the secret steps that were made.
    """
    secret = replace(releases.secret, count=steps) if releases.secret and steps else None
    mu = replace(releases, clients=1, queries=named).known_mu if named else 0.0
    return _epsilon(releases, mu, secret, delta, COARSE) if named or secret else 0.0


def epsilon_charged(releases: Releases, delta: float, charges: Charges) -> float:
    """ε of what all runs on a ledger were charged, rounded to the safe side.

    Charges are exact: they are counted query by query, before a reply leaves. What noise on a grid
    adds is counted for whole runs from the first reply on.
    """
    units, steps, runs, most = charges
    releases = replace(releases, grid=releases.grid and releases.grid.times(runs))
    secret = replace(releases.secret, count=steps) if releases.secret and steps else None
    found = _epsilon(releases, mu_of_units(units), secret, delta, COARSE) if units or steps else 0.0
    return min(found, most)


def _epsilon(
    releases: Releases, mu: float, secret: SecretSteps | None, delta: float, grid: float
) -> float:
    """`joined_epsilon`, corrected for noise on a grid if these releases have any."""

    def gaussian(at: float) -> float:
        return joined_epsilon(mu, secret, at, grid)

    return gaussian(delta) if releases.grid is None else releases.grid.epsilon(gaussian, delta)


def capacity(records: int, sampling: float) -> int:
    """The size that a sample of rate q from D records exceeds with probability `TAIL` at most."""
    from scipy.stats import binom

    # By halves: the library's own inverse loses so small a tail.
    return bisect_left(range(records), True, key=lambda n: binom.sf(n, records, sampling) <= TAIL)


@lru_cache(maxsize=1024)
def joined_epsilon(
    mu: float,
    secret: SecretSteps | tuple[SecretSteps, ...] | None,
    delta: float,
    grid: float = FINE,
) -> float:
    """ε of μ-GDP releases and secret steps together: ``G_μ ⊗ PLD_s`` at δ.

    Secret steps may be of several kinds, as those of several runs are.

    >>> steps = SecretSteps(count=1000, sampling=0.01, noise_multiplier=1.0)
    >>> round(joined_epsilon(0.5, steps, 1e-5), 2)
    3.61
    """
    fraction("delta", delta)
    if secret is None:
        return epsilon_of(mu, delta)
    # A sample cut off at its capacity is as far from a whole one as cutting off is likely, which
    # costs (1 + e^ε) T_s TAIL of δ; a millionth of δ is set aside for it.
    spare = 1e-6 * delta
    kinds = secret if isinstance(secret, tuple) else (secret,)
    interval = grid * min(max(epsilon_of(rough_mu(mu, kinds), delta), 0.01), 10.0)
    found = float(composed(mu, kinds, interval).get_epsilon(delta - spare))
    lost = math.log1p(math.exp(-found)) + found + cut_off(kinds)
    return found if lost <= math.log(spare) else math.inf


def rough_mu(mu: float, kinds: Sequence[SecretSteps]) -> float:
    """Approximate μ of everything by the central limit theorem: for the choice of a grid alone."""
    each = (moved(1.0) * k.sampling * math.sqrt(k.count) / k.noise_multiplier for k in kinds)
    return math.hypot(mu, *each)


def cut_off(kinds: Sequence[SecretSteps]) -> float:
    """Logarithm of a bound on the chance that any sample exceeds its capacity."""
    return math.log(sum(kind.count for kind in kinds) * TAIL)


def composed(mu: float, kinds: Sequence[SecretSteps], interval: float) -> PLDAccountant:
    """``G_μ ⊗ PLD_s`` on a grid of privacy losses, rounded to the safe side.

    ConfigError if there is so little noise that the losses would fill a machine.
    """
    if (rough := rough_mu(mu, kinds)) > LARGEST_MU:
        raise ConfigError(
            f"the noise is too small for any ε to be computed (μ is about {rough:.3g}; at most "
            f"{LARGEST_MU:g} beside secret steps); use more noise"
        )
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_ONE, value_discretization_interval=interval
    )
    # Under replace-one the library doubles sensitivities itself: noise multipliers are σ/C.
    for kind in kinds:
        step = dp_accounting.GaussianDpEvent(kind.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(kind.sampling, step), kind.count)
    if mu:
        accountant.compose(dp_accounting.GaussianDpEvent(moved(1.0) / mu))
    return accountant


@dataclass(frozen=True)
class Noise:
    """Calibrated noise σ/C, as multiples of each clip.

    ``reply`` is for each number of a reply, ``server`` for the server's own updates or None.
    """

    reply: float
    server: float | None


def calibrate(
    target: float,
    delta: float,
    *,
    clients: int,
    queries: int,
    per_query: int = 1,
    server_share: float = 0.0,
    steps_per_query: float | None = None,
    secret_steps: int = 0,
    sampling: float | None = None,
) -> Noise:
    """The least noise at which everything together is (ε, δ)-DP, found on the accountant itself.

    The share is one of μ²: of the ``μ(ε, δ)²`` that one Gaussian release might spend, the replies
    get ``1 − server_share``, and the server's updates as much noise as brings both to ε.

    Args:
        target: ε.
        delta: δ.
        clients: M.
        queries: k, queries of each client that may name one record: epochs.
        per_query: releases in one reply.
        server_share: in [0, 1); 0 for a server that is not trained.
        steps_per_query: updates on a query's own batch, for each query; None for none.
        secret_steps: T_s, updates on secret samples of rate ``sampling``; 0 for none.

    Raises:
        ConfigError: a number is out of range, or the secret steps alone take more than ε.
    """
    positive("epsilon", target)
    fraction("delta", delta)
    positive("clients", clients)
    positive("queries", queries)
    trains = steps_per_query is not None or secret_steps > 0
    if trains != (server_share > 0) or not 0 <= server_share < 1:
        raise ConfigError(
            f"server_share is {server_share}; it must lie strictly between 0 and 1 for a server "
            "that is trained under noise, and be 0 for any other"
        )
    whole = mu_of(target, delta)
    named = clients * queries
    # Spending is charged in whole units, rounded up: one unit for each query is set aside.
    spendable = whole * whole - named * UNIT
    if spendable <= 0:
        raise ConfigError(
            f"epsilon {target} over {named} queries of a record leaves each less than the "
            f"ledger's unit of {UNIT:g} μ²; use fewer epochs or a larger epsilon"
        )
    reply = moved(1.0) * math.sqrt(named * per_query / ((1 - server_share) * spendable))
    if not trains:
        return Noise(reply, None)
    if steps_per_query is not None:
        step = moved(1.0) * math.sqrt(named * steps_per_query / (server_share * spendable))
        return Noise(reply, step)
    assert sampling is not None
    mu = Releases(clients, queries, GaussianRelease(1.0, reply), per_query=per_query).known_mu
    return Noise(reply, _secret_noise(target, delta, mu, secret_steps, sampling))


def _secret_noise(target: float, delta: float, mu: float, count: int, sampling: float) -> float:
    """The least z at which secret steps together with μ-GDP replies are (ε, δ)-DP.

    The root is searched on a coarse grid of privacy losses and then checked on the fine one.
    """
    from scipy.optimize import brentq

    def excess(log_noise: float, grid: float = COARSE) -> float:
        steps = SecretSteps(count, sampling, math.exp(log_noise))
        return joined_epsilon(mu, steps, delta, grid) - target

    if target > LARGEST_EPSILON:
        raise ConfigError(
            f"epsilon is {target:g}; with secret steps at most {LARGEST_EPSILON:g} is accounted "
            "for, beyond which nothing is protected anyway"
        )
    left = math.sqrt(mu_of(target, delta) ** 2 - mu * mu)
    low = high = math.log(moved(1.0) * sampling * math.sqrt(count) / left)  # the central limit's
    while excess(high) > 0:
        high += 0.25
        if high > MOST_LOG_NOISE:
            raise ConfigError(
                f"no noise brings {count} secret steps and the replies to epsilon {target} at "
                f"delta {delta:g}; use a larger epsilon, delta or server_share"
            )
    while excess(low) <= 0:
        low -= 0.25
        if low < LEAST_LOG_NOISE:
            return math.exp(low)
    found = float(brentq(excess, low, high, xtol=1e-3))
    if excess(found, FINE) < -3e-3 * target:  # many steps make much of a coarse grid's rounding
        low = found - 0.25
        while excess(low, FINE) <= 0:
            low -= 0.25
        found = float(brentq(lambda x: excess(x, FINE), low, found, xtol=1e-3))
    while excess(found, FINE) > 0:  # on the safe side of the root
        found += 1e-3
    return math.exp(found)


@dataclass(frozen=True)
class Views:
    """Bounds on what different observers learn, each an ε at the same δ.

    ``all_clients`` is the guarantee, against everybody together, whatever they do. ``own_replies``
    is for the replies to one client by themselves: it leaves out what reaches that client through
    the other clients' models and the server's, and so is no guarantee against it.
    """

    all_clients: float
    own_replies: float


def views(releases: Releases, delta: float) -> Views:
    """The ε of these releases for each kind of observer."""
    own = releases.reply_mu * math.sqrt(releases.queries)
    return Views(all_clients=epsilon(releases, delta), own_replies=epsilon_of(own, delta))
