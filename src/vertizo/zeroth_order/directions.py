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
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

import numpy as np

from vertizo.core import kernels
from vertizo.core.deferred import torch
from vertizo.core.errors import ConfigError
from vertizo.core.names import LawName
from vertizo.core.randomness import Stream, generator
from vertizo.models.vectors import add, is_plain
from vertizo.zeroth_order.numbers import Kind, Reader, Source, blocks, drawn

if TYPE_CHECKING:
    from torch import Tensor

LAWS: tuple[str, ...] = get_args(LawName)

FLOAT32_MAX = float(np.finfo(np.float32).max)

KEEP_UP_TO = 1 << 20
"""Directions of at most so many numbers (4 MiB) are kept between their uses."""


class Direction:
    """One drawn direction ``u`` of ``dimension`` numbers.

    Args:
        law: its distribution, one of `LAWS`.
        dimension: d, the size of the vectors it is added to.
        seed: 64 bits; same law, dimension and seed, same numbers.
        keep: hold the numbers after their first use instead of drawing them again.
    """

    __slots__ = ("_numbers", "_scale", "dimension", "keep", "law", "seed")

    def __init__(self, law: LawName, dimension: int, seed: int, *, keep: bool) -> None:
        self.law = law
        self.dimension = dimension
        self.seed = seed
        self.keep = keep
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

    @property
    def _kind(self) -> Kind:
        return "signs" if self.law == "rademacher" else "normals"

    def numbers(self) -> Tensor:
        """u without its `scale`, as one float32 vector [d]; kept if the direction is."""
        if self._numbers is not None:
            return self._numbers
        if self.law == "coordinate":
            numbers = torch.zeros(self.dimension)
            for start, block in self._blocks():
                numbers[start : start + block.numel()] = block
        else:
            numbers = torch.from_numpy(drawn(self._kind, self.seed, self.dimension))
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
                self._scale = radius / self._norm_of_numbers()
        return self._scale

    def _norm_of_numbers(self) -> float:
        if self.keep:
            return math.sqrt(kernels.squares(self.numbers().numpy()))
        return math.sqrt(Source(self.seed).squares(self.dimension))

    @property
    def factor(self) -> float:
        """The dimension factor φ of the law."""
        return float(self.dimension) if self.law in ("sphere", "coordinate") else 1.0

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
        return self.numbers(), self._times(scale)

    def _times(self, scale: float) -> float:
        """What the drawn numbers are multiplied by for ``scale · u``, as far as float32 goes."""
        return max(-FLOAT32_MAX, min(scale * self.scale, FLOAT32_MAX))

    def add_to(self, vector: Tensor, scale: float) -> None:
        """``vector += scale · u``, in place, one block at a time."""
        factor = self._times(scale)
        if self.keep and self.law != "coordinate":
            add(vector, self.numbers(), factor)
        elif is_plain(vector) and self.law != "coordinate":
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

    def seed(self, number: int) -> int:
        """The seed of direction number ``number``."""
        return self._stream.seed(number)

    def draw(self, number: int) -> Direction:
        """Direction number ``number``; the same every time it is asked for."""
        place = number % len(self._recent)
        known = self._recent[place]
        if known is None or known[0] != number:
            drawn = Direction(self.law, self.dimension, self.seed(number), keep=self.are_kept)
            known = number, drawn
            self._recent[place] = known
        return known[1]
