"""Outputs of a model at perturbed parameters ``w + offset · u``.

Two ways, same numbers up to rounding, chosen by the size of the model:

* `in_place` shifts the parameters from offset to offset along the direction's seed, evaluates,
  and shifts them back: no memory beyond the model and one evaluation (MeZO's algorithm 1).
* `at_once` makes one parameter vector per offset and evaluates them together, which lets a
  model use one wide product for all, and never touches the parameters.

Shifting back leaves a rounding error of about one unit in the last place, which float32 stands
for millions of rounds (a test says so) and 16-bit formats do not: those are restored from a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vertizo.models.base import Model
from vertizo.zeroth_order.directions import KEEP_UP_TO, Direction


def outputs(
    model: Model, inputs: Tensor, direction: Direction, offsets: Sequence[float]
) -> Tensor:
    """Outputs at ``w + offset · u`` for each offset, shape [offsets, batch, ...]."""
    if model.parameters.numel() <= KEEP_UP_TO:
        return at_once(model, inputs, direction, offsets)
    return in_place(model, inputs, direction, offsets)


def at_once(
    model: Model, inputs: Tensor, direction: Direction, offsets: Sequence[float]
) -> Tensor:
    """All offsets evaluated together, on one row of parameters each."""
    rows = model.parameters.repeat(len(offsets), 1)
    for row, offset in zip(rows, offsets, strict=True):
        if offset:
            direction.add_to(row, offset)
    return model.at(rows, inputs)


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
