"""A large stack of linear layers at several points of one direction that is never held.

Some rows of a layer's weights at a time: the direction's numbers for them are read once and serve
every offset. Nothing is shifted, so that the parameters are afterwards what they were, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vertizo import kernels
from vertizo.models.layers import EVERY
from vertizo.models.linear_stack import LinearStack

LARGEST, SMALLEST = 1 << 19, 1 << 16
"""Weights worked on at a time: fewer make products slow, more make buffers large."""

SHARE = 64
"""The weights are this many times what is worked on at a time, between those bounds."""

SPARE = 25
"""The weights are at least this many times the activations held for the sake of one reading."""


class Numbers(Protocol):
    """A direction's numbers from the first to the last."""

    def read(self, count: int) -> Tensor:
        """The next ``count`` numbers, float32; good until the next call."""


def fits(stack: LinearStack, inputs: Tensor, offsets: int) -> bool:
    """Whether one batch's activations at all offsets but one are small beside the weights."""
    layers = stack.layers
    rows = inputs.numel() // layers[0].inputs
    widths = [layer.outputs for layer in layers]
    held = max(a + b for a, b in zip([0, *widths], widths, strict=False))
    return rows * held * (offsets - 1) * SPARE <= stack.parameters.numel()


def along(stack: LinearStack, numbers: Numbers, offsets: Sequence[float], inputs: Tensor) -> Tensor:
    """Outputs at ``w + offset · u``, [offsets, batch, outputs]; u is read once.

    The first layer sees the same inputs at every offset, later ones their own.
    """
    values = np.ascontiguousarray(stack.rows(inputs).numpy())
    weights, steps = stack.parameters.numpy(), np.array(offsets, np.float32)
    most = min(max(weights.size // SHARE, SMALLEST), LARGEST)
    threads, shared = torch.get_num_threads(), True
    for layer in stack.layers:
        found = np.empty((len(steps), values.shape[-2], layer.outputs), np.float32)
        rows = max(1, most // layer.inputs)
        for start in range(0, layer.outputs, rows):
            count = min(rows, layer.outputs - start)
            part, weights = np.split(weights, [count * layer.inputs])
            u = numbers.read(part.size).numpy()
            out = np.empty((*found.shape[:-1], count), np.float32)
            if shared:
                kernels.along(out, values, part, u, steps, EVERY, 0, 0, 0, threads)
            else:
                kernels.along_next(out, values, part, u, steps, 0, 0, 0, threads)
            found[..., start : start + count] = out
        if layer.bias:
            bias, weights = np.split(weights, [layer.outputs])
            u = numbers.read(layer.outputs).numpy()
            found += bias + steps[:, None, None] * u
        values, shared = np.maximum(found, 0, out=found) if layer.relu else found, False
    return torch.from_numpy(values.reshape(len(steps), inputs.shape[0], -1))
