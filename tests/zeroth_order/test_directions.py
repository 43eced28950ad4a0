"""Every law's moments, norm and marginals; the same numbers however they are made.

Numbers in blocks are those of the whole, and those of the generator's words. Statistical tests use
fixed seeds and allow five standard errors.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.lazy import Lazy

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream, generator
from vertizo.zeroth_order.directions import (
    BLOCK,
    KEEP_UP_TO,
    LAWS,
    Direction,
    Directions,
    blocks,
    drawn,
    values,
)

stats = Lazy("scipy.stats")

Array = NDArray[np.float64]

D = 6
N = 20_000
G = np.array([1.0, -2.0, 0.5, 0.0, 3.0, -0.7])
ROUNDING = 1e-6

NORMS = {"sphere": 1.0, "coordinate": 1.0, "scaled-sphere": D**0.5, "rademacher": D**0.5}
FACTORS = {"sphere": D, "coordinate": D, "scaled-sphere": 1, "rademacher": 1, "gaussian": 1}
SPREAD = [law for law in LAWS if law != "coordinate"]
DIMENSIONS = [1, 2, 63, 65, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 6, 5 * BLOCK + 131]


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


def test_factors_and_fixed_norms() -> None:
    assert set(LAWS) == set(FACTORS)
    for law in LAWS:
        assert Direction(law, D, 0, keep=True).factor == FACTORS[law], law
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


def test_moments() -> None:
    """Of the numbers, and of slopes along them, which the factor makes a gradient."""
    g2, g4 = (G**2).sum(), (G**4).sum()
    fourth = {
        "sphere": 3 * g2**2 / (D * (D + 2)),
        "scaled-sphere": 3 * g2**2 * D / (D + 2),
        "gaussian": 3 * g2**2,
        "rademacher": 3 * g2**2 - 2 * g4,
        "coordinate": g4 / D,
    }
    for law in LAWS:
        u, factor = samples(law), FACTORS[law]
        expected = 1 / D if law == "coordinate" else 0.0
        assert_mean(u, expected)
        assert np.all(np.abs(u.mean(0) - expected) <= 5 * np.sqrt(1 / factor / N)), law
        assert_mean(u[:, :, None] * u[:, None, :], np.eye(D) / factor)
        assert_mean(factor * (u @ G)[:, None] * u, G)
        assert_mean((u @ G) ** 4, fourth[law])


def test_gaussian_marginals() -> None:
    found = numbers(Direction("gaussian", 1 << 20, 3, keep=False)).numpy()
    assert stats.kstest(found[: 1 << 18], "norm").pvalue > 1e-3
    assert stats.kstest(samples("gaussian")[:, 2], "norm").pvalue > 1e-3
    for tail in (3.0, 4.0):
        expected = 2 * len(found) * stats.norm.sf(tail)
        assert abs((np.abs(found) > tail).sum() - expected) < 5 * expected**0.5
    assert np.abs(found).max() == values()[-1]


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
        found = numbers(Direction("rademacher", dimension, 8, keep=False))
        assert set(found.tolist()) <= {-1.0, 1.0}
    assert abs(float(found.sum())) < 5 * len(found) ** 0.5


def test_coordinate_is_a_unit_vector_of_any_axis() -> None:
    found = samples("coordinate")
    assert np.array_equal(np.sort(found, axis=1)[:, -2:], np.tile([0.0, 1.0], (N, 1)))
    assert stats.chisquare(found.sum(0)).pvalue > 1e-3


def test_numbers_of_one_direction_are_independent() -> None:
    """No lag correlates, of the numbers or of their squares (pairs share a radius)."""
    for law, power in [("gaussian", 1), ("gaussian", 2), ("rademacher", 1)]:
        size = 2 * BLOCK
        found = numbers(Direction(law, size, 21, keep=False)).double().numpy() ** power
        found = (found - found.mean()) / found.std()
        spectrum = np.abs(np.fft.rfft(found)) ** 2
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
    small, large = (Direction(law, 50, 3, keep=True) for law in ("sphere", "scaled-sphere"))
    assert torch.allclose(numbers(small) * math.sqrt(50), numbers(large), rtol=1e-6)


def test_blocks_of_one_direction_differ() -> None:
    for law in SPREAD:
        found = numbers(Direction(law, 2 * BLOCK, 4, keep=False))
        first, second = found[:BLOCK], found[BLOCK:]
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / BLOCK**0.5, law


def test_the_high_half_of_the_seed_matters() -> None:
    for law, seed in product(LAWS, [0, 77, 2**31 + 1]):
        case = law, seed
        dimension = 10_000
        both = (Direction(law, dimension, s, keep=True) for s in (seed, seed + 2**32))
        low, high = (numbers(direction).numpy() for direction in both)
        assert not np.array_equal(low, high), case
        cosine = low @ high / np.linalg.norm(low) / np.linalg.norm(high)
        assert abs(cosine) < 5 / dimension**0.5, case


def test_draws_are_independent() -> None:
    for law in SPREAD:
        dimension, root = 3_000, Stream.from_seed(6)
        directions = Directions(law, dimension, root.child("client", 0))
        other = Directions(law, dimension, root.child("client", 1))
        found = [numbers(directions.draw(n)) for n in range(30)] + [numbers(other.draw(0))]
        correlations = np.corrcoef(torch.stack(found).numpy()) - np.eye(31)
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


def test_only_the_vector_is_changed_of_whatever_type_it_is() -> None:
    for law, dimension, keep in product(LAWS, [30, BLOCK + 30], [False, True]):
        direction = Direction(law, dimension, 2, keep=keep)
        for dtype, slack in ((torch.float32, 0), (torch.float64, 1e-6), (torch.bfloat16, 1e-2)):
            case = law, dimension, keep, dtype
            expected, around = numbers(direction).double(), torch.zeros(dimension + 8, dtype=dtype)
            direction.add_to(around[5:-3], -2.0)
            found = around[5:-3].double()
            assert torch.allclose(found, -2.0 * expected, rtol=slack, atol=slack), case
            assert not around[:5].any(), case
            assert not around[-3:].any(), case


def test_large_directions_are_not_kept_and_have_the_norm_of_their_numbers() -> None:
    assert Directions("gaussian", KEEP_UP_TO, Stream.from_seed(0)).draw(0).keep
    assert not Directions("gaussian", KEEP_UP_TO + 1, Stream.from_seed(0)).draw(0).keep
    for law in ["sphere", "scaled-sphere", "gaussian"]:
        kept, anew = (Direction(law, KEEP_UP_TO + 7, 6, keep=keep) for keep in (True, False))
        length = float(kept.numbers().double().norm()) * kept.scale
        assert kept.norm() == pytest.approx(length, rel=1e-6), law
        assert (anew.norm(), anew.scale) == (kept.norm(), kept.scale), law


def test_unknown_laws_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"directions is 'cube'; known are sphere, .*coordinate"):
        Directions("cube", 3, Stream.from_seed(0))


def test_blocks_are_the_whole() -> None:
    for kind, dimension in product(["normals", "signs"], DIMENSIONS):
        parts = [block.copy() for block in blocks(kind, 3, dimension)]
        assert max(part.size for part in parts) <= BLOCK, (kind, dimension)
        assert np.array_equal(np.concatenate(parts), drawn(kind, 3, dimension)), (kind, dimension)


def test_numbers_are_those_of_the_words() -> None:
    """Values by sixteen bits, signs by one."""
    for dimension in DIMENSIONS:
        words = generator(4).bit_generator.random_raw((dimension + 3) // 4)
        expected = values()[words.view(np.uint16)[:dimension]]
        assert np.array_equal(drawn("normals", 4, dimension), expected), dimension
        bits = np.unpackbits(words.view(np.uint8))[:dimension].astype(np.float32)
        assert np.array_equal(drawn("signs", 4, dimension), 2 * bits - 1), dimension


def test_a_reader_gives_the_numbers_in_any_portions() -> None:
    for law in ["scaled-sphere", "rademacher"]:
        direction = Direction(law, 3 * BLOCK + 5, 7, keep=False)
        expected, read, start = direction.numbers(), direction.reader(), 0
        for count in (1, 7, BLOCK, 2, BLOCK + 900, BLOCK - 905):
            assert read(count).equal(expected[start : start + count]), law
            start += count
        assert start == direction.dimension, law
