"""Hard rows of embeddings for a clip: rounding errors are as large as the numbers they change.

A clip bounds what a record adds for every input that a client may send. Random rows rarely break
one. Hard ones are large and nearly constant, so that a normalisation leaves only rounding errors;
subnormal; or cancel in a sum. `Rows` draws from these families and varies given rows, so that a
search can climb.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

FAMILIES = 6


class Rows:
    """A source of hard rows for a search.

    Args:
        generator: the search's randomness.
        width: numbers in a row.
        bound: their largest absolute value (``server.embedding_bound``).
    """

    def __init__(self, generator: np.random.Generator, width: int, bound: float) -> None:
        self._random, self._width, self._bound = generator, width, bound

    def fresh(self) -> Tensor:
        """Draw a row of one of the families, float32 [width]."""
        random, width = self._random, self._width
        size = 10.0 ** random.uniform(-3, math.log10(self._bound))
        spread = 2.0 ** -float(random.integers(4, 26))
        plain = random.standard_normal(width)
        family = random.integers(FAMILIES)
        if family == 0:  # nearly constant
            values = size * (1 + spread * plain)
        elif family == 1:  # constant but for one number
            values = np.full(width, size)
            values[random.integers(width)] *= 1 + spread
        elif family == 2:  # subnormal, or nearly
            values = plain * 10.0 ** -random.uniform(30, 44)
        elif family == 3:  # pairs that nearly cancel
            values = np.repeat(plain[: width // 2 + 1], 2)[:width] * size
            values[1::2] *= -(1 + spread)
        elif family == 4:  # some columns constant, the others not
            values = np.where(np.arange(width) < random.integers(width + 1), size, plain)
        else:
            values = plain * size
        return self._bounded(torch.from_numpy(values))

    def varied(self, row: Tensor) -> Tensor:
        """Draw a row near another one, changed in some of its numbers or in all."""
        change = torch.from_numpy(self._random.standard_normal(len(row)))
        scale = 10.0 ** self._random.uniform(-8, 0)
        if self._random.integers(2):
            change[torch.from_numpy(self._random.random(len(row)) < 0.7)] = 0
        return self._bounded(row.double() * (1 + scale * change))

    def _bounded(self, row: Tensor) -> Tensor:
        return row.clamp(-self._bound, self._bound).to(torch.float32)
