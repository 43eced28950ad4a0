"""Every law's moments, norm and marginals; the same numbers however they are made.

Statistical tests use fixed seeds and allow five standard errors.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.zeroth_order.directions import BLOCK, KEEP_UP_TO, LAWS, Direction, Directions, values

Array = NDArray[np.float64]

D = 6
N = 20_000
G = np.array([1.0, -2.0, 0.5, 0.0, 3.0, -0.7])
ROUNDING = 1e-6

NORMS = {"sphere": 1.0, "coordinate": 1.0, "scaled-sphere": D**0.5, "rademacher": D**0.5}
FACTORS = {"sphere": D, "coordinate": D, "scaled-sphere": 1, "rademacher": 1, "gaussian": 1}
SPREAD = [law for law in LAWS if law != "coordinate"]


def numbers(direction: Direction, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The direction u as one vector."""
    vector = torch.zeros(direction.dimension, dtype=dtype)
    direction.add_to(vector, 1.0)
    return vector


@cache
def samples(law: str) -> Array:
    """Many draws, [N, D]."""
    directions = Directions(law, D, Stream.from_seed(11).child(law))
    return torch.stack([numbers(directions.draw(n)) for n in range(N)]).double().numpy()


def assert_mean(values: Array, expected: Array | float) -> None:
    """The mean over the first axis is the expected one, within five standard errors."""
    error = values.std(0) / len(values) ** 0.5
    assert np.all(np.abs(values.mean(0) - expected) <= 5 * error + ROUNDING)


def test_all_laws_are_covered() -> None:
    assert set(LAWS) == set(FACTORS)


def test_factor() -> None:
    for law in LAWS:
        assert Direction(law, D, 0, keep=True).factor == FACTORS[law], law


def test_fixed_norms() -> None:
    for law in NORMS:
        assert np.allclose(np.linalg.norm(samples(law), axis=1), NORMS[law], rtol=1e-6), law


def test_gaussian_norms_follow_the_chi_law() -> None:
    squares = (samples("gaussian") ** 2).sum(1)
    assert stats.kstest(squares, stats.chi2(D).cdf).pvalue > 1e-3


def test_norm_is_that_of_the_numbers() -> None:
    for law, dimension in product(LAWS, [1, 7, BLOCK, 2 * BLOCK + 3]):
        direction = Direction(law, dimension, 5, keep=False)
        expected = float(numbers(direction).double().norm())
        assert direction.norm() == pytest.approx(expected, rel=1e-5), (law, dimension)
        assert Direction(law, dimension, 5, keep=True).norm() == direction.norm(), (law, dimension)


def test_mean() -> None:
    for law in LAWS:
        expected = 1 / D if law == "coordinate" else 0.0
        assert_mean(samples(law), expected)
        error = np.sqrt(1 / FACTORS[law] / N)
        assert np.all(np.abs(samples(law).mean(0) - expected) <= 5 * error), law


def test_second_moment() -> None:
    for law in LAWS:
        u = samples(law)
        assert_mean(u[:, :, None] * u[:, None, :], np.eye(D) / FACTORS[law])


def test_factor_makes_the_slope_a_gradient() -> None:
    for law in LAWS:
        u = samples(law)
        assert_mean(FACTORS[law] * (u @ G)[:, None] * u, G)


def test_fourth_moment_of_a_slope() -> None:
    for law in LAWS:
        g2, g4 = (G**2).sum(), (G**4).sum()
        expected = {
            "sphere": 3 * g2**2 / (D * (D + 2)),
            "scaled-sphere": 3 * g2**2 * D / (D + 2),
            "gaussian": 3 * g2**2,
            "rademacher": 3 * g2**2 - 2 * g4,
            "coordinate": g4 / D,
        }[law]
        assert_mean((samples(law) @ G) ** 4, expected)


def test_gaussian_marginals() -> None:
    drawn = numbers(Direction("gaussian", 1 << 20, 3, keep=False)).numpy()
    assert stats.kstest(drawn[: 1 << 18], "norm").pvalue > 1e-3
    assert stats.kstest(samples("gaussian")[:, 2], "norm").pvalue > 1e-3
    for tail in (3.0, 4.0):
        expected = 2 * len(drawn) * stats.norm.sf(tail)
        assert abs((np.abs(drawn) > tail).sum() - expected) < 5 * expected**0.5
    assert np.abs(drawn).max() == values()[-1]


def test_the_normal_values() -> None:
    table = values().astype(np.float64)
    assert len(np.unique(table)) == 1 << 16
    assert np.all(np.diff(table) > 0)
    assert np.array_equal(table, -table[::-1])
    assert abs(np.mean(table**2) - 1) < 1e-8
    assert abs(np.mean(table**4) - 3) < 1e-3
    shares = (np.arange(1 << 16) + 0.5) / (1 << 16)
    assert np.allclose(table, stats.norm.ppf(shares), rtol=2e-5)


def test_sphere_marginals() -> None:
    for law in ["sphere", "scaled-sphere"]:
        radius = NORMS[law]
        squares = (samples(law)[:, 4] / radius) ** 2
        assert stats.kstest(squares, stats.beta(0.5, (D - 1) / 2).cdf).pvalue > 1e-3, law


def test_rademacher_numbers_are_signs() -> None:
    for dimension in (1, 63, 65, BLOCK + 9):
        drawn = numbers(Direction("rademacher", dimension, 8, keep=False))
        assert set(drawn.tolist()) <= {-1.0, 1.0}
    assert abs(float(drawn.sum())) < 5 * len(drawn) ** 0.5


def test_coordinate_is_a_unit_vector_of_any_axis() -> None:
    drawn = samples("coordinate")
    assert np.array_equal(np.sort(drawn, axis=1)[:, -2:], np.tile([0.0, 1.0], (N, 1)))
    assert stats.chisquare(drawn.sum(0)).pvalue > 1e-3


def test_numbers_of_one_direction_are_independent() -> None:
    """No lag correlates, of the numbers or of their squares (pairs share a radius)."""
    for law, power in [("gaussian", 1), ("gaussian", 2), ("rademacher", 1)]:
        size = 2 * BLOCK
        drawn = numbers(Direction(law, size, 21, keep=False)).double().numpy() ** power
        drawn = (drawn - drawn.mean()) / drawn.std()
        spectrum = np.abs(np.fft.rfft(drawn)) ** 2
        correlations = np.fft.irfft(spectrum, size)[1:] / size
        assert np.abs(correlations).max() < 6 / size**0.5, (law, power)


def test_kept_and_created_anew_are_the_same_bits() -> None:
    for law, dimension in product(LAWS, [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77]):
        case = law, dimension
        for seed in (0, 2**63 + 5, 2**64 - 1):
            kept = Direction(law, dimension, seed, keep=True)
            anew = Direction(law, dimension, seed, keep=False)
            start = torch.linspace(-1, 1, dimension)
            results = []
            for direction in (anew, kept, kept, anew):
                vector = start.clone()
                direction.add_to(vector, 1e-3)
                results.append(vector)
            assert all(torch.equal(result, results[0]) for result in results), case
            assert torch.equal(kept.numbers(), anew.numbers()), case
            assert kept.scale == anew.scale, case


def test_numbers_times_scale_is_the_direction() -> None:
    for law, dimension in product(LAWS, [9, BLOCK + 9]):
        case = law, dimension
        direction = Direction(law, dimension, 4, keep=True)
        scaled = direction.numbers().double() * direction.scale
        assert torch.allclose(numbers(direction, torch.float64), scaled, rtol=1e-12, atol=0), case


def test_blocks_of_one_direction_differ() -> None:
    for law in SPREAD:
        drawn = numbers(Direction(law, 2 * BLOCK, 4, keep=False))
        first, second = drawn[:BLOCK], drawn[BLOCK:]
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / BLOCK**0.5, law


def test_the_high_half_of_the_seed_matters() -> None:
    for law, seed in product(LAWS, [0, 77, 2**31 + 1]):
        case = law, seed
        dimension = 10_000
        low, high = (
            numbers(Direction(law, dimension, s, keep=True)).numpy() for s in (seed, seed + 2**32)
        )
        assert not np.array_equal(low, high), case
        assert abs(low @ high) / np.linalg.norm(low) / np.linalg.norm(high) < 5 / dimension**0.5, (
            case
        )


def test_draws_are_independent() -> None:
    for law in SPREAD:
        dimension, root = 3_000, Stream.from_seed(6)
        directions = Directions(law, dimension, root.child("client", 0))
        other = Directions(law, dimension, root.child("client", 1))
        drawn = [numbers(directions.draw(n)) for n in range(30)] + [numbers(other.draw(0))]
        correlations = np.corrcoef(torch.stack(drawn).numpy()) - np.eye(31)
        assert np.abs(correlations).max() < 5 / dimension**0.5, law


def test_successive_draws_do_not_predict_each_other() -> None:
    u = samples("scaled-sphere")
    for power in (1, 2):
        assert_mean(u[:-1] ** power * u[1:] ** power, 1.0 if power == 2 else 0.0)


def test_a_draw_is_a_function_of_its_number() -> None:
    for law in LAWS:
        forward = Directions(law, 100, Stream.from_seed(1))
        jumping = Directions(law, 100, Stream.from_seed(1))
        known = [numbers(forward.draw(n)) for n in range(6)]
        for n in (5, 0, 3, 3, 1):
            assert torch.equal(numbers(jumping.draw(n)), known[n]), law


def test_global_generators_are_neither_used_nor_moved() -> None:
    for law in LAWS:
        torch.manual_seed(0)
        before = torch.get_rng_state()
        one = numbers(Direction(law, 50, 1, keep=False))
        assert torch.equal(torch.get_rng_state(), before), law
        torch.manual_seed(1)
        assert torch.equal(numbers(Direction(law, 50, 1, keep=False)), one), law


def test_vectors_of_other_types() -> None:
    for law, dtype in product(LAWS, [torch.float64, torch.bfloat16]):
        case = law, dtype
        direction = Direction(law, 40, 2, keep=True)
        expected = numbers(direction).double() * 0.5
        vector = torch.ones(40, dtype=dtype)
        direction.add_to(vector, 0.5)
        assert vector.dtype == dtype, case
        tolerance = 1e-2 if dtype.itemsize == 2 else 1e-6
        assert torch.allclose(vector.double(), 1 + expected, rtol=tolerance, atol=tolerance), case


def test_only_the_vector_is_changed() -> None:
    for law, dimension in product(LAWS, [30, BLOCK + 30]):
        case = law, dimension
        direction = Direction(law, dimension, 2, keep=False)
        around = torch.zeros(dimension + 8)
        direction.add_to(around[5:-3], -2.0)
        assert torch.equal(around[5:-3], -2.0 * numbers(direction)), case
        assert not around[:5].any(), case
        assert not around[-3:].any(), case


def test_large_directions_are_not_kept() -> None:
    assert Directions("gaussian", KEEP_UP_TO, Stream.from_seed(0)).draw(0).keep
    assert not Directions("gaussian", KEEP_UP_TO + 1, Stream.from_seed(0)).draw(0).keep


def test_unknown_laws_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"directions is 'cube'; known are sphere, .*coordinate"):
        Directions("cube", 3, Stream.from_seed(0))


def test_scaled_sphere_is_the_sphere_scaled() -> None:
    small, large = (Direction(law, 50, 3, keep=True) for law in ("sphere", "scaled-sphere"))
    assert torch.allclose(numbers(small) * math.sqrt(50), numbers(large), rtol=1e-6)
