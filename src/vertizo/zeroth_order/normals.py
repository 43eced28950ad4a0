"""Standard normal numbers for directions, sixteen random bits each.

A direction needs independent numbers of mean 0 and variance 1 that come from all sides alike, and
very many of them; the last digits of a normal distribution it does not need. These take 65,536
values, all equally likely: the normal's quantiles at the middles of as many equal shares, scaled to
a variance of exactly 1 (the largest is 4.32, the fourth moment 2.999). A table of 256 KiB is looked
up three times as fast as Box–Muller's logarithms and cosines are computed.

Privacy noise is never drawn from here.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float32]
PER_WORD = 4
"""Numbers made of one 64-bit word."""


@cache
def values() -> Numbers:
    """The values, ascending, float32 [65536]."""
    shares, quantile = 1 << 16, NormalDist().inv_cdf
    upper = np.array([quantile(0.5 + (k + 0.5) / shares) for k in range(shares // 2)])
    upper /= np.sqrt(np.mean(upper**2))
    return np.concatenate([-upper[::-1], upper]).astype(np.float32)


def words_for(size: int) -> int:
    """64-bit words that so many numbers take."""
    return -(-size // PER_WORD)


def normals_from(words: NDArray[np.uint64], out: Numbers) -> None:
    """Numbers from random words [..., n] into ``out`` [..., 4 n]."""
    values().take(words.view(np.uint16), out=out, mode="wrap")  # unbuffered; no index is beyond


def normals(rng: np.random.Generator, size: int) -> Numbers:
    """``size`` numbers, float32 [size].

    >>> normals(np.random.default_rng(1), 6).shape
    (6,)
    """
    words = words_for(size)
    out = np.empty(words * PER_WORD, np.float32)
    normals_from(rng.bit_generator.random_raw(words), out)
    return out[:size]
