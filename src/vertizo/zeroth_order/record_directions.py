"""Random directions on embeddings: an independent one for every record, all perturbed at once.

VFL-CZOFO perturbs the embedding and not the parameters: direction number j of a query is an array
[batch, d_h] whose rows are independent draws of one law. Client and server draw the same from a
seed they share. ``φ`` is the law's dimension factor at dimension d_h (see `directions`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from vertizo.core.deferred import torch
from vertizo.core.names import LawName
from vertizo.core.randomness import generator
from vertizo.zeroth_order.directions import FLOAT32_MAX, drawn

if TYPE_CHECKING:
    from torch import Tensor

TINY = np.float32(1 / FLOAT32_MAX)
REMEMBERED = 2**20
"""Numbers up to which the last draws are kept: 4 MiB each."""


def record_directions(
    law: LawName, count: int, batch: int, dimension: int, seed: int
) -> tuple[Tensor, float]:
    """``count`` directions for every record of a batch, and φ: [count, batch, dimension].

    The result is not to be changed: the other side may be in this process and be given the same.
    The law ``coordinate`` takes every axis in turn, from one drawn for each record and with signs
    drawn for each number: ``count = dimension`` of them make up the gradient itself, up to O(μ).

    >>> u, factor = record_directions("sphere", 3, 2, 4, seed=1)
    >>> u.shape, factor
    (torch.Size([3, 2, 4]), 4.0)
    """
    small = count * batch * dimension <= REMEMBERED
    return (_remembered if small else _drawn)(law, count, batch, dimension, seed)


def _drawn(law: LawName, count: int, batch: int, dimension: int, seed: int) -> tuple[Tensor, float]:
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


_remembered = lru_cache(maxsize=8)(_drawn)
