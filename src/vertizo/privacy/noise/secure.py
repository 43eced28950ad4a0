"""Noise for real parties: from bits that nobody can foresee, exact, on a fixed grid.

Clipped contributions are cut to multiples of a grid, added as integers, and given integer noise
``N_Z(0, s²)``; only the result is a floating-point number again. So nothing that is released has
been through rounding that depends on the data, and what it guarantees is computed for what is
released (`privacy/accounting/grid.py`).

The grid g is a power of two that depends on the public constants C and σ alone: near ``C·2⁻²⁴``,
coarser only where σ is so large that ``s = ⌈σ/g⌉`` would exceed 2³⁰. Cutting goes towards zero, so
that no contribution grows: integer vectors of norm at most C/g stay at most 2C/g apart.

Numbers are drawn ahead, used once and dropped. There is no generator here whose state could be
saved (a label holder that must compute a course of events anew keeps the key of its bits, see
`vertizo.network.serving.archive`), and the pool of drawn numbers refuses to be pickled; a forked
process starts with an empty one. (A virtual machine that is resumed twice from one image, memory
and all, would repeat what was in the pool. Python cannot wipe memory for certain: whoever reads the
server's memory has the labels.)
"""

from __future__ import annotations

import math
import os
import weakref
from fractions import Fraction
from threading import Lock
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from vertizo.core.arrays import graphs
from vertizo.core.validate import non_negative, positive
from vertizo.privacy.accounting.grid import GridCorrection
from vertizo.privacy.clipping import Clip
from vertizo.privacy.noise.discrete_gaussian import DiscreteGaussian, Integers, RandomBytes
from vertizo.privacy.noise.mechanisms import NoiseSource

GRID_BITS = 24
"""The grid is finer than the clip by about this many bits: as fine as float32 is at the clip."""
LARGEST_SCALE_BITS = 30
LARGEST_SUM = 2.0**50
"""Grid steps at which sums without contributions are cut; float64 holds them exactly."""


class SecureNoise(NoiseSource):
    """Exact discrete Gaussian noise on clipped sums; one object for each clip and σ.

    Each method takes the number of the release, as seeded noise needs it, and ignores it: asking
    twice gives two independent results. At most ``ahead`` numbers are drawn ahead. ``noise_std``
    becomes σ as drawn: what was asked for, rounded up to the grid.

    >>> noise = SecureNoise(clip_norm=1.0, noise_std=10.0)
    >>> noise.sum(0, torch.ones(64, 3, dtype=torch.float64)).shape
    torch.Size([3])
    """

    def __init__(
        self,
        *,
        clip_norm: float,
        noise_std: float,
        ahead: int = 4096,
        random_bytes: RandomBytes = os.urandom,
    ) -> None:
        source = getattr(random_bytes, "name", "operating system")
        self.name = f"{source}, discrete Gaussian"
        self.is_secret = True
        self.clip_norm = positive("privacy.clip", clip_norm)
        self._clip = Clip(clip_norm)
        self.grid = grid_for(clip_norm, positive("privacy.noise_std", noise_std))
        self.grid_std = math.ceil(noise_std / self.grid)
        self.noise_std = self.grid_std * self.grid
        self._norm_limit = math.floor(Fraction(clip_norm / self.grid) ** 2)
        self._pool = _Pool(DiscreteGaussian(self.grid_std, random_bytes), ahead)

    @property
    def sensitivity(self) -> float:
        """The most that replacing one record moves `sum`, or one row of `each`: 2C."""
        return self._clip.sensitivity

    def sensitivity_onto(self, numbers: int, error: float = 0.0) -> float:
        """The most that replacing one record moves `onto`: ``2C + g√d + error`` for d numbers.

        ``error`` bounds how much farther apart than 2C floating-point arithmetic may put the sums
        of neighbouring data sets; whoever adds them up knows it.
        """
        non_negative("error", error)
        return self.sensitivity + self.grid * math.sqrt(numbers) + error

    def correction(self, numbers: int) -> GridCorrection:
        """The correction from Gaussian noise where ``numbers`` may depend on one record."""
        return GridCorrection(((numbers, self.grid_std),))

    def sum(self, release: int, rows: Tensor) -> Tensor:
        """``Σ_i rows_i + noise``: [batch] or [batch, K] → [1] or [K], float64."""
        return self._noised(self._on_grid(rows).sum(0))

    def each(self, release: int, rows: Tensor) -> Tensor:
        """Every row with noise of its own: [batch, ...], float64."""
        return self._noised(self._on_grid(rows)).view(rows.shape)

    def onto(self, release: int, total: Tensor) -> Tensor:
        """``total`` + noise, of its shape, for sums whose contributions were never apart, float64.

        `sensitivity_onto` is their sensitivity; it holds for finite sums only.
        """
        steps = total.to(torch.float64).nan_to_num(0.0) / self.grid
        return self._noised(steps.clamp_(-LARGEST_SUM, LARGEST_SUM).trunc_().to(torch.int64))

    def fill(self) -> None:
        """Draw ahead if less than half is left; call it once a reply has gone, or in a thread."""
        self._pool.fill()

    def forget(self) -> None:
        """Drop what was drawn ahead, as when bits come from elsewhere from now on."""
        self._pool.forget()

    def _on_grid(self, rows: Tensor) -> Tensor:
        """Rows in grid steps, [batch, K], cut towards zero: exact integers of bounded norm.

        Clipping leaves norms that exceed C by rounding errors. The limit is checked in integers,
        which cutting has nearly always brought below it; a row that is still above counts as 0.
        """
        rows = rows.unsqueeze(1) if rows.dim() == 1 else rows.flatten(1)
        steps = (self._clip(rows) / self.grid).trunc().to(torch.int64)
        within = (steps * steps).sum(1, keepdim=True) <= self._norm_limit
        return steps * within

    def _noised(self, steps: Tensor) -> Tensor:
        shape, count = tuple(steps.shape), steps.numel()
        noise: Tensor = graphs.fed(
            lambda: torch.from_numpy(self._pool.take(count)).view(shape),
            device=steps.device,
            shape=shape,
            dtype=torch.int64,
        )
        return (steps + noise).to(torch.float64) * self.grid


def grid_for(clip_norm: float, noise_std: float) -> float:
    """The grid's step: a power of two from ``C·2⁻²⁵`` up, and σ at most 2³⁰ steps.

    >>> grid_for(1.0, 10.0) == 2.0**-24
    True
    """
    _, clip_exponent = math.frexp(clip_norm)  # C < 2^exponent ≤ 2C
    _, noise_exponent = math.frexp(noise_std)
    finest = clip_exponent - 1 - GRID_BITS
    return math.ldexp(1.0, max(finest, noise_exponent - LARGEST_SCALE_BITS))


class _Pool:
    """Numbers drawn ahead: each is handed out once and overwritten; safe for threads and forks.

    Where it runs short, as many are drawn at once as it holds: the time that takes says little of
    any one of them.
    """

    def __init__(self, source: DiscreteGaussian, size: int) -> None:
        self._source = source
        self._ready = np.zeros(int(non_negative("numbers drawn ahead", size)), np.int64)
        self.forget()
        _pools.add(self)

    def forget(self) -> None:
        """Start anew, in a process that was forked: the other one has the same numbers."""
        self._ready[:] = 0
        self._left = 0
        self._lock = Lock()  # that of the parent may have been held by one of its threads

    def take(self, count: int) -> Integers:
        """``count`` numbers that nobody else gets."""
        with self._lock:
            start = max(0, self._left - count)
            last = self._ready[start : self._left]
            taken = last.copy()
            last[:] = 0
            self._left = start
        missing = count - taken.size
        if missing:
            fresh = self._source.draw(max(missing, self._ready.size))
            taken = np.concatenate([taken, fresh[:missing]])
            self._put(fresh[missing:])
        return taken

    def fill(self) -> None:
        """Draw what is missing, if half is."""
        missing = self._ready.size - self._left
        if 2 * missing > self._ready.size:
            self._put(self._source.draw(missing))

    def _put(self, fresh: Integers) -> None:
        with self._lock:
            room = min(fresh.size, self._ready.size - self._left)
            self._ready[self._left : self._left + room] = fresh[:room]
            self._left += room

    def __reduce__(self) -> NoReturn:
        raise TypeError("noise that was drawn is never written down or copied")


_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in _pools:
        pool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
