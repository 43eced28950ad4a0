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
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vertizo.core import kernels
from vertizo.core.arrays import Scalar
from vertizo.core.errors import ConfigError
from vertizo.core.names import LawName
from vertizo.core.plugins.lazy_import import torch
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
    """The values that a normal number may take, ascending, float32 [65536]."""
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
        """Fill ``out``, contiguous, with the next numbers, and return it."""
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
    """The numbers of `drawn` in blocks; each is overwritten by the next."""
    source, buffer = Source(seed), np.empty(min(size, BLOCK), np.float32)
    for start in range(0, size, BLOCK):
        yield source.fill(buffer[: size - start], kind)


class Direction:
    """One drawn direction ``u`` of ``dimension`` numbers, which law and 64-bit seed decide.

    ``keep`` holds the numbers after their first use instead of drawing them again.
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

    def _axis(self) -> int:
        """The axis that a direction of the law coordinate is along."""
        return int(generator(self.seed).integers(self.dimension))

    def _blocks(self) -> Iterator[Tensor]:
        return map(torch.from_numpy, blocks(self._kind, self.seed, self.dimension))

    def numbers(self) -> Tensor:
        """u without its `scale`, as one float32 vector [d]; kept if the direction is."""
        if self._numbers is not None:
            return self._numbers
        if self.law == "coordinate":
            numbers = torch.zeros(self.dimension)
            numbers[self._axis()] = 1.0
        else:
            empty = np.empty(self.dimension, np.float32)
            numbers = torch.from_numpy(Source(self.seed).fill(empty, self._kind))
        if self.keep:
            self._numbers = numbers
        return numbers

    def zeros(self) -> Tensor:
        """A vector [d] of zeros where u is."""
        return torch.zeros(self.dimension)

    def reader(self) -> Callable[[int], Tensor]:
        """A function that gives the next so many of the same numbers, valid until the next call.

        They are never held as a whole. Not for the law coordinate.
        """
        blocks, left, buffer = self._blocks(), torch.empty(0), torch.empty(0)

        def read(count: int) -> Tensor:
            nonlocal left, buffer
            if buffer.numel() < count:
                buffer = torch.empty(count)
            found, done = buffer[:count], 0
            while done < count:
                if not left.numel():
                    left = next(blocks)
                taken = min(count - done, left.numel())
                found[done : done + taken] = left[:taken]
                left = left[taken:]
                done += taken
            return found

        return read

    @property
    def scale(self) -> float:
        """The factor of the drawn numbers: 1, or the one that puts them on a sphere."""
        if self._scale is None:
            self._scale = 1.0
            if self.law in ("sphere", "scaled-sphere"):
                radius = 1.0 if self.law == "sphere" else math.sqrt(self.dimension)
                self._scale = radius / self._norm_of_numbers()
        return self._scale

    def _norm_of_numbers(self) -> float:
        if not self.keep:
            return math.sqrt(Source(self.seed).squares(self.dimension))
        numbers = self.numbers() if self._numbers is None else self._numbers
        return math.sqrt(kernels.squares(numbers.numpy()))

    def norm(self) -> Scalar:
        """The Euclidean norm of u."""
        if self.law in ("sphere", "coordinate"):
            return 1.0
        if self.law in ("scaled-sphere", "rademacher"):
            return math.sqrt(self.dimension)
        return self._norm_of_numbers()

    def held(self, scale: Scalar) -> tuple[Tensor, Scalar] | None:
        """``scale · u`` as numbers in memory and their factor; None where they are not kept."""
        if not self.keep or self.law == "coordinate":
            return None
        factor = float(scale) * self.scale
        return self.numbers(), max(-FLOAT32_MAX, min(factor, FLOAT32_MAX))

    def descend(
        self,
        parameters: Tensor,
        velocity: Tensor,
        momentum: float,
        scale: Scalar,
        factor: Scalar,
    ) -> bool:
        """See `OnePass.descend`, of ``scale · u``."""
        return False

    def add_to(self, vector: Tensor, scale: Scalar) -> None:
        """``vector += scale · u``, in place, one block at a time."""
        factor = float(scale) * self.scale
        factor = max(-FLOAT32_MAX, min(factor, FLOAT32_MAX))  # as far as float32 goes
        if self.law == "coordinate":
            axis = self._axis()
            add(vector[axis : axis + 1], torch.ones(1), factor)
        elif self.keep:
            add(vector, self.numbers() if self._numbers is None else self._numbers, factor)
        elif is_plain(vector):
            Source(self.seed).add_to(vector.numpy(), self._kind, factor)
        else:
            for start, block in zip(range(0, self.dimension, BLOCK), self._blocks(), strict=True):
                add(vector[start : start + BLOCK], block, factor)


class Directions:
    """The directions of one owner: draw number n is seeded by its stream, and needs no state.

    Each query has ``count`` of them, with numbers that follow each other; those of the last query
    are remembered, for a second use.
    """

    def __init__(self, law: LawName, dimension: int, stream: Stream, count: int = 1) -> None:
        if law not in LAWS:
            raise ConfigError(f"directions is {law!r}; known are {', '.join(LAWS)}")
        self.law = law
        self.dimension = dimension
        self.are_kept = dimension * count <= KEEP_UP_TO
        """Whether directions are held as a whole until they are used again."""
        self._stream = stream
        self._count = count
        self._query = -1
        self._drawn: list[Direction] = []

    def draw(self, number: int) -> Direction:
        """Direction number ``number``; the same every time it is asked for."""
        if self._count == 1:
            return self.of_query(number)[0]
        query, place = divmod(number, self._count)
        return self.of_query(query)[place]

    def of_query(self, number: int) -> list[Direction]:
        """The directions of query ``number``."""
        if self._query != number:
            self._drawn = []
            for n in range(number * self._count, (number + 1) * self._count):
                seed = self._stream.seed(n)
                self._drawn.append(Direction(self.law, self.dimension, seed, keep=self.are_kept))
            self._query = number
        return self._drawn


TINY = np.float32(1 / FLOAT32_MAX)
REMEMBERED = 2**20
"""Numbers up to which the last draws for records are kept: 4 MiB each."""


def record_directions(
    law: LawName, count: int, batch: int, dimension: int, seed: int
) -> tuple[Tensor, float]:
    """``count`` directions for every record of a batch, [count, batch, dimension], and φ.

    Of embeddings and not of parameters, for VFL-CZOFO: the rows of a direction [batch, d_h] are
    independent draws of one law, and client and server draw the same from a seed they share. The
    result is not to be changed: the other side may be in this process and be given the same. The
    law ``coordinate`` takes every axis in turn, from one drawn for each record and with signs drawn
    for each number: ``count = dimension`` of them make up the gradient itself, up to O(μ).

    >>> u, factor = record_directions("sphere", 3, 2, 4, seed=1)
    >>> u.shape, factor
    (torch.Size([3, 2, 4]), 4.0)
    """
    small = count * batch * dimension <= REMEMBERED
    return (_remembered if small else _for_records)(law, count, batch, dimension, seed)


def _for_records(
    law: LawName, count: int, batch: int, dimension: int, seed: int
) -> tuple[Tensor, float]:
    shape = count, batch, dimension
    if law == "coordinate":
        rng = generator(seed)
        first = rng.integers(dimension, size=batch)
        axes = (first + np.arange(count)[:, None]) % dimension
        sides = 2 * rng.integers(2, size=(count, batch)) - 1
        units = np.zeros(shape, np.float32)
        np.put_along_axis(units, axes[:, :, None], sides[:, :, None].astype(np.float32), 2)
        return torch.from_numpy(units), float(dimension)
    if law == "rademacher":
        return torch.from_numpy(drawn("signs", seed, math.prod(shape)).reshape(shape)), 1.0
    numbers = drawn("normals", seed, math.prod(shape)).reshape(shape)
    if law == "gaussian":
        return torch.from_numpy(numbers), 1.0
    radius = 1.0 if law == "sphere" else math.sqrt(dimension)
    norms = np.sqrt(np.einsum("jbd,jbd->jb", numbers, numbers)) + TINY
    numbers *= (np.float32(radius) / norms)[:, :, None]
    return torch.from_numpy(numbers), float(dimension) if law == "sphere" else 1.0


_remembered = lru_cache(maxsize=8)(_for_records)
