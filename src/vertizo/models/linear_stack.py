"""Stacks of linear layers with ReLU between, in closed form.

The models of the papers' tables are such stacks, and small: at batch 64 autograd and one call after
another cost several times what the arithmetic does. This class shares the first layer's product
between perturbed evaluations and writes gradients directly into one flat vector.
`vertizo.models.torch.wrap` recognises modules of this shape; tests hold both to autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo import kernels
from vertizo.memory import aligned
from vertizo.models.base import Points, Pullback


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


Numbers = NDArray[np.float32]
FEW = 4
"""Points up to which one product each is faster than one for all of them."""

Weights = list[tuple[Tensor, Tensor]]
"""Wᵀ [inputs, outputs] and b [outputs] of each layer; an empty b where there is none.

Views are made by ``as_strided``, once where they can be kept, and of arrays by NumPy: in a running
loop, slicing, viewing and transposing a tensor cost more than a small product.
"""


class LinearStack:
    """Linear layers over one flat parameter vector; inputs are flattened behind the batch.

    Args:
        layers: from inputs to outputs; neighbours must fit.
        parameters: [d], each layer's weights (row by row) and bias in order; kept, not copied.
        flatten: whether inputs are flattened behind the batch, or the layers apply to their last
            axis and the outputs are flattened.
    """

    def __init__(
        self, layers: Sequence[Layer], parameters: Tensor, *, flatten: bool = True
    ) -> None:
        self.layers = tuple(layers)
        self.flattens = flatten
        self.parameters = parameters
        self._weights = self._views(parameters)
        self._columns: dict[tuple[int, int], Tensor] = {}
        """Rows of the first Wᵀ, by where they start and how many they are."""
        self._gradient = torch.zeros(0)
        self._gradient_views: Weights = []

    def _views(self, flat: Tensor) -> Weights:
        """Every layer's Wᵀ and b as views of a flat vector."""
        views, offset = [], flat.storage_offset()
        for layer in self.layers:
            inputs, outputs, size = layer.inputs, layer.outputs, layer.inputs * layer.outputs
            weight = flat.as_strided((inputs, outputs), (1, inputs), offset)
            bias = flat.as_strided((outputs * layer.bias,), (1,), offset + size)
            views.append((weight, bias))
            offset += layer.size
        return views

    def rows(self, inputs: Tensor) -> Tensor:
        """Inputs as rows of the first layer, [batch · times, inputs]."""
        if inputs.dim() == 2:
            return inputs
        return inputs.flatten(1) if self.flattens else inputs.flatten(0, -2)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, [batch, outputs]."""
        steps = self._finish(_product(self.rows(inputs), *self._weights[0]))
        return steps[-1].reshape(inputs.shape[0], -1)

    def along(self, direction: Tensor, offsets: Sequence[float], inputs: Tensor) -> Tensor:
        """Outputs at ``w + offset · direction``, [offsets, batch, outputs].

        The first layer sees the same inputs at every offset, so that two products serve all:
        ``x (W + aU)ᵀ = x Wᵀ + a · x Uᵀ``. It is also more precise than shifting W would be.
        """
        rows = self.rows(inputs)
        directions = self._views(direction)
        first = self.layers[0]
        shifted = aligned(len(offsets), rows.shape[0], first.outputs)
        unshifted = list(offsets).index(0.0) if 0.0 in offsets else None
        plain = aligned(*shifted[0].shape) if unshifted is None else shifted[unshifted]
        _product(rows, *self._weights[0], out=torch.from_numpy(plain))
        slope = _product(rows, *directions[0]).numpy()
        for place, offset in enumerate(offsets):
            if place != unshifted:
                np.multiply(slope, np.float32(offset), out=shifted[place])
                shifted[place] += plain
        values = torch.from_numpy(shifted)
        if first.relu:
            values.relu_()
        if len(self.layers) > 1:
            values = self._rest_along(directions, offsets, values)
        return values.view(len(offsets), inputs.shape[0], -1)

    def _rest_along(self, directions: Weights, offsets: Sequence[float], values: Tensor) -> Tensor:
        """The layers after the first, each with weights of its own at every offset."""
        steps = torch.tensor(offsets, dtype=values.dtype).view(-1, 1, 1)
        for layer, (weight, bias), (along_weight, along_bias) in zip(
            self.layers[1:], self._weights[1:], directions[1:], strict=True
        ):
            weights = weight + steps * along_weight
            if layer.bias:
                values = torch.baddbmm(bias + steps * along_bias, values, weights)
            else:
                values = torch.bmm(values, weights)
            if layer.relu:
                values.relu_()
        return values

    def forward(self, points: Points) -> tuple[Tensor, Pullback]:
        """Outputs at every point, and the pullback at the last.

        The first layer multiplies what the points have in common once, and their shifts apart.
        """
        rows, count = self.rows(points.rows), len(points)
        batch = rows.shape[0]
        if count == 1:
            steps = at_rows = self._finish(_product(rows, *self._weights[0]))
        else:
            numbers = aligned(count, batch, self.layers[0].outputs)
            common = torch.from_numpy(numbers[-1])
            _product(rows, *self._weights[0], out=common)
            first = 0
            for start, shift in points.shifts:
                self._add_shift(start, shift, common, numbers[first : first + shift.shape[0]])
                first += shift.shape[0]
            steps = self._finish(torch.from_numpy(numbers.reshape(count * batch, -1)))
            at_rows = [common, *(step.narrow(0, (count - 1) * batch, batch) for step in steps[1:])]
        outputs = steps[-1]
        if not self.flattens:
            outputs = outputs.reshape(count * points.rows.shape[0], -1)
        return outputs, StackPullback(self, [rows, *at_rows], points.rows.shape)

    def _add_shift(self, start: int, shift: Tensor, common: Tensor, out: Numbers) -> None:
        """The first layer's outputs where some columns of the inputs are shifted.

        Args:
            start: the first of those columns.
            shift: [points, batch, columns].
            common: the outputs without it, [batch, outputs].
            out: [points, batch, outputs].
        """
        count, batch, size = shift.shape
        columns = self._columns.get((start, size))
        if columns is None:
            columns = self._columns[start, size] = self._weights[0][0].narrow(0, start, size)
        if count > FEW:  # one large product, and one pass that adds
            values = torch.from_numpy(out)
            torch.mm(shift.flatten(0, 1), columns, out=values.view(count * batch, -1))
            values.add_(common)
            return
        for moved, slot in zip(shift.numpy(), out, strict=True):
            torch.addmm(common, torch.from_numpy(moved), columns, out=torch.from_numpy(slot))

    def _finish(self, values: Tensor) -> list[Tensor]:
        """Every layer's outputs, from the first layer's before its ReLU (which is overwritten)."""
        steps: list[Tensor] = []
        for layer, (weight, bias) in zip(self.layers, self._weights, strict=True):
            if steps:
                values = _product(values, weight, bias)
            if layer.relu:
                values.relu_()
            steps.append(values)
        return steps

    def gradient_of(self, steps: list[Tensor], gradient: Tensor) -> Tensor:
        """Gradient of the parameters, [d], from every layer's input and that of the outputs."""
        if not self._gradient_views:
            self._gradient = torch.empty_like(self.parameters)
            self._gradient_views = [(w.t(), b) for w, b in self._views(self._gradient)]
        for index in range(len(self.layers) - 1, -1, -1):
            layer, (weight, bias) = self.layers[index], self._gradient_views[index]
            if layer.relu:
                gradient = gradient.contiguous()
                sums = bias.numpy() if layer.bias else np.empty(layer.outputs, np.float32)
                outputs = steps[index + 1].contiguous().numpy()
                kernels.through_relu(gradient.numpy(), sums, outputs)
            elif layer.bias:
                np.add.reduce(gradient.numpy(), 0, out=bias.numpy())
            torch.mm(gradient.t(), steps[index], out=weight)
            if index:
                gradient = torch.mm(gradient, self._weights[index][0].t())
        return self._gradient

    def record_norms_of(self, steps: list[Tensor], gradient: Tensor, records: int) -> Tensor:
        """Norm of each record's own gradient of the parameters, [records].

        A record's gradient of a layer is ``Σ_t g_t a_tᵀ`` over its rows t, of inputs a and output
        gradients g; its squared norm is ``Σ_{t,t'} (g_t·g_t')(a_t·a_t')``, and the bias adds
        ``Σ_{t,t'} g_t·g_t'``: no gradient is formed ("ghost norm"; Goodfellow 2015).
        """
        squares = torch.zeros(records, dtype=torch.float64)
        for index in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[index]
            if layer.relu:
                _through_relu(gradient, steps[index + 1])
            inputs = _gram(steps[index], records)
            squares += (_gram(gradient, records) * (inputs + layer.bias)).sum((1, 2))
            if index:
                gradient = torch.mm(gradient, self._weights[index][0].t())
        return squares.sqrt_()

    def input_gradient_of(self, steps: list[Tensor], gradient: Tensor) -> Tensor:
        """Gradient of the inputs, [batch, inputs]."""
        for index in range(len(self.layers) - 1, -1, -1):
            if self.layers[index].relu:
                _through_relu(gradient, steps[index + 1])
            gradient = torch.mm(gradient, self._weights[index][0].t())
        return gradient


class StackPullback:
    """Back-propagation through one evaluation of a `LinearStack`."""

    def __init__(self, stack: LinearStack, steps: list[Tensor], shape: torch.Size) -> None:
        self._stack = stack
        self._steps = steps
        self._shape = shape

    def __call__(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the parameters, [d]; overwritten by the next call."""
        return self._stack.gradient_of(self._steps, self._own(gradient))

    def record_norms(self, gradient: Tensor) -> Tensor:
        """Norm of what each record alone gives the gradient of the parameters, [batch]."""
        return self._stack.record_norms_of(self._steps, self._own(gradient), self._shape[0])

    def _own(self, gradient: Tensor) -> Tensor:
        """A gradient that may be changed: a last ReLU would change the caller's."""
        if gradient.shape != self._steps[-1].shape:
            gradient = gradient.reshape(self._steps[-1].shape)
        return gradient.clone() if self._stack.layers[-1].relu else gradient

    def inputs(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the inputs, of their shape."""
        result = self._stack.input_gradient_of(self._steps, self._own(gradient))
        return result.view(self._shape)


def _product(inputs: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
    """``x Wᵀ + b``, or without b if that is empty; in ``out`` if there is one."""
    if bias.numel():
        return torch.addmm(bias, inputs, weight, out=out)
    return torch.mm(inputs, weight, out=out)


def _gram(rows: Tensor, records: int) -> Tensor:
    """Inner products of each record's rows with one another, float64 [records, times, times]."""
    values = rows.view(records, -1, rows.shape[1])
    if values.shape[1] == 1:
        norms: Tensor = torch.linalg.vector_norm(values, dim=2)
        return norms.to(torch.float64).square_().unsqueeze(2)
    values = values.to(torch.float64)  # what cancels in the sum over rows must not be lost
    return torch.bmm(values, values.transpose(1, 2))


def _through_relu(gradient: Tensor, outputs: Tensor) -> None:
    """Set the gradient to 0 where the outputs are not positive, in place."""
    numbers = gradient.numpy()
    np.multiply(numbers, outputs.numpy() > 0, out=numbers)


def layers_of(module: torch.nn.Module) -> tuple[Layer, ...] | None:
    """The layers of a module that is such a stack, None for any other module.

    Hooks and parametrisations may do anything; a module that has some is no stack.
    """
    if any(map(_is_customised, module.modules())):
        return None
    parts = list(module) if type(module) is torch.nn.Sequential else [module]
    if parts and type(parts[0]) is torch.nn.Flatten:
        if (parts[0].start_dim, parts[0].end_dim) != (1, -1):
            return None
        parts = parts[1:]
    layers: list[Layer] = []
    for part in parts:
        if type(part) is torch.nn.Linear and part.weight.dtype == torch.float32:
            layers.append(
                Layer(part.in_features, part.out_features, part.bias is not None, relu=False)
            )
        elif type(part) is torch.nn.ReLU and layers and not layers[-1].relu:
            last = layers[-1]
            layers[-1] = Layer(last.inputs, last.outputs, last.bias, relu=True)
        else:
            return None
    widths_fit = all(a.outputs == b.inputs for a, b in pairwise(layers))
    own = sum(p.numel() for p in module.parameters())
    return tuple(layers) if layers and widths_fit and own == sum(x.size for x in layers) else None


def _is_customised(module: torch.nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    names = {name for name, _ in module.named_parameters(recurse=False)}
    return any(getattr(module, hook) for hook in hooks) or not names <= {"weight", "bias"}
