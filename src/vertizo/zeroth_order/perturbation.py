"""Outputs of a model at perturbed parameters ``w + offset · u``.

Three ways, same numbers up to rounding, chosen by the size and the kind of the model:

* `in_place` shifts the parameters from offset to offset along the direction's seed, evaluates,
  and shifts them back: no memory beyond the model and one evaluation (MeZO's algorithm 1).
* `at_once` hands the whole direction to the model, which may share work between the offsets and
  leaves its parameters untouched;
* `by_blocks`, for large stacks of linear layers, reads the direction once for all offsets, some
  rows of weights at a time, and leaves the parameters untouched as well
  (`vertizo.models.blockwise`).

Shifting back leaves a rounding error of about one unit in the last place. Over thousands of rounds
float32 does not show it (a test says so); the worst seen was 4e-4 after 300,000 rounds, with signs
for directions and no updates; 16-bit formats do, and are restored from a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vertizo.core.deferred import torch
from vertizo.models import blockwise
from vertizo.models.base import Model, Selected
from vertizo.models.linear_stack import LinearStack
from vertizo.zeroth_order.directions import Direction, Directions

if TYPE_CHECKING:
    from torch import Tensor


def outputs(
    model: Model, inputs: Tensor | Selected, direction: Direction, offsets: Sequence[float]
) -> Tensor:
    """Outputs at ``w + offset · u`` for each offset, shape [offsets, batch, outputs]."""
    if isinstance(inputs, Selected):
        if direction.keep and isinstance(model, LinearStack):
            return model.along(direction.numbers(), _lengths(direction, offsets), inputs)
        inputs = inputs.gathered()
    if direction.keep:
        return at_once(model, inputs, direction, offsets)
    if (
        isinstance(model, LinearStack)
        and direction.law != "coordinate"
        and blockwise.fits(model, inputs, len(offsets))
    ):
        return by_blocks(model, inputs, direction, offsets)
    return in_place(model, inputs, direction, offsets)


def readable_table(model: Model, directions: Directions, features: Tensor) -> Tensor | None:
    """The records as a table whose rows `outputs` reads where they are; None where it does not."""
    if not directions.are_kept or not isinstance(model, LinearStack):
        return None
    return model.table_of(features)


def at_once(model: Model, inputs: Tensor, direction: Direction, offsets: Sequence[float]) -> Tensor:
    """All offsets together, along the direction as one vector."""
    return model.along(direction.numbers(), _lengths(direction, offsets), inputs)


def _lengths(direction: Direction, offsets: Sequence[float]) -> list[float]:
    """Offsets in units of the direction's numbers as they were drawn."""
    return [offset * direction.scale for offset in offsets]


def by_blocks(
    model: LinearStack, inputs: Tensor, direction: Direction, offsets: Sequence[float]
) -> Tensor:
    """All offsets together, along a direction that is drawn once and not held."""
    return blockwise.along(model, direction.reader(), _lengths(direction, offsets), inputs)


def in_place(
    model: Model, inputs: Tensor, direction: Direction, offsets: Sequence[float]
) -> Tensor:
    """One offset after the other; the parameters come back as they were (see the module)."""
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
