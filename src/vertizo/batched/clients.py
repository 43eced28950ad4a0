"""The client halves of several runs at once: embeddings asked with, updates told.

An *item* is one client of one run; its number is that of the query it is about to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vertizo.batched.draws import Drawn, Step, draw
from vertizo.models.base import Dense, Gradient
from vertizo.models.layers import Layers, Numbers
from vertizo.models.linear_stack import LinearStack
from vertizo.zeroth_order.directions import Directions


@dataclass(frozen=True)
class Item:
    """A client's own part of a round."""

    model: LinearStack
    directions: Directions | None
    """None where it is trained by gradients."""
    smoothing: float
    """λ or μ of its run."""
    number: int
    """Of its query."""


class ClientHalves(Protocol):
    """The client halves of some items in one round."""

    def ask(self, items: Sequence[Item], inputs: Numbers) -> Tensor:
        """Embeddings at every point, [points, items, batch, d_h], of inputs [items, batch, …]."""

    def gradients(self, values: Tensor) -> Sequence[Gradient]:
        """What each item's optimiser is to step by, from the replies, [items, …]."""


class ZerothOrderHalves:
    """As of `DpzvClient` and `ForwardDifferenceClient`.

    Args:
        stacks: the clients' layers.
        count: K, directions of one query.
        forward: whether the points are ``w`` and ``w + μu``, or else ``w ± λu``.
    """

    def __init__(self, stacks: Layers, count: int, *, forward: bool) -> None:
        self._stacks = stacks
        self._count = count
        self._forward = forward
        self._drawn: list[Drawn] = []
        self._smoothing: list[float] = []

    def ask(self, items: Sequence[Item], inputs: Numbers) -> Tensor:
        """As of `ClientHalves`."""
        own = parameters([item.model for item in items])
        owners = [item.directions for item in items if item.directions is not None]
        self._smoothing = [item.smoothing for item in items]
        self._drawn, found = [], []
        for k in range(self._count):
            drawn = draw(owners, [item.number * self._count + k for item in items])
            lengths = np.array(self._smoothing) * drawn.scales
            first = np.zeros_like(lengths) if self._forward else lengths
            second = lengths if self._forward else -lengths
            offsets = np.stack([first, second]).astype(np.float32)
            found.append(self._stacks.along(own, drawn.numbers, offsets, inputs))
            self._drawn.append(drawn)
        return torch.from_numpy(found[0] if len(found) == 1 else np.concatenate(found))

    def gradients(self, values: Tensor) -> Sequence[Gradient]:
        """As of `ClientHalves`; a reply is K slopes, or two losses."""
        factor, found = self._drawn[0].factor, []
        for row, (told, smoothing) in enumerate(zip(values.tolist(), self._smoothing, strict=True)):
            slopes = told
            if self._forward and len(told) == 2:
                slopes = [(told[1] - told[0]) / smoothing]
            coefficients = [factor * (slope / self._count) for slope in slopes]
            found.append(Step(self._drawn, row, coefficients))
        return found


class FirstOrderHalves:
    """As of `FirstOrderClient` with one local step.

    Args:
        stacks: the clients' layers.
    """

    def __init__(self, stacks: Layers) -> None:
        self._stacks = stacks
        self._own: Numbers = np.empty(0, np.float32)
        self._steps: list[Numbers] = []

    def ask(self, items: Sequence[Item], inputs: Numbers) -> Tensor:
        """As of `ClientHalves`."""
        self._own = parameters([item.model for item in items])
        self._steps, outputs = self._stacks.forward(self._own, inputs)
        return torch.from_numpy(outputs)

    def gradients(self, values: Tensor) -> Sequence[Gradient]:
        """As of `ClientHalves`; a reply is the gradient of the embeddings."""
        found = np.empty_like(self._own)
        self._stacks.gradients(self._own, self._steps, values.numpy(), found)
        return [Dense(row) for row in torch.from_numpy(found).unbind()]


def parameters(models: Sequence[LinearStack]) -> Numbers:
    """Those of every model at the moment, [items, d]."""
    return torch.stack([model.parameters for model in models]).numpy()
