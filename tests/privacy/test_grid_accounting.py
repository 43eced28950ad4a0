"""The bound for noise on a grid: above the truth, and close to it."""

from __future__ import annotations

import itertools
import math
from functools import partial
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.lazy import Lazy

from vertizo.core.errors import ConfigError
from vertizo.privacy.accounting.gaussian import compose, delta_of, epsilon_of
from vertizo.privacy.accounting.grid import GridCorrection

stats = Lazy("scipy.stats")
pld = Lazy("dp_accounting.pld.privacy_loss_distribution")


def gaussian_epsilon(mu: float, correction: GridCorrection, delta: float) -> float:
    return correction.epsilon(partial(epsilon_of, mu), delta)


@pytest.mark.full
def test_scalars_against_privacy_loss_distributions() -> None:
    """dp_accounting brackets the truth from its own side; we are above it, by 1e-3 at most."""
    for scale, shift, releases in [(2000, 200, 1), (2000, 400, 16), (4000, 40, 400)]:
        delta = 1e-5
        bounds = []
        for pessimistic in (False, True):
            one = pld.from_discrete_gaussian_mechanism(
                scale,
                sensitivity=shift,
                value_discretization_interval=1e-4,
                pessimistic_estimate=pessimistic,
                use_connect_dots=pessimistic,
            )
            bounds.append(one.self_compose(releases).get_epsilon_for_delta(delta))
        low, high = bounds
        correction = GridCorrection(((releases, scale),))
        ours = gaussian_epsilon(compose([shift / scale] * releases), correction, delta)
        assert ours >= low
        assert abs(ours - high) < 1e-3


def discrete(scale: float, reach: int) -> NDArray[np.float64]:
    n = np.arange(-reach, reach + 1)
    weights: NDArray[np.float64] = np.exp(-(n**2) / (2 * scale**2))
    return weights / weights.sum()


def exact_delta(scale: int, shifts: tuple[int, ...], epsilon: float) -> float:
    """δ(ε) of one release of several numbers, by summing over all outcomes that have mass."""
    reach = 12 * scale + max(shifts)
    base = discrete(scale, reach)
    plain = np.ones(1)
    moved = np.ones(1)
    for shift in shifts:
        padded = np.pad(base, max(shifts))
        plain = np.multiply.outer(plain, padded)
        moved = np.multiply.outer(moved, np.roll(padded, shift))
    return float(np.maximum(plain - math.exp(epsilon) * moved, 0).sum())


def test_tiny_vectors_by_brute_force() -> None:
    for shifts, scale in product([(1,), (1, 1), (2, 1), (3, 4)], [2, 3, 8]):
        correction = GridCorrection(((len(shifts), scale),))
        mu = math.hypot(*shifts) / scale
        for epsilon in np.linspace(0, 3 * mu, 13):
            truth = exact_delta(scale, shifts, epsilon)
            ours = correction.delta(partial(delta_of, mu), float(epsilon))
            # Sums of a million rounded terms, and the mass beyond 12 standard deviations.
            assert ours >= truth - 1e-12
            if scale == 8:
                assert ours <= truth + 0.1


def test_the_correction_is_needed() -> None:
    """Without it the bound is false: at s = 2 the discrete noise is worse than the Gaussian."""
    excess = [exact_delta(2, (1,), e) - delta_of(0.5, e) for e in np.linspace(0, 1.5, 31)]
    assert max(excess) > 1e-3


def test_two_adaptive_releases_by_brute_force() -> None:
    """The second shift depends on the first outcome: composed as if it were the worst."""
    scale, epsilon = 3, 0.5
    base = discrete(scale, 12 * scale)
    padded = np.pad(base, 4)
    first, first_moved = padded, np.roll(padded, 1)
    outcome = np.arange(padded.size) - padded.size // 2
    total = 0.0
    for y, p, p_moved in zip(outcome, first, first_moved, strict=True):
        shift = 2 if y > 0 else 1
        gap = p * padded - math.exp(epsilon) * p_moved * np.roll(padded, shift)
        total += float(np.maximum(gap, 0).sum())
    mu = math.hypot(1, 2) / scale
    assert GridCorrection(((2, scale),)).delta(partial(delta_of, mu), epsilon) >= total


def test_a_sampled_release_by_brute_force() -> None:
    """A secret coin decides whether the record takes part; the sampled Gaussian's δ is taken."""
    scale, shift, rate = 3, 3, 0.3
    padded = np.pad(discrete(scale, 12 * scale), shift)
    mixed = (1 - rate) * padded + rate * np.roll(padded, shift)
    x = np.arange(-40.0, 43.0, 1e-2)
    plain, moved = stats.norm.pdf(x, 0, scale), stats.norm.pdf(x, shift, scale)

    def sampled_gaussian(epsilon: float) -> float:
        gap = (1 - rate) * plain + rate * moved - math.exp(epsilon) * plain
        return float(np.maximum(gap, 0).sum() * 1e-2)

    for epsilon in (0.0, 0.1, 0.3, 0.6):
        truth = float(np.maximum(mixed - math.exp(epsilon) * padded, 0).sum())
        assert GridCorrection(((1, scale),)).delta(sampled_gaussian, epsilon) >= truth - 1e-9


def test_the_bounds_number_by_number() -> None:
    """Step 1 of the proof, where normal probabilities are still exact in floating point.

    α and β are also no more than what they bound, but for terms of higher order in 1/s; τ is at
    most that of half a step further in.
    """
    for numbers, scale in product([1, 7], [1, 2, 5, 40]):
        correction = GridCorrection(((numbers, scale),))
        n = np.arange(0, 8 * scale + 1)
        p = discrete(scale, 40 * scale)[40 * scale + n]
        q = stats.norm.sf((n - 0.5) / scale) - stats.norm.sf((n + 0.5) / scale)
        log_ratio, rounding = numbers * np.log(q / p), 1e-11
        assert -log_ratio.min() <= correction._alpha + rounding
        assert -log_ratio.min() >= correction._alpha * (1 - 1 / scale)
        for reach in (2.0, 4.0, 8.0):
            within = n <= reach * scale
            assert log_ratio[within].max() <= correction._beta(reach) + rounding
            beyond = 2 * numbers * stats.norm.sf((math.floor(reach * scale) + 0.5) / scale)
            tail = math.exp(correction._log_tail(reach))
            assert beyond <= tail <= 2 * numbers * stats.norm.sf(reach - 0.5 / scale) * (1 + 1e-9)
        if scale == 40:
            assert log_ratio.max() >= 0.9 * correction._beta(8.0)


def test_delta_is_the_least_over_all_reaches() -> None:
    """Step 3, written out a second time."""
    numbers, s, mu, epsilon = 30, 50, 0.7, 2.0
    alpha = numbers / (24 * s * s)
    bounds = []
    for reach in np.linspace(4, 10, 25):
        beta = numbers * reach**2 / (24 * s * s)
        tail = 2 * numbers * stats.norm.cdf(-reach + 1 / (2 * s))
        gaussian = delta_of(mu, epsilon - alpha - beta)
        bounds.append(math.exp(alpha) * gaussian + math.exp(epsilon - beta) * tail)
    ours = GridCorrection(((numbers, s),)).delta(partial(delta_of, mu), epsilon)
    assert ours == pytest.approx(min(bounds), rel=1e-9)


def test_delta_and_epsilon_agree() -> None:
    """At the ε that is given for δ, the δ that is given is no larger."""
    for numbers, scale, mu in itertools.product((1, 1000), (500, 10**5), (0.1, 1.0, 5.0)):
        correction = GridCorrection(((numbers, scale),))
        epsilon = gaussian_epsilon(mu, correction, 1e-5)
        assert epsilon >= epsilon_of(mu, 1e-5)
        assert correction.delta(partial(delta_of, mu), epsilon) <= 1e-5 * (1 + 1e-9)


def test_costs_next_to_nothing_on_the_grids_in_use() -> None:
    """A million steps of 10,000 numbers at σ = C and σ = 10C, s = 2²⁴ and 10·2²⁴."""
    for scale in (2**24, 10 * 2**24):
        correction = GridCorrection(((10**10, scale),))
        assert gaussian_epsilon(1.0, correction, 1e-5) - epsilon_of(1.0, 1e-5) < 1e-3


def test_parts_add_up() -> None:
    both = GridCorrection(((100, 300),)) + GridCorrection(((50, 700),))
    assert both == GridCorrection(((100, 300), (50, 700)))
    worse = GridCorrection(((150, 300),))
    single = GridCorrection(((100, 300),))
    values = [gaussian_epsilon(1.0, c, 1e-5) for c in (GridCorrection(), single, both, worse)]
    assert values == sorted(values)
    assert len(set(values)) == 4


def test_an_infinite_epsilon_stays_infinite() -> None:
    assert GridCorrection(((1, 1000),)).epsilon(lambda delta: math.inf, 1e-5) == math.inf


def test_too_coarse_a_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match="a finer grid is needed"):
        gaussian_epsilon(1.0, GridCorrection(((10**9, 10),)), 1e-5)
    with pytest.raises(ConfigError, match="at least 1 step"):
        GridCorrection(((1, 0),))
    # As δ, a bound that says nothing is 1.
    assert GridCorrection(((10**9, 10),)).delta(partial(delta_of, 1.0), 1.0) == 1.0
