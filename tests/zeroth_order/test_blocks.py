"""Numbers in blocks are those of the whole, and those of the generator's words."""

from __future__ import annotations

import numpy as np
import pytest

from vertizo.core.randomness import generator
from vertizo.zeroth_order.directions import (
    BLOCK,
    KEEP_UP_TO,
    Direction,
    Kind,
    blocks,
    drawn,
    values,
)

DIMENSIONS = [1, 2, 63, 65, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 6, 5 * BLOCK + 131]


@pytest.mark.parametrize("kind", ["normals", "signs"])
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_blocks_are_the_whole(kind: Kind, dimension: int) -> None:
    parts = [block.copy() for block in blocks(kind, 3, dimension)]
    assert max(part.size for part in parts) <= BLOCK
    assert np.array_equal(np.concatenate(parts), drawn(kind, 3, dimension))


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_normals_are_values_by_sixteen_bits(dimension: int) -> None:
    words = generator(4).bit_generator.random_raw((dimension + 3) // 4)
    expected = values()[words.view(np.uint16)[:dimension]]
    assert np.array_equal(drawn("normals", 4, dimension), expected)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_signs_are_bits(dimension: int) -> None:
    words = generator(4).bit_generator.random_raw((dimension + 63) // 64)
    bits = np.unpackbits(words.view(np.uint8), count=dimension).astype(np.float32)
    assert np.array_equal(drawn("signs", 4, dimension), 2 * bits - 1)


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
