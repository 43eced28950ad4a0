"""Exact draws from the discrete Gaussian, in integers only (Canonne, Kamath and Steinke 2020).

``N_Z(0, s²)`` gives the integer n a probability proportional to ``exp(−n²/(2s²))``. Noise that is
computed in floating point has gaps and clusters that can tell neighbouring sums apart (Mironov
2012); here every probability is the exact one, given fair bits.

The paper's three algorithms are followed with one choice of their own parameter: s is an integer,
and the Laplace distribution that candidates come from has the scale ``t = s``. Then everything fits
64-bit integers: the candidate ``±(U + sV)`` is accepted with probability
``exp(−(|U + sV| − s)²/(2s²))``, and writing that distance as ``i·s + r`` with ``0 ≤ r < s`` makes
the exponent ``i²/2 + i·r/s + r²/(2s²)``: a number of coins each of which has an exponent of at most
one. No product of large numbers occurs, so that there is no range beyond which a draw is inexact.

Candidates are independent, so that a block of them is made at once, with one array operation for
each step of the algorithms. How long a block takes depends on how many candidates were refused, not
on what is then done with the noise; who draws it ahead of time tells nothing by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vertizo.core.errors import ConfigError

RandomBytes = Callable[[int], bytes]
"""Gives as many bytes as asked for, which nobody can foresee; ``os.urandom`` but in tests."""

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

LARGEST_SCALE = 2**30
"""Largest scale s: ``2s²`` fits 64 bits, with room to spare."""

CANDIDATES_PER_DRAW = 2.3
"""Candidates per draw, about: 0.63 pass the first coin, 0.76 of those the last."""


class DiscreteGaussian:
    """A sampler of ``N_Z(0, s²)``; it keeps no state, and uses no bit twice.

    The scale s is an integer from 1 to 2³⁰, else ConfigError, and nearly exactly the standard
    deviation from 2 on.

    >>> draws = DiscreteGaussian(1000).draw(5)
    >>> draws.shape, draws.dtype
    ((5,), dtype('int64'))
    """

    def __init__(self, scale: int, random_bytes: RandomBytes = os.urandom) -> None:
        if not (isinstance(scale, int) and 1 <= scale <= LARGEST_SCALE):
            raise ConfigError(
                f"the scale of discrete Gaussian noise is {scale}; "
                f"it must be an integer from 1 to {LARGEST_SCALE}"
            )
        self.scale = scale
        self._random_bytes = random_bytes

    def draw(self, count: int) -> Integers:
        """``count`` independent draws, int64."""
        result, filled = np.empty(count, np.int64), 0
        while filled < count:
            missing = count - filled
            accepted = self._accepted(int(missing * CANDIDATES_PER_DRAW) + 16)[:missing]
            result[filled : filled + accepted.size] = accepted
            filled += accepted.size
        return result

    def _accepted(self, candidates: int) -> Integers:
        """Algorithm 3: the candidates of a discrete Laplace law that are kept."""
        remainder, multiple, negative = self._laplace(candidates)
        # The distance of U + sV from s is i·s + r: it is s − U below s, and U + s(V − 1) above.
        below = multiple == 0
        whole = np.where(below, remainder == 0, multiple - 1)
        rest = np.where(below & (remainder > 0), self.scale - remainder, remainder)
        square = 2 * self.scale * self.scale
        keep = self._coin(rest * rest, square)
        keep &= self._coins(whole, rest, self.scale)
        keep &= self._coins(whole * whole, np.ones_like(rest), 2)
        magnitude = (remainder + self.scale * multiple)[keep]
        return np.where(negative[keep], -magnitude, magnitude)

    def _laplace(self, candidates: int) -> tuple[Integers, Integers, Flags]:
        """Algorithm 2 with scale s: U, V and the sign of ``±(U + sV)``, without a second zero."""
        remainder = self._below(self.scale, candidates)
        remainder = remainder[self._coin(remainder, self.scale)]
        multiple = np.zeros_like(remainder)
        going = np.arange(multiple.size)
        while going.size:
            going = going[self._coin(np.ones(going.size, np.int64), 1)]
            multiple[going] += 1
        negative = self._below(2, remainder.size) == 1
        once = ~(negative & (remainder == 0) & (multiple == 0))
        return remainder[once], multiple[once], negative[once]

    def _coins(self, times: Integers, numerators: Integers, denominator: int) -> Flags:
        """Whether all ``times`` tosses of `_coin` come up true; true where there is none."""
        tossed, left = np.ones(times.size, np.bool_), np.flatnonzero(times)
        toss = 0
        while left.size:
            toss += 1
            true = self._coin(numerators[left], denominator)
            tossed[left[~true]] = False
            left = left[true]
            left = left[times[left] > toss]
        return tossed

    def _coin(self, numerators: Integers, denominator: int) -> Flags:
        """Algorithm 1: true with probability ``exp(−γ)``, ``γ = numerator/denominator ≤ 1``.

        Tosses of probability γ/k for k = 1, 2, … until one fails; true where the first to fail is
        an odd one. A toss of γ/k is one of γ and one of 1/k.
        """
        odd, going = np.ones(numerators.size, np.bool_), np.arange(numerators.size)
        k = 1
        while going.size:
            true = self._below(denominator, going.size) < numerators[going]
            if k > 1:
                true &= self._below(k, going.size) == 0
            going = going[true]
            odd[going] ^= True
            k += 1
        return odd

    def _below(self, bound: int, count: int) -> Integers:
        """Uniform integers in [0, bound): bits as they come, those beyond the bound drawn anew."""
        bits = (bound - 1).bit_length()
        if bits == 0:
            return np.zeros(count, np.int64)
        result = self._bits(bits, count)
        beyond = np.flatnonzero(result >= bound)
        while beyond.size:
            result[beyond] = self._bits(bits, beyond.size)
            beyond = beyond[result[beyond] >= bound]
        return result

    def _bits(self, bits: int, count: int) -> Integers:
        """Uniform integers of so many bits, at most 63."""
        words = np.frombuffer(self._random_bytes(8 * count), np.uint64)
        return (words >> np.uint64(64 - bits)).view(np.int64)
