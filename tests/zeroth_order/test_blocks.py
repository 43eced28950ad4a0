"""Blocks are what the plain formulas give; norms from radii are those of the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from vertizo.randomness import generator
from vertizo.zeroth_order.blocks import (
    BLOCK,
    SIGNS_AT_ONCE,
    gaussian_blocks,
    gaussian_norm,
    gaussian_numbers,
    sign_blocks,
)
from vertizo.zeroth_order.directions import KEEP_UP_TO, Direction

DIMENSIONS = [1, 2, 63, 65, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 6, SIGNS_AT_ONCE + 131]


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_gaussian_blocks_are_the_formula_block_by_block(dimension: int) -> None:
    rng, start = generator(3), 0
    for block in gaussian_blocks(3, dimension):
        assert np.array_equal(block, gaussian_numbers(rng, min(BLOCK, dimension - start)))
        start += block.size
    assert start == dimension


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_signs_are_bits(dimension: int) -> None:
    words = generator(4).bit_generator.random_raw((dimension + 63) // 64)
    bits = np.unpackbits(words.view(np.uint8), count=dimension).astype(np.float32)
    found = np.concatenate([block.copy() for block in sign_blocks(4, dimension)])
    assert np.array_equal(found, 2 * bits - 1)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_a_norm_from_radii_is_that_of_the_numbers(dimension: int) -> None:
    squares = sum(
        float((block.astype(np.float64) ** 2).sum()) for block in gaussian_blocks(5, dimension)
    )
    assert gaussian_norm(5, dimension) == pytest.approx(squares**0.5, rel=1e-6)


@pytest.mark.parametrize("law", ["sphere", "scaled-sphere", "gaussian"])
def test_large_directions_have_the_norm_of_their_numbers(law: str) -> None:
    dimension = KEEP_UP_TO + 7
    kept = Direction(law, dimension, 6, keep=True)
    anew = Direction(law, dimension, 6, keep=False)
    length = float(kept.numbers().double().norm()) * kept.scale
    assert kept.norm() == pytest.approx(length, rel=1e-6)
    assert (anew.norm(), anew.scale) == (kept.norm(), kept.scale)


@pytest.mark.parametrize("law", ["scaled-sphere", "rademacher"])
def test_a_reader_gives_the_numbers_in_any_portions(law: str) -> None:
    direction = Direction(law, 3 * BLOCK + 5, 7, keep=False)
    expected, reader, start = direction.numbers(), direction.reader(), 0
    for count in (1, 7, BLOCK, 2, BLOCK + 900, BLOCK - 905):
        assert reader.read(count).equal(expected[start : start + count])
        start += count
    assert start == direction.dimension
