"""Directions of several owners, drawn together: to each the numbers that it would draw alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vertizo import kernels
from vertizo.models.vectors import add
from vertizo.zeroth_order.directions import FLOAT32_MAX, Direction, Directions, LawName
from vertizo.zeroth_order.numbers import Numbers, Source


@dataclass(frozen=True)
class Drawn:
    """Directions of one law, one a row."""

    law: LawName
    numbers: Numbers
    """u before its scale, [rows, d]."""
    rows: Sequence[Tensor]
    """The same, one by one."""
    scales: Sequence[float]
    """What puts each on its sphere; 1 for laws without one."""

    @property
    def factor(self) -> float:
        """The dimension factor φ of the law."""
        dimension = self.numbers.shape[1]
        return float(dimension) if self.law in ("sphere", "coordinate") else 1.0

    def length(self, row: int) -> float:
        """The Euclidean norm of one direction."""
        if self.law in ("sphere", "coordinate"):
            return 1.0
        if self.law in ("scaled-sphere", "rademacher"):
            return math.sqrt(self.numbers.shape[1])
        return math.sqrt(kernels.squares(self.numbers[row]))


@dataclass(frozen=True)
class Step:
    """The gradient estimate ``Σ_k coefficient_k · u_k`` of one owner."""

    drawn: Sequence[Drawn]
    row: int
    coefficients: Sequence[float]

    def add_to(self, vector: Tensor, scale: float) -> None:
        """``vector += scale · gradient``, in place."""
        for drawn, coefficient in zip(self.drawn, self.coefficients, strict=True):
            alpha = scale * coefficient * drawn.scales[self.row]
            add(vector, drawn.rows[self.row], _bounded(alpha))

    def held(self) -> tuple[Tensor, float] | None:
        """As of a `Gradient`."""
        if len(self.drawn) > 1 or self.drawn[0].law == "coordinate":
            return None
        (drawn,), (coefficient,) = self.drawn, self.coefficients
        return drawn.rows[self.row], _bounded(coefficient * drawn.scales[self.row])

    def norm(self) -> float:
        """Its Euclidean norm."""
        if len(self.drawn) == 1:
            return abs(self.coefficients[0]) * self.drawn[0].length(self.row)
        whole = torch.zeros(self.drawn[0].numbers.shape[1])
        self.add_to(whole, 1.0)
        return float(torch.linalg.vector_norm(whole))


def _bounded(factor: float) -> float:
    """As far as float32 goes."""
    return max(-FLOAT32_MAX, min(factor, FLOAT32_MAX))


def draw(owners: Sequence[Directions], numbers: Sequence[int]) -> Drawn:
    """Direction number n_i of owner i; the owners' law and dimension are the same."""
    law, dimension = owners[0].law, owners[0].dimension
    seeds = [owner.seed(number) for owner, number in zip(owners, numbers, strict=True)]
    if law == "coordinate":
        each = [Direction(law, dimension, seed, keep=True) for seed in seeds]
        drawn = torch.stack([direction.numbers() for direction in each])
        return Drawn(law, drawn.numpy(), drawn.unbind(), [1.0] * len(seeds))
    found = np.empty((len(seeds), dimension), np.float32)
    for row, seed in zip(found, seeds, strict=True):
        Source(seed).fill(row, "signs" if law == "rademacher" else "normals")
    rows, scales = torch.from_numpy(found).unbind(), [1.0] * len(seeds)
    if law in ("sphere", "scaled-sphere"):
        radius = 1.0 if law == "sphere" else math.sqrt(dimension)
        scales = [radius / math.sqrt(kernels.squares(row)) for row in found]
    return Drawn(law, found, rows, scales)
