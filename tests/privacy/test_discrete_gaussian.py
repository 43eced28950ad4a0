"""The sampler against the exact probabilities; bits come from a seed, so that a run repeats."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.lazy import Lazy

from vertizo.core.errors import ConfigError
from vertizo.privacy.noise.discrete_gaussian import LARGEST_SCALE, DiscreteGaussian

stats = Lazy("scipy.stats")

DRAWS = 200_000
REJECTS = 1e-6
"""Probability with which a right sampler would fail one chi-square test, over seeds."""


def bits(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def p_value(draws: NDArray[np.int64], scale: float) -> float:
    """Pearson's test, with the tails pooled so that every cell expects ten draws or more."""
    reach = math.ceil(8 * scale)
    far, values = (np.arange(-most, most + 1) for most in (5 * reach, reach))
    weights, whole = (np.exp(-(n**2) / (2 * scale**2)) for n in (values, far))
    expected = draws.size * weights / whole.sum()
    inner = expected >= 10
    observed = np.array([(draws == value).sum() for value in values[inner]])
    rest = draws.size - observed.sum(), draws.size - expected[inner].sum()
    statistic = float(((observed - expected[inner]) ** 2 / expected[inner]).sum())
    statistic += (rest[0] - rest[1]) ** 2 / max(rest[1], 1e-9)
    return float(stats.chi2.sf(statistic, inner.sum()))


def test_probabilities_are_the_exact_ones() -> None:
    for scale in [1, 2, 3, 7, 30]:
        draws = DiscreteGaussian(scale, bits(scale)).draw(DRAWS)
        assert p_value(draws, scale) > REJECTS


def test_a_scale_two_per_cent_off_is_rejected() -> None:
    """At 200,000 draws the variance is known to 0.32 %, and 2 % of s are 4 % of it: 12 errors."""
    for wrong in [0.98, 1.02]:
        draws = DiscreteGaussian(30, bits(30)).draw(DRAWS)
        assert p_value(draws, 30 * wrong) < REJECTS


def test_rounded_normal_numbers_are_rejected_at_small_scale() -> None:
    """What is tested for is not the Gaussian rounded: at s = 1 the two differ by 4 % at zero."""
    rounded = np.rint(np.random.default_rng(1).standard_normal(DRAWS)).astype(np.int64)
    assert p_value(rounded, 1) < REJECTS


def test_moments_of_large_scales() -> None:
    """Six standard errors of the mean, variance (√2) and fourth moment (√96) of normal numbers."""
    for scale in [1000, 2**27, LARGEST_SCALE]:
        unit = DiscreteGaussian(scale, bits(5)).draw(DRAWS) / scale
        error = 6 / math.sqrt(DRAWS)
        assert abs(unit.mean()) < error
        assert abs((unit**2).mean() - 1) < math.sqrt(2) * error
        assert abs((unit**4).mean() - 3) < math.sqrt(96) * error


def test_low_digits_are_uniform() -> None:
    """No grid within the grid: residues are equally likely but for ``exp(−2π²s²/modulus²)``."""
    for scale, modulus in [(1000, 7), (2**27, 16), (999_999_937, 10)]:
        residues = DiscreteGaussian(scale, bits(6)).draw(DRAWS) % modulus
        counts = np.bincount(residues, minlength=modulus)
        expected = DRAWS / modulus
        assert stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), modulus - 1) > REJECTS


def test_the_coin() -> None:
    for exponent in ["0/5", "1/5", "1/2", "9/10", "1/1", "1/1073741824"]:
        gamma = Fraction(exponent)
        sampler = DiscreteGaussian(1, bits(gamma.denominator))
        numerators = np.full(DRAWS, gamma.numerator, np.int64)
        tosses = sampler._coin(numerators, int(exponent.split("/")[1]))
        p = math.exp(-gamma)
        assert abs(tosses.mean() - p) <= 6 * math.sqrt(p * (1 - p) / DRAWS)


def test_several_coins_at_once() -> None:
    """``times`` tosses of exp(−½) come up all true with probability exp(−times/2)."""
    sampler = DiscreteGaussian(1, bits(8))
    for times in (0, 1, 2, 5):
        counts = np.full(DRAWS, times, np.int64)
        tosses = sampler._coins(counts, np.ones_like(counts), 2)
        p = math.exp(-times / 2)
        assert abs(tosses.mean() - p) <= 6 * math.sqrt(p * (1 - p) / DRAWS)


def test_uniform_below_a_bound() -> None:
    for bound in [1, 2, 3, 1000, 2**61 - 1, 2**61]:
        numbers = DiscreteGaussian(1, bits(9))._below(bound, DRAWS)
        assert numbers.min() >= 0
        assert numbers.max() < bound
        # The mean of uniform integers in [0, b): (b − 1)/2, standard deviation at most b/√12.
        assert abs(numbers.mean() - (bound - 1) / 2) <= 6 * bound / math.sqrt(12 * DRAWS)


def test_draws_of_one_block_are_independent() -> None:
    """Correlations of neighbours, and of neighbours' squares, within six standard errors."""
    x = DiscreteGaussian(1000, bits(10)).draw(DRAWS) / 1000
    for values in (x, x**2 - 1):
        correlation = (values[1:] * values[:-1]).mean() / (values**2).mean()
        assert abs(correlation) < 6 / math.sqrt(DRAWS)


def test_as_many_as_asked_for() -> None:
    for count in [0, 1, 2, 17, 10_000]:
        draws = DiscreteGaussian(5, bits(11)).draw(count)
        assert draws.shape == (count,)
        assert draws.dtype == np.int64


def test_bits_are_used_once() -> None:
    """The draws repeat with the bits, and asking again goes on from there."""
    first, second = DiscreteGaussian(2**27, bits(12)), DiscreteGaussian(2**27, bits(12))
    one, other = first.draw(100), second.draw(100)
    assert (one == other).all()
    assert not np.isin(first.draw(100), one).any()


def test_the_default_is_the_operating_system() -> None:
    assert inspect.signature(DiscreteGaussian).parameters["random_bytes"].default is os.urandom
    assert not (DiscreteGaussian(2**27).draw(10) == DiscreteGaussian(2**27).draw(10)).any()


def test_scales_out_of_range() -> None:
    for scale in [0, -1, LARGEST_SCALE + 1]:
        with pytest.raises(ConfigError, match="must be an integer from 1 to"):
            DiscreteGaussian(scale)
