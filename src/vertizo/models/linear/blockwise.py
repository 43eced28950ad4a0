"""Evaluation of a large linear stack at several points of a direction that is never held whole.

Some rows of a layer's weights are worked on at a time: the direction's numbers for them are read
once and serve every offset. The parameters are never shifted, so that they stay bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from vertizo.core.plugins.lazy_import import torch
from vertizo.models.linear.linear_stack import LinearStack

if TYPE_CHECKING:
    from torch import Tensor

LARGEST, SMALLEST = 1 << 19, 1 << 16
"""Weights worked on at a time: fewer make products slow, more make buffers large."""

SHARE = 64
"""Divisor of the weights that gives how many are worked on at a time, within those bounds."""

SPARE = 25
"""Least ratio of weights to the activations that are held so that u is read once."""


Read = Callable[[int], "Tensor"]
"""Gives the next so many numbers of a direction, float32; valid until the next call."""


def fits(stack: LinearStack, inputs: Tensor, offsets: int) -> bool:
    """Whether one batch's activations at all offsets but one are small beside the weights."""
    layers = stack.layers
    rows = inputs.numel() // layers[0].inputs
    widths = [layer.outputs for layer in layers]
    held = max(a + b for a, b in zip([0, *widths], widths, strict=False))
    return rows * held * (offsets - 1) * SPARE <= stack.parameters.numel()


def along(stack: LinearStack, read: Read, offsets: Sequence[float], inputs: Tensor) -> Tensor:
    """Outputs at ``w + offset · u``, [offsets, batch, outputs]; u is read once.

    The first layer sees the same inputs at every offset: ``x (W + aU)ᵀ = x Wᵀ + a · x Uᵀ``.
    Values are kept as [outputs, batch · times], so that a part of a layer's rows is one of memory.
    """
    values = [stack.rows(inputs).t()]
    weights = stack.parameters
    most = min(max(weights.numel() // SHARE, SMALLEST), LARGEST)
    for layer in stack.layers:
        size = layer.inputs * layer.outputs
        shared = len(values) == 1 < len(offsets)
        weight, weights = weights[:size].view(layer.outputs, layer.inputs), weights[size:]
        multiply = _shared if shared else _apart
        values = multiply(weight, read, offsets, values, max(1, most // layer.inputs))
        if layer.bias:
            bias, weights = weights[: layer.outputs], weights[layer.outputs :]
            slope = read(layer.outputs)
            for offset, value in zip(offsets, values, strict=True):
                value += torch.add(bias, slope, alpha=offset).unsqueeze(1)
        if layer.relu:
            for value in values:
                value.relu_()
    return torch.stack([value.t() for value in values]).view(len(offsets), inputs.shape[0], -1)


def _shared(
    weight: Tensor, read: Read, offsets: Sequence[float], values: Sequence[Tensor], step: int
) -> list[Tensor]:
    """Products with values that all offsets share: two serve all, ``step`` rows at a time."""
    (value,) = values
    found = _empty(weight, value, len(offsets))
    plain, slope = _empty(weight[:step], value, 2)
    for rows, part, along_part in _parts(weight, read, step):
        count = len(part)
        torch.mm(part, value, out=plain[:count])
        torch.mm(along_part, value, out=slope[:count])
        for offset, result in zip(offsets, found, strict=True):
            torch.add(plain[:count], slope[:count], alpha=offset, out=result[rows])
    return found


def _apart(
    weight: Tensor, read: Read, offsets: Sequence[float], values: Sequence[Tensor], step: int
) -> list[Tensor]:
    """Products with each offset's own values; its weights are made ``step`` rows at a time."""
    found = _empty(weight, values[0], len(offsets))
    shifted = torch.empty_like(weight[:step])
    for rows, part, along_part in _parts(weight, read, step):
        for offset, value, result in zip(offsets, values, found, strict=True):
            torch.add(part, along_part, alpha=offset, out=shifted[: len(part)])
            torch.mm(shifted[: len(part)], value, out=result[rows])
    return found


def _parts(weight: Tensor, read: Read, step: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Some rows of the weights at a time, and the direction's numbers for them."""
    for start in range(0, weight.shape[0], step):
        part = weight[start : start + step]
        yield slice(start, start + len(part)), part, read(part.numel()).view_as(part)


def _empty(weight: Tensor, value: Tensor, count: int) -> list[Tensor]:
    return [value.new_empty(weight.shape[0], value.shape[1]) for _ in range(count)]
