"""Random directions: their laws, and one drawn direction that can be re-created from its seed.

A direction ``u`` of dimension ``d`` is defined by its law and a 64-bit seed, block by block
(`BLOCK` numbers at a time), so that it can be added to a vector without ever existing as a
whole. That is MeZO's way of training with no memory beyond the model's (Malladi et al. 2023).
Small directions are kept after their first use, which is faster. Both give the same numbers,
bit for bit.

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
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vertizo.errors import ConfigError
from vertizo.randomness import Stream, generator

LawName = Literal["sphere", "scaled-sphere", "gaussian", "rademacher", "coordinate"]
LAWS: tuple[str, ...] = get_args(LawName)

BLOCK = 1 << 15
"""Numbers drawn at a time. Part of every law's definition: another block, other directions."""

KEEP_UP_TO = 1 << 20
"""Directions of at most so many numbers (4 MiB) are kept between their uses."""


def _gaussian_block(rng: np.random.Generator, size: int) -> Tensor:
    """Box–Muller, two normals from 64 random bits; cut off beyond 6.8 standard deviations."""
    bits = rng.integers(0, 1 << 64, (size + 1) // 2, dtype=np.uint64)
    uniform = torch.from_numpy(bits.view(np.int32)).view(-1, 2).t().to(torch.float32)
    radius, angle = uniform.mul_(2.0**-32).unbind()  # in [-1/2, 1/2]
    radius.abs_().mul_(2).clamp_(2.0**-33, 1).log_().mul_(-2).sqrt_()
    angle.mul_(2 * math.pi)
    return torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)])[:size]


def _rademacher_block(rng: np.random.Generator, size: int) -> Tensor:
    bits = rng.integers(0, 1 << 64, (size + 63) // 64, dtype=np.uint64)
    signs = np.unpackbits(bits.view(np.uint8), count=size)
    return torch.from_numpy(signs).to(torch.float32).mul_(2).sub_(1)


def _blocks(
    draw: Callable[[np.random.Generator, int], Tensor], dimension: int, seed: int
) -> Iterator[tuple[int, Tensor]]:
    """(offset, block) pairs that make up the direction of one seed."""
    rng = generator(seed)
    for start in range(0, dimension, BLOCK):
        yield start, draw(rng, min(BLOCK, dimension - start))


class Direction:
    """One drawn direction ``u`` of ``dimension`` numbers.

    Args:
        law: its distribution, one of `LAWS`.
        dimension: d, the size of the vectors it is added to.
        seed: 64 bits; same law, dimension and seed, same numbers.
        keep: hold the numbers after their first use instead of drawing them again.
    """

    __slots__ = ("_blocks", "_scale", "dimension", "keep", "law", "seed")

    def __init__(self, law: LawName, dimension: int, seed: int, *, keep: bool) -> None:
        self.law = law
        self.dimension = dimension
        self.seed = seed
        self.keep = keep
        self._blocks: list[tuple[int, Tensor]] | None = None
        self._scale: float | None = None

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """(offset, numbers) pairs, before the scale of the law is applied."""
        if self._blocks is not None:
            return iter(self._blocks)
        if self.law == "coordinate":
            axis = int(generator(self.seed).integers(self.dimension))
            drawn: Iterator[tuple[int, Tensor]] = iter([(axis, torch.ones(1))])
        elif self.law == "rademacher":
            drawn = _blocks(_rademacher_block, self.dimension, self.seed)
        else:
            drawn = _blocks(_gaussian_block, self.dimension, self.seed)
        if self.keep:
            self._blocks = list(drawn)
            return iter(self._blocks)
        return drawn

    @property
    def scale(self) -> float:
        """What the drawn numbers are multiplied by: 1, or what puts them on a sphere."""
        if self._scale is None:
            self._scale = 1.0
            if self.law in ("sphere", "scaled-sphere"):
                norm = math.sqrt(sum(float(torch.dot(b, b)) for _, b in self.blocks()))
                radius = 1.0 if self.law == "sphere" else math.sqrt(self.dimension)
                self._scale = radius / norm
        return self._scale

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
        return math.sqrt(sum(float(torch.dot(b, b)) for _, b in self.blocks()))

    def add_to(self, vector: Tensor, scale: float) -> None:
        """``vector += scale · u``, in place, one block at a time."""
        factor = scale * self.scale
        for start, block in self.blocks():
            vector[start : start + block.numel()].add_(block.to(vector), alpha=factor)

    def dense(self) -> Tensor:
        """u as one float32 vector of ``dimension`` numbers."""
        vector = torch.zeros(self.dimension)
        self.add_to(vector, 1.0)
        return vector


class Directions:
    """The directions of one owner: draw number n is seeded by its stream, and needs no state.

    Args:
        law: their distribution, one of `LAWS`.
        dimension: d.
        stream: the owner's own.
    """

    def __init__(self, law: LawName, dimension: int, stream: Stream) -> None:
        if law not in LAWS:
            raise ConfigError(f"directions is {law!r}; known are {', '.join(LAWS)}")
        self._law = law
        self._dimension = dimension
        self._stream = stream
        self._last: tuple[int, Direction] | None = None

    def draw(self, number: int) -> Direction:
        """Direction number ``number``; the same every time it is asked for."""
        if self._last is None or self._last[0] != number:
            seed = self._stream.seed(number)
            keep = self._dimension <= KEEP_UP_TO
            self._last = number, Direction(self._law, self._dimension, seed, keep=keep)
        return self._last[1]
