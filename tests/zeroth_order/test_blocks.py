"""Numbers in blocks are those of the whole, and those of the generator's words."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from vertizo.core.randomness import generator
from vertizo.zeroth_order.directions import BLOCK, KEEP_UP_TO, Direction, blocks, drawn, values

DIMENSIONS = [1, 2, 63, 65, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 6, 5 * BLOCK + 131]


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


def test_large_directions_have_the_norm_of_their_numbers() -> None:
    for law in ["sphere", "scaled-sphere", "gaussian"]:
        dimension = KEEP_UP_TO + 7
        kept = Direction(law, dimension, 6, keep=True)
        anew = Direction(law, dimension, 6, keep=False)
        length = float(kept.numbers().double().norm()) * kept.scale
        assert kept.norm() == pytest.approx(length, rel=1e-6), law
        assert (anew.norm(), anew.scale) == (kept.norm(), kept.scale), law


def test_a_reader_gives_the_numbers_in_any_portions() -> None:
    for law in ["scaled-sphere", "rademacher"]:
        direction = Direction(law, 3 * BLOCK + 5, 7, keep=False)
        expected, reader, start = direction.numbers(), direction.reader(), 0
        for count in (1, 7, BLOCK, 2, BLOCK + 900, BLOCK - 905):
            assert reader.read(count).equal(expected[start : start + count]), law
            start += count
        assert start == direction.dimension, law
