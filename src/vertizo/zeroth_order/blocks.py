"""What directions are made of: blocks of normal numbers or signs, from the raw bits of a generator.

A large direction is drawn again for every use, so that the generator is what large models wait for.
Here buffers are made once a direction and not once a block, signs come from a table of all bytes,
and a norm is added up from radii alone. The numbers are the same bits either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.randomness import generator

BLOCK = 1 << 15
"""Numbers drawn at a time. Part of every law's definition: another block, other directions."""

RAW = 1 << 12
"""Random words asked for at a time: few enough to stay in the cache, and off the system's pages."""

Block = NDArray[np.float32]


def gaussian_numbers(rng: np.random.Generator, size: int) -> Block:
    """Box–Muller, two normals from 64 random bits; cut off beyond 6.8 standard deviations."""
    pairs = (size + 1) // 2
    normals = np.empty((2, pairs), np.float32)
    normals_from(rng.bit_generator.random_raw(pairs), normals)
    return normals.reshape(-1)[:size]


def normals_from(bits: NDArray[np.uint64], normals: Block) -> None:
    """Fill ``normals`` [..., 2, pairs] from random bits [..., pairs]."""
    _box_muller(bits.view(np.int32).astype(np.float32), normals)


def _box_muller(integers: Block, normals: Block) -> None:
    """Fill ``normals`` [..., 2, pairs] from 32-bit integers [..., 2 · pairs], overwritten."""
    pairs = normals.shape[-1]
    uniform = integers  # their memory serves all steps
    uniform *= np.float32(2.0**-31)  # in [-1, 1]
    radius, angle = uniform[..., :pairs], uniform[..., pairs:]
    _logarithms(radius)
    np.negative(radius, out=radius)
    np.sqrt(radius, out=radius)  # √(−2 ln |v|)
    angle *= np.float32(np.pi)
    np.cos(angle, out=normals[..., 0, :])
    np.sin(angle, out=normals[..., 1, :])
    normals *= radius[..., None, :]


def _logarithms(uniform: Block) -> None:
    """``2 ln |v|``, in place: minus the square of the radius of two normals."""
    uniform *= uniform
    uniform += np.float32(2.0**-66)
    np.log(uniform, out=uniform)


def _sizes(dimension: int, block: int = BLOCK) -> Iterator[int]:
    """How many numbers each block of a direction has."""
    yield from repeat(block, dimension // block)
    if dimension % block:
        yield dimension % block


def gaussian_blocks(seed: int, dimension: int) -> Iterator[Block]:
    """`gaussian_numbers` block by block; each is overwritten by the next."""
    rng = generator(seed)
    if dimension <= BLOCK:
        yield gaussian_numbers(rng, dimension)
        return
    integers, numbers = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for size in _sizes(dimension):
        pairs = (size + 1) // 2
        _integers(rng, integers[: 2 * pairs])
        normals = numbers[: 2 * pairs]
        _box_muller(integers[: 2 * pairs], normals.reshape(2, pairs))
        yield normals[:size]


def _integers(rng: np.random.Generator, found: Block) -> None:
    """Fill with random 32-bit integers, two from a word."""
    draw, count = rng.bit_generator.random_raw, 2 * RAW
    for start in range(0, found.size, count):
        part = found[start : start + count]
        part[...] = draw(part.size // 2).view(np.int32)


def gaussian_norm(seed: int, dimension: int) -> float:
    """The norm of `gaussian_blocks`, up to rounding: two normals have one radius, and no angle."""
    rng, total = generator(seed), 0.0
    radii = np.empty(min(dimension, BLOCK), np.float32)
    for size in _sizes(dimension):
        if size % 2:  # one radius is of a single normal
            last = gaussian_numbers(rng, size)
            total += float(np.dot(last, last))
            continue
        pairs = size // 2
        words = (pairs + 1) // 2
        _integers(rng, radii[: 2 * words])
        rng.bit_generator.random_raw(pairs - words, output=False)  # the angles'
        radius = radii[:pairs]
        radius *= np.float32(2.0**-31)
        _logarithms(radius)
        total -= float(radius.sum())
    return math.sqrt(total)


_SIGNS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32) * 2 - 1
"""The eight signs of every byte, highest bit first."""


SIGNS_AT_ONCE = 4 * BLOCK
"""Signs may be drawn by any number of words of 64: larger pieces, fewer calls for each number."""


def sign_blocks(seed: int, dimension: int) -> Iterator[Block]:
    """Independent signs, one from each random bit; each block is overwritten by the next."""
    rng = generator(seed)
    found = np.empty((min(dimension + 63, SIGNS_AT_ONCE) // 64 * 8, 8), np.float32)
    for size in _sizes(dimension, SIGNS_AT_ONCE):
        taken = rng.bit_generator.random_raw((size + 63) // 64).view(np.uint8)
        np.take(_SIGNS, taken, axis=0, out=found[: taken.size], mode="clip")
        yield found.reshape(-1)[:size]


class Reader:
    """Numbers of any count at a time, out of blocks.

    Args:
        blocks: one after the other; each is good until the next is asked for.
    """

    def __init__(self, blocks: Iterator[Tensor]) -> None:
        self._blocks = blocks
        self._left = torch.empty(0)
        self._buffer = torch.empty(0)

    def read(self, count: int) -> Tensor:
        """The next ``count`` numbers; good until the next call."""
        if self._buffer.numel() < count:
            self._buffer = torch.empty(count)
        found, done = self._buffer[:count], 0
        while done < count:
            if not self._left.numel():
                self._left = next(self._blocks)
            taken = min(count - done, self._left.numel())
            found[done : done + taken] = self._left[:taken]
            self._left = self._left[taken:]
            done += taken
        return found
