"""Gradient estimators: from losses at perturbed parameters to the coefficient of a direction.

An estimate is ``coefficient · u``, never formed: it is added to the parameters along the seed of
``u`` (`Along`). ``φ`` is the law's dimension factor (see `directions`).

==========================  =================================  =================================
estimator                   coefficient of u                   used by
==========================  =================================  =================================
`two_point`                 φ (f(w + λu) − f(w − λu)) / (2λ)   DPZV; a zeroth-order server
`forward_difference`        φ (f(w + μu) − f(w)) / μ           ZOO-VFL, Syn-ZOO-VFL, VFL-Cascaded
==========================  =================================  =================================

DPZV's eq. 7 divides by λ, its eq. 3 by 2λ; the unbiased 2λ is used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from vertizo.core.deferred import torch
from vertizo.zeroth_order.directions import Direction

if TYPE_CHECKING:
    from torch import Tensor

Losses = TypeVar("Losses", float, "Tensor", NDArray[np.float32])


def two_point(plus: Losses, minus: Losses, smoothing: float) -> Losses:
    """``(f(w + λu) − f(w − λu)) / (2λ)``: the slope along u, of a loss or of each record's."""
    return (plus - minus) / (2 * smoothing)


def forward_difference(shifted: Losses, plain: Losses, smoothing: float) -> Losses:
    """``(f(w + μu) − f(w)) / μ``: the slope along u, of a loss or of each record's."""
    return (shifted - plain) / smoothing


@dataclass(frozen=True)
class Along:
    """The gradient estimate ``coefficient · u``, without ever holding it."""

    direction: Direction
    coefficient: float

    def add_to(self, vector: Tensor, scale: float) -> None:
        """``vector += scale · coefficient · u``."""
        self.direction.add_to(vector, scale * self.coefficient)

    def held(self) -> tuple[Tensor, float] | None:
        """As of a `Gradient`."""
        return self.direction.held(self.coefficient)

    def norm(self) -> float:
        """The Euclidean norm of the estimate."""
        return abs(self.coefficient) * self.direction.norm()


@dataclass(frozen=True)
class Sum:
    """A sum of estimates along different directions, without ever holding it."""

    parts: tuple[Along, ...]

    def add_to(self, vector: Tensor, scale: float) -> None:
        """``vector += scale · Σ_k coefficient_k · u_k``."""
        for part in self.parts:
            part.add_to(vector, scale)

    def held(self) -> None:
        """As of a `Gradient`: it is not."""

    def norm(self) -> float:
        """Its Euclidean norm; the one thing that needs it written out."""
        whole = torch.zeros(self.parts[0].direction.dimension)
        self.add_to(whole, 1.0)
        return float(torch.linalg.vector_norm(whole))


def estimate(direction: Direction, slope: float) -> Along:
    """The gradient estimate ``φ · slope · u``."""
    return Along(direction, direction.factor * slope)
