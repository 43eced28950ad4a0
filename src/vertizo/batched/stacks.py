"""Linear stacks of the same layers and different parameters, evaluated together.

The arithmetic is that of `vertizo.models.linear_stack`, step by step, with one axis in front: item
i of every array belongs to parameters i. Points, where there are several, come before the items, so
that each is one contiguous array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.models.linear_stack import Layer, LinearStack

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """One layer's parameters for every item, as views of their flat vectors."""

    matrix: Tensor
    """Wᵀ, [items, inputs, outputs]."""
    bias: Tensor | None
    """[items, 1, outputs]."""


@dataclass(frozen=True)
class Moved:
    """One client's part of the server's inputs, at several points: what they add to the rows.

    Args:
        items: whose inputs.
        start: its first column.
        shift: [points, items, batch, columns].
        first: the first of the points, among all.
    """

    items: slice
    start: int
    shift: Tensor
    first: int


class Stacks:
    """The layers that all items share.

    Args:
        layers: from inputs to outputs.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self.size = sum(layer.size for layer in layers)
        self.inputs = layers[0].inputs

    def gather(self, models: Sequence[LinearStack]) -> list[Weights]:
        """The parameters of these models at the moment, as items."""
        return self.views(torch.stack([model.parameters for model in models]))

    def views(self, flat: Tensor) -> list[Weights]:
        """Every layer's part of flat vectors [items, d or more]."""
        found, offset = [], flat.storage_offset()
        items, step = flat.shape[0], flat.stride(0)
        for layer in self.layers:
            inputs, outputs, size = layer.inputs, layer.outputs, layer.inputs * layer.outputs
            matrix = flat.as_strided((items, inputs, outputs), (step, 1, inputs), offset)
            bias = None
            if layer.bias:
                bias = flat.as_strided((items, 1, outputs), (step, outputs, 1), offset + size)
            found.append(Weights(matrix, bias))
            offset += layer.size
        return found

    def along(
        self, own: Sequence[Weights], along: Sequence[Weights], offsets: Numbers, inputs: Tensor
    ) -> Tensor:
        """Outputs at ``w + offset · u``, [points, items, batch, outputs].

        Args:
            own: of w.
            along: of u.
            offsets: [points, items].
            inputs: [items, batch, inputs], the same at every point.
        """
        plain, slope = (_product(inputs, weights[0]).numpy() for weights in (own, along))
        values = np.empty((len(offsets), *plain.shape), np.float32)
        for each, point in zip(offsets, values, strict=True):
            if each.any():
                np.multiply(slope, each[:, None, None], out=point)
                point += plain
            else:
                point[...] = plain
        found = torch.from_numpy(values)
        if self.layers[0].relu:
            found.relu_()
        if len(self.layers) == 1:
            return found
        return torch.stack(
            [
                self._rest_along(own, along, torch.from_numpy(each), point)
                for each, point in zip(offsets, found.unbind(), strict=True)
            ]
        )

    def _rest_along(
        self, own: Sequence[Weights], along: Sequence[Weights], offsets: Tensor, values: Tensor
    ) -> Tensor:
        """The layers after the first at one point, [items, batch, outputs]."""
        steps = offsets.view(-1, 1, 1)
        for layer, here, there in zip(self.layers[1:], own[1:], along[1:], strict=True):
            bias = None
            if here.bias is not None and there.bias is not None:
                bias = here.bias + steps * there.bias
            values = _product(values, Weights(here.matrix + steps * there.matrix, bias))
            if layer.relu:
                values.relu_()
        return values

    def forward(
        self, own: Sequence[Weights], rows: Tensor, moved: Sequence[Moved] = (), points: int = 1
    ) -> tuple[list[Tensor], Tensor]:
        """Inputs and every layer's outputs at the rows, and the outputs at all points.

        The first layer multiplies what the points have in common once, and their shifts apart.

        Args:
            own: of the items.
            rows: [items, batch, inputs], the last of the points.
            moved: what the others add to them.
            points: how many, the rows among them; outputs are [points, items, batch, outputs].
        """
        values = rows.new_empty(points, *rows.shape[:2], self.layers[0].outputs)
        common = _product(rows, own[0], values[-1])
        for part in moved:
            columns = own[0].matrix[part.items, part.start : part.start + part.shift.shape[-1]]
            for place, shift in enumerate(part.shift.unbind(), part.first):
                out = values[place, part.items]
                torch.baddbmm(common[part.items], shift, columns, out=out)
        steps = self._finish(own, values)
        return [rows, *(step[-1] for step in steps)], steps[-1]

    def _finish(self, own: Sequence[Weights], values: Tensor) -> list[Tensor]:
        """Every layer's outputs at all points, from the first's before its ReLU (overwritten)."""
        steps: list[Tensor] = []
        for layer, weights in zip(self.layers, own, strict=True):
            if steps:
                before, values = values, values.new_empty(*values.shape[:-1], layer.outputs)
                for point, out in zip(before.unbind(), values.unbind(), strict=True):
                    _product(point, weights, out)
            if layer.relu:
                values.relu_()
            steps.append(values)
        return steps

    def gradients(
        self, own: Sequence[Weights], steps: Sequence[Tensor], gradient: Tensor
    ) -> Tensor:
        """Of the parameters, [items, d], from every layer's inputs and that of the outputs.

        Args:
            own: of the items.
            steps: from `forward`.
            gradient: [items, batch, outputs]; may be changed.
        """
        found = torch.empty(gradient.shape[0], self.size)
        parts = self.views(found)
        for index in range(len(self.layers) - 1, -1, -1):
            if self.layers[index].relu:
                _through_relu(gradient, steps[index + 1])
            matrix, bias = parts[index].matrix, parts[index].bias
            matrix.transpose(1, 2).copy_(torch.bmm(gradient.transpose(1, 2), steps[index]))
            if bias is not None:
                gradient.numpy().sum(1, out=bias.squeeze(1).numpy())
            if index:
                gradient = torch.bmm(gradient, own[index].matrix.transpose(1, 2))
        return found

    def input_gradients(
        self, own: Sequence[Weights], steps: Sequence[Tensor], gradient: Tensor
    ) -> Tensor:
        """Of the inputs, [items, batch, inputs]; arguments as of `gradients`."""
        for index in range(len(self.layers) - 1, -1, -1):
            if self.layers[index].relu:
                _through_relu(gradient, steps[index + 1])
            gradient = torch.bmm(gradient, own[index].matrix.transpose(1, 2))
        return gradient


def _product(inputs: Tensor, weights: Weights, out: Tensor | None = None) -> Tensor:
    """``x Wᵀ + b`` of every item."""
    if weights.bias is None:
        return torch.bmm(inputs, weights.matrix, out=out)
    return torch.baddbmm(weights.bias, inputs, weights.matrix, out=out)


def _through_relu(gradient: Tensor, outputs: Tensor) -> None:
    """Set the gradient to 0 where the outputs are not positive, in place."""
    numbers = gradient.numpy()
    np.multiply(numbers, outputs.numpy() > 0, out=numbers)
