"""Gradient estimators: outputs at perturbed parameters, and from their losses to a step.

An estimate is ``coefficient · u``, never formed: it is added to the parameters along the seed of
``u`` (`Along`). ``φ`` is the law's dimension factor (see `directions`).

==========================  =================================  =================================
estimator                   coefficient of u                   used by
==========================  =================================  =================================
`two_point`                 φ (f(w + λu) − f(w − λu)) / (2λ)   DPZV; a zeroth-order server
`forward_difference`        φ (f(w + μu) − f(w)) / μ           ZOO-VFL, Syn-ZOO-VFL, VFL-Cascaded
==========================  =================================  =================================

DPZV's eq. 7 divides by λ, its eq. 3 by 2λ; the unbiased 2λ is used here.

`outputs` evaluates a model at ``w + offset · u`` in one of three ways, with the same numbers up to
rounding; the size and the kind of the model choose:

* `in_place` shifts the parameters from offset to offset along the direction's seed, evaluates,
  and shifts them back: no memory beyond the model and one evaluation (MeZO's algorithm 1).
* `at_once` hands the whole direction to the model, which may share work between the offsets and
  leaves its parameters untouched;
* `by_blocks`, for large stacks of linear layers, reads the direction once for all offsets, some
  rows of weights at a time, and leaves the parameters untouched as well
  (`vertizo.models.linear.blockwise`).

Shifting back leaves a rounding error of about one unit in the last place. Over thousands of rounds
float32 does not show it (a test says so); the worst seen was 4e-4 after 300,000 rounds, with signs
for directions and no updates; 16-bit formats do, and are restored from a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from vertizo.core.arrays import Scalar, times
from vertizo.core.plugins.lazy_import import torch
from vertizo.models.base import Model, Selected, gathered
from vertizo.models.linear import blockwise
from vertizo.models.linear.linear_stack import LinearStack
from vertizo.zeroth_order.directions import Direction, Directions

if TYPE_CHECKING:
    from torch import Tensor

Losses = TypeVar("Losses", float, "Tensor", Scalar, NDArray[np.float32])


def two_point(plus: Losses, minus: Losses, smoothing: float) -> Losses:
    """``(f(w + λu) − f(w − λu)) / (2λ)``: the slope along u, of a loss or of each record's.

    NumPy takes a fifth of PyTorch's time for a batch's losses.
    """
    if (
        isinstance(plus, torch.Tensor)
        and isinstance(minus, torch.Tensor)
        and plus.is_cpu
        and plus.dim()
    ):
        with np.errstate(all="ignore"):  # infinite losses are the clip's to deal with
            return torch.from_numpy((plus.numpy() - minus.numpy()) / (2 * smoothing))
    return (plus - minus) / (2 * smoothing)


def forward_difference(shifted: Losses, plain: Losses, smoothing: float) -> Losses:
    """``(f(w + μu) − f(w)) / μ``: the slope along u, of a loss or of each record's."""
    return two_point(shifted, plain, smoothing / 2)


@dataclass(frozen=True)
class Along:
    """The gradient estimate ``coefficient · u``, without ever holding it."""

    direction: Direction
    coefficient: Scalar

    def add_to(self, vector: Tensor, scale: Scalar) -> None:
        """``vector += scale · coefficient · u``."""
        self.direction.add_to(vector, times(scale, self.coefficient))

    def held(self) -> tuple[Tensor, Scalar] | None:
        """See `Gradient.held`."""
        return self.direction.held(self.coefficient)

    def descend(
        self, parameters: Tensor, velocity: Tensor, momentum: float, factor: Scalar
    ) -> bool:
        """See `OnePass.descend`."""
        return self.direction.descend(parameters, velocity, momentum, self.coefficient, factor)

    def norm(self) -> Scalar:
        """The Euclidean norm of the estimate."""
        size, norm = self.coefficient, self.direction.norm()
        return norm * (size.abs() if isinstance(size, torch.Tensor) else abs(size))


@dataclass(frozen=True)
class Sum:
    """A sum of estimates along different directions, without ever holding it."""

    parts: tuple[Along, ...]

    def add_to(self, vector: Tensor, scale: Scalar) -> None:
        """``vector += scale · Σ_k coefficient_k · u_k``."""
        for part in self.parts:
            part.add_to(vector, scale)

    def held(self) -> None:
        """See `Gradient.held`: None, since it is not held."""

    def norm(self) -> Scalar:
        """The Euclidean norm of the sum; nothing else needs the sum written out."""
        whole = self.parts[0].direction.zeros()
        self.add_to(whole, 1.0)
        norm = torch.linalg.vector_norm(whole)
        return float(norm) if norm.is_cpu else norm


def estimate(direction: Direction, slope: Scalar) -> Along:
    """The gradient estimate ``φ · slope · u``."""
    return Along(direction, times(direction.factor, slope))


def outputs(
    model: Model, inputs: Tensor | Selected, direction: Direction, offsets: Sequence[float]
) -> Tensor:
    """Outputs at ``w + offset · u`` for each offset, shape [offsets, batch, outputs]."""
    if direction.keep:
        return at_once(model, inputs, direction, offsets)
    inputs = gathered(inputs)
    if (
        isinstance(model, LinearStack)
        and direction.law != "coordinate"
        and blockwise.fits(model, inputs, len(offsets))
    ):
        return by_blocks(model, inputs, direction, offsets)
    return in_place(model, inputs, direction, offsets)


def readable_table(model: Model, directions: Directions, features: Tensor) -> Tensor | None:
    """The records as a table whose rows `outputs` reads in place; None where it needs copies."""
    return model.table_of(features) if directions.are_kept else None


def at_once(
    model: Model, inputs: Tensor | Selected, direction: Direction, offsets: Sequence[float]
) -> Tensor:
    """Outputs at all offsets together, along the direction as one vector."""
    numbers = direction.numbers()  # as they were drawn, and lengths in units of them
    lengths: list[float] = np.multiply(offsets, direction.scale).tolist()
    return model.along(numbers, lengths, inputs)


def by_blocks(
    model: LinearStack, inputs: Tensor, direction: Direction, offsets: Sequence[float]
) -> Tensor:
    """Outputs at all offsets together, along a direction that is drawn once and not held."""
    lengths = [offset * direction.scale for offset in offsets]
    return blockwise.along(model, direction.reader(), lengths, inputs)


def in_place(
    model: Model, inputs: Tensor, direction: Direction, offsets: Sequence[float]
) -> Tensor:
    """Outputs at one offset after the other; the parameters come back as they were (see above)."""
    parameters = model.parameters
    saved = parameters.clone() if parameters.dtype in (torch.float16, torch.bfloat16) else None
    results, here = [], 0.0
    try:
        for offset in offsets:
            if offset != here:
                direction.add_to(parameters, offset - here)
                here = offset
            results.append(model(inputs))
    finally:
        if saved is not None:
            parameters.copy_(saved)
        elif here:
            direction.add_to(parameters, -here)
    return torch.stack(results)
