"""Random directions: their laws, and one drawn direction that can be re-created from its seed.

A direction ``u`` of dimension ``d`` is defined by its law and a 64-bit seed, number by number, so
that it can be added to a vector in blocks without ever existing as a whole. That is MeZO's way of
training with no memory beyond the model's (Malladi et al. 2023). Small directions are kept after
their first use, which is faster. Both give the same numbers, bit for bit.

A law's ``factor`` is the dimension factor φ that makes ``φ · E[(u·g) u] = g``:

================  ==========================================  ===========  ===
law               u                                           norm         φ
================  ==========================================  ===========  ===
sphere            uniform on the unit sphere                  1            d
scaled-sphere     uniform on the sphere of radius √d          √d           1
gaussian          N(0, I)                                     about √d     1
rademacher        independent signs                           √d           1
coordinate        a unit vector, its axis uniform             1            d
================  ==========================================  ===========  ===

A direction needs independent numbers of mean 0 and variance 1 that come from all sides alike, and
very many of them; the last digits of a normal distribution it does not need. Normal numbers take
65,536 values here, all equally likely: the normal's quantiles at the middles of as many equal
shares, scaled to a variance of exactly 1 (the largest is 4.32, the fourth moment 2.999). Sixteen
bits and a look-up make one, where Box–Muller takes 32 and a logarithm, a root and a cosine.

Privacy noise is never drawn from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vertizo.core import kernels
from vertizo.core.deferred import torch
from vertizo.core.errors import ConfigError
from vertizo.core.names import LawName
from vertizo.core.randomness import Stream, generator
from vertizo.models.optimizers import add, is_plain

if TYPE_CHECKING:
    from torch import Tensor

LAWS: tuple[str, ...] = get_args(LawName)

FLOAT32_MAX = float(np.finfo(np.float32).max)

KEEP_UP_TO = 1 << 20
"""Directions of at most so many numbers (4 MiB) are kept between their uses."""


Numbers = NDArray[np.float32]
Kind = Literal["normals", "signs"]

BLOCK = 1 << 15
"""Numbers drawn at a time of a direction that is not held: few enough for the processor's cache,
and a multiple of what one word gives, so that blocks are the same numbers as the whole."""


@cache
def values() -> Numbers:
    """The values of a normal number, ascending, float32 [65536]."""
    shares, quantile = 1 << 16, NormalDist().inv_cdf
    upper = np.array([quantile(0.5 + (k + 0.5) / shares) for k in range(shares // 2)])
    upper /= np.sqrt(np.mean(upper**2))
    return np.concatenate([-upper[::-1], upper]).astype(np.float32)


EIGHTS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) * np.float32(2) - 1
"""The eight signs of every byte, float32 [256, 8]."""


class Source:
    """The numbers of one seed, one after the other; each call takes whole words of 64 bits.

    >>> source = Source(7)
    >>> source.fill(np.empty(3, np.float32), "signs").tolist()
    [-1.0, 1.0, -1.0]
    """

    def __init__(self, seed: int) -> None:
        self._state = np.empty(4, np.uint64)
        kernels.start(self._state, seed)

    def fill(self, out: Numbers, kind: Kind) -> Numbers:
        """``out``, contiguous, filled with the next numbers."""
        if kind == "signs":
            kernels.signs(self._state, out, EIGHTS)
        else:
            kernels.normals(self._state, out, values())
        return out

    def add_to(self, vector: Numbers, kind: Kind, factor: float) -> None:
        """``vector += factor · (the next numbers)``, in place."""
        if kind == "signs":
            kernels.add_signs(self._state, vector, EIGHTS, factor)
        else:
            kernels.add_normals(self._state, vector, values(), factor)

    def squares(self, count: int) -> float:
        """The sum of the squares of the next ``count`` normal numbers."""
        return kernels.normal_squares(self._state, count, values())


def drawn(kind: Kind, seed: int, size: int) -> Numbers:
    """The first numbers of a seed, float32 [size]."""
    return Source(seed).fill(np.empty(size, np.float32), kind)


def blocks(kind: Kind, seed: int, size: int) -> Iterator[Numbers]:
    """The same in blocks; each is overwritten by the next."""
    source, buffer = Source(seed), np.empty(min(size, BLOCK), np.float32)
    for start in range(0, size, BLOCK):
        yield source.fill(buffer[: size - start], kind)


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


class Direction:
    """One drawn direction ``u`` of ``dimension`` numbers.

    Args:
        law: its distribution, one of `LAWS`.
        dimension: d, the size of the vectors it is added to.
        seed: 64 bits; same law, dimension and seed, same numbers.
        keep: hold the numbers after their first use instead of drawing them again.
    """

    __slots__ = ("_kind", "_numbers", "_scale", "dimension", "factor", "keep", "law", "seed")

    def __init__(self, law: LawName, dimension: int, seed: int, *, keep: bool) -> None:
        self.law = law
        self.dimension = dimension
        self.seed = seed
        self.keep = keep
        self.factor = float(dimension) if law in ("sphere", "coordinate") else 1.0
        """The dimension factor φ of the law."""
        self._kind: Kind = "signs" if law == "rademacher" else "normals"
        self._numbers: Tensor | None = None
        self._scale: float | None = None

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        """(offset, numbers) pairs, before the scale of the law is applied.

        The numbers are good until the next pair is asked for.
        """
        if self.law == "coordinate":
            yield int(generator(self.seed).integers(self.dimension)), torch.ones(1)
        else:
            start = 0
            for block in blocks(self._kind, self.seed, self.dimension):
                yield start, torch.from_numpy(block)
                start += block.size

    def numbers(self) -> Tensor:
        """u without its `scale`, as one float32 vector [d]; kept if the direction is."""
        if self._numbers is not None:
            return self._numbers
        if self.law == "coordinate":
            numbers = torch.zeros(self.dimension)
            for start, block in self._blocks():
                numbers[start : start + block.numel()] = block
        else:
            empty = np.empty(self.dimension, np.float32)
            numbers = torch.from_numpy(Source(self.seed).fill(empty, self._kind))
        if self.keep:
            self._numbers = numbers
        return numbers

    def reader(self) -> Reader:
        """The same numbers from first to last, never as a whole; not of the law coordinate."""
        return Reader(block for _, block in self._blocks())

    @property
    def scale(self) -> float:
        """What the drawn numbers are multiplied by: 1, or what puts them on a sphere."""
        if self._scale is None:
            self._scale = 1.0
            if self.law in ("sphere", "scaled-sphere"):
                radius = 1.0 if self.law == "sphere" else math.sqrt(self.dimension)
                numbers = self._numbers
                if numbers is None:
                    self._scale = radius / self._norm_of_numbers()
                else:
                    self._scale = radius / math.sqrt(kernels.squares(numbers.numpy()))
        return self._scale

    def _norm_of_numbers(self) -> float:
        if self.keep:
            return math.sqrt(kernels.squares(self.numbers().numpy()))
        return math.sqrt(Source(self.seed).squares(self.dimension))

    def norm(self) -> float:
        """The Euclidean norm of u."""
        if self.law in ("sphere", "coordinate"):
            return 1.0
        if self.law in ("scaled-sphere", "rademacher"):
            return math.sqrt(self.dimension)
        return self._norm_of_numbers()

    def held(self, scale: float) -> tuple[Tensor, float] | None:
        """``scale · u`` as numbers in memory and their factor; None where they are not kept."""
        if not self.keep or self.law == "coordinate":
            return None
        return self.numbers(), max(-FLOAT32_MAX, min(scale * self.scale, FLOAT32_MAX))

    def add_to(self, vector: Tensor, scale: float) -> None:
        """``vector += scale · u``, in place, one block at a time."""
        factor = max(-FLOAT32_MAX, min(scale * self.scale, FLOAT32_MAX))  # as far as float32 goes
        if self.keep and self.law != "coordinate":
            add(vector, self.numbers() if self._numbers is None else self._numbers, factor)
            return
        if is_plain(vector) and self.law != "coordinate":
            Source(self.seed).add_to(vector.numpy(), self._kind, factor)
        else:
            for start, block in self._blocks():
                add(vector[start : start + block.numel()], block, factor)


class Directions:
    """The directions of one owner: draw number n is seeded by its stream, and needs no state.

    Args:
        law: their distribution, one of `LAWS`.
        dimension: d.
        stream: the owner's own.
        recent: how many of the last draws are remembered, for a second use.
    """

    def __init__(self, law: LawName, dimension: int, stream: Stream, recent: int = 1) -> None:
        if law not in LAWS:
            raise ConfigError(f"directions is {law!r}; known are {', '.join(LAWS)}")
        self.law = law
        self.dimension = dimension
        self.are_kept = dimension * recent <= KEEP_UP_TO
        """Whether directions are held as a whole until they are used again."""
        self._stream = stream
        self._recent: list[tuple[int, Direction] | None] = [None] * recent
        self._query: tuple[int, list[Direction]] = (-1, [])

    def draw(self, number: int) -> Direction:
        """Direction number ``number``; the same every time it is asked for."""
        place = number % len(self._recent)
        known = self._recent[place]
        if known is None or known[0] != number:
            seed = self._stream.seed(number)
            drawn = Direction(self.law, self.dimension, seed, keep=self.are_kept)
            known = number, drawn
            self._recent[place] = known
        return known[1]

    def of_query(self, number: int) -> list[Direction]:
        """The directions of query ``number`` where each query has ``recent`` of them."""
        if self._query[0] != number:
            count = len(self._recent)
            numbers = range(number * count, (number + 1) * count)
            self._query = number, list(map(self.draw, numbers))
        return self._query[1]
