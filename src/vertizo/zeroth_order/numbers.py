"""What directions are made of: normal numbers or signs from the words of a seeded generator.

A direction needs independent numbers of mean 0 and variance 1 that come from all sides alike, and
very many of them; the last digits of a normal distribution it does not need. Normal numbers take
65,536 values here, all equally likely: the normal's quantiles at the middles of as many equal
shares, scaled to a variance of exactly 1 (the largest is 4.32, the fourth moment 2.999). Sixteen
bits and a look-up make one, where Box–Muller takes 32 and a logarithm, a root and a cosine.

Privacy noise is never drawn from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from vertizo.core import kernels
from vertizo.core.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor

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
