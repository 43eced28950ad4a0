"""Stacks of linear layers with ReLU between, in closed form.

The models of the papers' tables are such stacks, and small: at batch 64 autograd and one call per
perturbation cost several times what the arithmetic does. This class evaluates several parameter
vectors in one product and writes the gradient directly into one flat vector.
`vertizo.models.torch.wrap` recognises modules of this shape; a test holds both to autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vertizo.models.base import EVERY_ROW, Pullback


@dataclass(frozen=True)
class Layer:
    """``y = x Wᵀ + b``, then ReLU if ``relu``; W is [outputs, inputs]."""

    inputs: int
    outputs: int
    bias: bool
    relu: bool

    @property
    def size(self) -> int:
        """Number of parameters: weights, then bias."""
        return self.outputs * (self.inputs + self.bias)


class LinearStack:
    """Linear layers over one flat parameter vector; inputs are flattened behind the batch.

    Args:
        layers: from inputs to outputs; neighbours must fit.
        parameters: [d], each layer's weights (row by row) and bias in order; kept, not copied.
    """

    def __init__(self, layers: Sequence[Layer], parameters: Tensor) -> None:
        self.layers = tuple(layers)
        self.parameters = parameters
        self._gradient: Tensor | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, [batch, outputs]."""
        return self._run(inputs.reshape(inputs.shape[0], -1))[-1]

    def at(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """Outputs at each row of parameters, [rows, batch, outputs], by batched products."""
        count = rows.shape[0]
        values = inputs.reshape(inputs.shape[0], -1).expand(count, -1, -1)
        offset = 0
        for layer in self.layers:
            weight, bias, offset = _slices(rows, layer, offset)
            if bias is None:
                values = torch.bmm(values, weight.transpose(1, 2))
            else:
                values = torch.baddbmm(bias.unsqueeze(1), values, weight.transpose(1, 2))
            if layer.relu:
                values = values.relu_()
        return values

    def forward(
        self, inputs: Tensor, differentiate: slice = EVERY_ROW
    ) -> tuple[Tensor, Pullback]:
        """Outputs for all inputs in one pass, and the pullback for some of the rows."""
        values = self._run(inputs.reshape(inputs.shape[0], -1))
        kept = [value[differentiate] for value in values]
        return values[-1], StackPullback(self, kept, inputs[differentiate].shape)

    def _run(self, values: Tensor) -> list[Tensor]:
        """Every layer's input, and the outputs last."""
        steps = [values]
        offset = 0
        for layer in self.layers:
            weight, bias, offset = _slices(self.parameters, layer, offset)
            values = steps[-1]
            if bias is None:
                values = torch.mm(values, weight.t())
            else:
                values = torch.addmm(bias, values, weight.t())
            if layer.relu:
                values = values.relu_()
            steps.append(values)
        return steps

    def gradient_buffer(self) -> Tensor:
        """One vector of the parameters' size, made once."""
        if self._gradient is None:
            self._gradient = torch.empty_like(self.parameters)
        return self._gradient


class StackPullback:
    """Back-propagation through one evaluation of a `LinearStack`."""

    def __init__(self, stack: LinearStack, steps: list[Tensor], shape: torch.Size) -> None:
        self._stack = stack
        self._steps = steps
        self._shape = shape

    def __call__(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the parameters, [d]; overwritten by the next call."""
        result = self._stack.gradient_buffer()
        self._back(gradient, result, to_inputs=False)
        return result

    def inputs(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the inputs, of their shape."""
        return self._back(gradient, None, to_inputs=True).reshape(self._shape)

    def _back(self, gradient: Tensor, result: Tensor | None, *, to_inputs: bool) -> Tensor:
        offset = self._stack.parameters.numel()
        steps = self._steps
        for index in range(len(self._stack.layers) - 1, -1, -1):
            layer = self._stack.layers[index]
            offset -= layer.size
            if layer.relu:
                gradient = torch.ops.aten.threshold_backward(gradient, steps[index + 1], 0)
            if result is not None:
                weight, bias, _ = _slices(result, layer, offset)
                torch.mm(gradient.t(), steps[index], out=weight)
                if bias is not None:
                    torch.sum(gradient, 0, out=bias)
            if index or to_inputs:
                weight, _, _ = _slices(self._stack.parameters, layer, offset)
                gradient = torch.mm(gradient, weight)
        return gradient


def _slices(flat: Tensor, layer: Layer, offset: int) -> tuple[Tensor, Tensor | None, int]:
    """Views of weight and bias in a flat vector (or in each row of several), and the next offset.

    Strides are written out, because slicing and viewing one after the other costs more than a
    small layer's product.
    """
    lead, lead_stride = flat.shape[:-1], flat.stride()[:-1]
    base = flat.storage_offset() + offset
    weight = flat.as_strided(
        (*lead, layer.outputs, layer.inputs), (*lead_stride, layer.inputs, 1), base
    )
    if not layer.bias:
        return weight, None, offset + layer.size
    bias = flat.as_strided(
        (*lead, layer.outputs), (*lead_stride, 1), base + layer.outputs * layer.inputs
    )
    return weight, bias, offset + layer.size


def layers_of(module: torch.nn.Module) -> tuple[Layer, ...] | None:
    """The layers of a module that is such a stack, None for any other module."""
    if type(module) is torch.nn.Linear:
        parts: list[torch.nn.Module] = [module]
    elif type(module) is torch.nn.Sequential:
        parts = list(module)
    else:
        return None
    if parts and type(parts[0]) is torch.nn.Flatten and _flattens_all(parts[0]):
        parts = parts[1:]
    layers: list[Layer] = []
    for part in parts:
        if type(part) is torch.nn.Linear:
            layers.append(
                Layer(part.in_features, part.out_features, part.bias is not None, relu=False)
            )
        elif type(part) is torch.nn.ReLU and layers and not layers[-1].relu:
            last = layers[-1]
            layers[-1] = Layer(last.inputs, last.outputs, last.bias, relu=True)
        else:
            return None
    widths_fit = all(a.outputs == b.inputs for a, b in zip(layers, layers[1:], strict=False))
    own = sum(p.numel() for p in module.parameters())
    return tuple(layers) if layers and widths_fit and own == sum(x.size for x in layers) else None


def _flattens_all(flatten: torch.nn.Flatten) -> bool:
    return flatten.start_dim == 1 and flatten.end_dim == -1

