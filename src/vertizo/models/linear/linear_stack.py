"""Linear layers with ReLU between, in closed form; `vertizo.models.torch.wrap` recognises them.

The models of the papers' tables are such stacks, and small: at batch 64 autograd and one call after
another cost several times what the arithmetic does. Here a layer is one call
(`vertizo.core.kernels`), the first layer's product is shared between perturbed evaluations, and
gradients are written into one flat vector. Each row's outputs are those it would have alone, bit
for bit. Tests compare all of it with autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vertizo.core import kernels
from vertizo.core.kernels import plain_products
from vertizo.core.plugins.lazy_import import torch
from vertizo.models.base import (
    AT_ONCE,
    DifferentiableModel,
    HeldGradients,
    Points,
    Pullback,
    RecordGradients,
    Selected,
    counted,
    squared,
)

Numbers = NDArray[np.float32]
LARGE = 1 << 20
"""Weights of a layer beyond which products are PyTorch's: as fast where no cache holds the weights,
and the ones of `vertizo.models.linear.blockwise`, whose buffers they share."""
EVERY: NDArray[np.int64] = np.empty(0, np.int64)
"""IDs that stand for all rows of an array, in order."""
EVERY_ROW = slice(None)
ROWS = 4096
"""Records whose gradients are added up by one product."""

if TYPE_CHECKING:
    from torch import Tensor


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


def layers_of(module: torch.nn.Module) -> tuple[Layer, ...] | None:
    """The layers of a module that is a stack of linear layers; None for any other module.

    A module with hooks or parametrisations is no stack, since these may do anything.
    """
    if any(map(is_customised, module.modules())):
        return None
    parts = list(module) if type(module) is torch.nn.Sequential else [module]
    if parts and type(parts[0]) is torch.nn.Flatten:
        if (parts[0].start_dim, parts[0].end_dim) != (1, -1):
            return None
        parts = parts[1:]
    layers: list[Layer] = []
    for part in parts:
        if type(part) is torch.nn.Linear and part.weight.dtype == torch.float32:
            layers.append(Layer(part.in_features, part.out_features, part.bias is not None, False))
        elif type(part) is torch.nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = replace(layers[-1], relu=True)
        else:
            return None
    widths_fit = all(a.outputs == b.inputs for a, b in pairwise(layers))
    own = sum(p.numel() for p in module.parameters())  # none of which may be frozen
    return tuple(layers) if layers and widths_fit and own == sum(x.size for x in layers) else None


def are_affine(layers: Sequence[Layer]) -> bool:
    """Whether it is one layer without ReLU: the weights of several multiply each other."""
    return len(layers) == 1 and not layers[0].relu


def is_customised(module: torch.nn.Module) -> bool:
    """Whether a layer has hooks or parametrisations, so that it may do anything."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    names = {name for name, _ in module.named_parameters(recurse=False)}
    return any(getattr(module, hook) for hook in hooks) or not names <= {"weight", "bias"}


class LinearStack(DifferentiableModel):
    """Linear layers over one flat parameter vector, kept and not copied.

    ``parameters``, [d], are each layer's weights (row by row) and bias, in order. Inputs are
    flattened behind the batch if ``flatten``; else the layers apply to their last axis, and the
    outputs are flattened.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        parameters: Tensor,
        *,
        flatten: bool = True,
        module: torch.nn.Module | None = None,
    ) -> None:
        self.layers, self.parameters, self._flatten = tuple(layers), parameters, flatten
        self.module = module
        """The module that it was made from, whose parameters are views of these."""
        self._flat: Numbers = parameters.numpy()
        self.first = [sum(layer.size for layer in layers[:k]) for k in range(len(layers))]
        """Offset of each layer's parameters in the vector."""
        self.by = [
            plain_products if layer.inputs * layer.outputs > LARGE else kernels for layer in layers
        ]
        """The module whose products each layer uses: compiled, or PyTorch's for large layers."""
        self.gradient: Tensor | None = None
        """Gradient of the parameters: a buffer that every pullback writes into."""

    @property
    def is_affine(self) -> bool:
        """Whether outputs are affine in w (`are_affine`)."""
        return are_affine(self.layers)

    def rows(self, inputs: Tensor) -> Tensor:
        """Inputs as rows of the first layer, [batch · times, inputs]."""
        if inputs.dim() == 2:
            return inputs
        return inputs.flatten(1) if self._flatten else inputs.flatten(0, -2)

    def _numbers(self, inputs: Tensor) -> Numbers:
        numbers: Numbers = (inputs if inputs.dim() == 2 else self.rows(inputs)).numpy()
        return np.ascontiguousarray(numbers)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, [batch, outputs]."""
        _, outputs = self._evaluated(self._numbers(inputs))
        return torch.from_numpy(outputs).view(inputs.shape[0], -1)

    def along(
        self, direction: Tensor, offsets: Sequence[float], inputs: Tensor | Selected
    ) -> Tensor:
        """Outputs at ``w + offset · direction``, [offsets, batch, outputs].

        The first layer sees the same inputs at every offset, so that two products serve all.
        """
        if isinstance(inputs, Selected):
            values, ids = self._numbers(inputs.table), inputs.ids.numpy()
            batch = len(ids)
        else:
            values, ids, batch = self._numbers(inputs), EVERY, inputs.shape[0]
        shape = len(offsets), len(ids) if ids.size else len(values)
        own = self._flat, direction.numpy(), np.array(offsets, np.float32)
        threads = torch.get_num_threads()
        for layer, first in zip(self.layers, self.first, strict=True):
            before, values = values, np.empty((*shape, layer.outputs), np.float32)
            kernels.along(values, before, *own, ids, first, layer.bias, layer.relu, threads)
            ids = EVERY
        return torch.from_numpy(values.reshape(len(offsets), batch, -1))

    def tangents(self, directions: Tensor, inputs: Tensor) -> Tensor:
        """Derivatives of the outputs along rows of ``directions`` [K, d], [K, batch, outputs].

        Forward mode, layer by layer: ``ẏ = ẋ Wᵀ + x Ẇᵀ + ḃ``, masked as the ReLU masks y.
        """
        rows, count = self.rows(inputs), len(directions)
        moved: Tensor | None = None
        for layer, first in zip(self.layers, self.first, strict=True):
            size = layer.inputs * layer.outputs
            here = self.parameters[first : first + layer.size]
            there = directions[:, first : first + layer.size]
            shape = layer.outputs, layer.inputs
            change = torch.matmul(rows, there[:, :size].reshape(count, *shape).mT)
            rows_after = rows @ here[:size].view(shape).t()
            if moved is not None:
                change += moved @ here[:size].view(shape).t()
            if layer.bias:
                change += there[:, size:].unsqueeze(1)
                rows_after += here[size:]
            if layer.relu:
                change *= rows_after > 0
                rows_after = rows_after.clamp(min=0)
            rows, moved = rows_after, change
        assert moved is not None, "a stack has a layer"
        return moved.reshape(count, len(inputs), -1)

    def table_of(self, features: Tensor) -> Tensor | None:
        """Records as rows of which `along` takes `Selected`; None if a record has several rows."""
        fits = features.is_contiguous() and features.dtype == torch.float32
        return self.rows(features) if fits and (features.dim() == 2 or self._flatten) else None

    def forward(self, points: Points, number: int = 0) -> tuple[Tensor, Pullback]:
        """Outputs at every point, and the pullback at the last."""
        shifts, count = [], 1
        for start, shift in points.shifts:
            shifts.append((start, np.ascontiguousarray(shift.numpy())))
            count += shift.shape[0]
        steps, outputs = self._evaluated(self._numbers(points.rows), shifts, count)
        found = outputs.reshape(count * points.rows.shape[0], -1)
        return torch.from_numpy(found), _StackPullback(self, steps, points.rows.shape)

    def _evaluated(
        self, rows: Numbers, shifts: Sequence[tuple[int, Numbers]] = (), count: int = 1
    ) -> tuple[list[Numbers], Numbers]:
        """Inputs and every layer's outputs at the rows, and the outputs at all points.

        The first layer multiplies what the points have in common once, and their shifts apart.
        ``rows`` are [rows, inputs], the last of ``count`` points; ``shifts`` are (first column,
        [points, rows, columns]) of the others. Returns arrays [rows, …], and [points, rows,
        outputs].
        """
        layer, by, threads = self.layers[0], self.by[0], torch.get_num_threads()
        values = np.empty((count, len(rows), layer.outputs), np.float32)
        if len(shifts) == 1:
            ((start, shift),) = shifts
            by.moved(values, rows, shift, self._flat, start, 0, layer.bias, layer.relu, threads)
        else:
            common, relu = values[-1], layer.relu and not shifts
            by.affine(common, rows, self._flat, 0, layer.bias, relu, threads)
            done = 0
            for start, shift in shifts:
                out, done = values[done : done + len(shift)], done + len(shift)
                shape = start, layer.inputs, layer.relu
                by.raised(out, shift, common, self._flat, 0, *shape, threads)
            if layer.relu and shifts:
                np.maximum(common, np.float32(0), out=common)
        steps = [rows, values[-1]]
        for layer, first, by in zip(self.layers[1:], self.first[1:], self.by[1:], strict=True):
            before, values = values, np.empty((*values.shape[:-1], layer.outputs), np.float32)
            by.affine(values, before, self._flat, first, layer.bias, layer.relu, threads)
            steps.append(values[-1])
        return steps, values

    def slopes_of(
        self, steps: Sequence[Numbers], of_outputs: Tensor, rows: slice = EVERY_ROW
    ) -> list[Numbers]:
        """Gradients of every layer's outputs before its ReLU, from the first layer.

        ``steps`` are those of `_evaluated`, or of its ``rows``; ``of_outputs`` is of all outputs.
        """
        gradient: Numbers = of_outputs.numpy().reshape(-1, self.layers[-1].outputs)[rows]
        if self.layers[-1].relu:
            gradient = np.where(steps[-1] > 0, gradient, np.float32(0))
        found = [np.ascontiguousarray(gradient)]
        for index in range(len(self.layers) - 1, 0, -1):
            found.append(self.back(steps, found[-1], index))
        return found[::-1]

    def back(self, steps: Sequence[Numbers], slopes: Numbers, index: int) -> Numbers:
        """Carry gradients from a layer's outputs to those of the one before it, or to inputs."""
        inputs, first = steps[index], self.first[index]
        out = np.empty(inputs.shape, np.float32)
        masked = index > 0 and self.layers[index - 1].relu
        threads = torch.get_num_threads()
        self.by[index].back(out, slopes, self._flat, inputs, first, masked, threads)
        return out


@dataclass(eq=False)
class _StackPullback:
    """Back-propagation through one evaluation of a `LinearStack`, on inputs of that shape."""

    _stack: LinearStack
    _steps: list[Numbers]
    _shape: torch.Size

    def __call__(self, gradient: Tensor) -> Tensor:
        stack, threads = self._stack, torch.get_num_threads()
        if stack.gradient is None:
            stack.gradient = torch.empty_like(stack.parameters)
        out = stack.gradient.numpy()
        for index, slopes in enumerate(stack.slopes_of(self._steps, gradient)):
            bias, first = stack.layers[index].bias, stack.first[index]
            stack.by[index].outer(out, slopes, self._steps[index], first, bias, threads)
        return stack.gradient

    def inputs(self, gradient: Tensor) -> Tensor:
        slopes = self._stack.slopes_of(self._steps, gradient)
        return torch.from_numpy(self._stack.back(self._steps, slopes[0], 0)).view(self._shape)

    @property
    def at_once(self) -> int:
        """`ROWS` where gradients need not be formed; else as many as fit `AT_ONCE` numbers."""
        if len(self._steps[0]) == self._shape[0]:
            return ROWS
        return max(1, AT_ONCE // self._stack.parameters.numel())

    def record_gradients(self, gradient: Tensor, records: slice) -> RecordGradients:
        """Gradients ``Σ_t g_t a_tᵀ`` of each layer over a record's rows t: inputs a, slopes g."""
        times = len(self._steps[0]) // self._shape[0]
        first, stop, _ = records.indices(self._shape[0])
        rows = slice(first * times, stop * times)
        own = [step[rows] for step in self._steps]
        slopes = self._stack.slopes_of(own, gradient, rows)
        pairs = [
            (torch.from_numpy(g), torch.from_numpy(a), layer.bias)
            for g, a, layer in zip(slopes, own, self._stack.layers, strict=False)
        ]
        return RankOne(pairs) if times == 1 else _formed(pairs, times)


@dataclass(frozen=True)
class RankOne:
    """Gradients of each record, ``g aᵀ`` of a layer's weights and g of its bias, kept as factors.

    The norm of ``g aᵀ`` is ``‖g‖ ‖a‖`` ("ghost norm"; Goodfellow 2015), the sum over records one
    product. Both use the same numbers in float64, in which products of float32 are exact.
    """

    pairs: Sequence[tuple[Tensor, Tensor, bool]]
    """(g [records, outputs], a [records, inputs], has a bias) of each layer."""

    def squares(self) -> Tensor:
        """``‖g‖² (‖a‖² + 1)`` over layers with a bias, float64 [records]."""
        parts = [squared(g) * (squared(a) + bias) for g, a, bias in self.pairs]
        return torch.stack(parts).sum(0)

    def total(self, weights: Tensor) -> Tensor:
        """The weighted sum, float64 [d]."""
        parts = []
        for g, a, bias in self.pairs:
            weighed = counted(g, weights).mul_(weights.unsqueeze(1))
            parts.append((weighed.t() @ counted(a, weights)).flatten())
            if bias:
                parts.append(weighed.sum(0))
        return torch.cat(parts)


def _formed(pairs: Sequence[tuple[Tensor, Tensor, bool]], times: int) -> HeldGradients:
    """Form each record's gradient over its rows once, so that norm and sum see the same numbers."""
    parts = []
    for g, a, bias in pairs:
        slopes, inputs = (rows.to(torch.float64).view(-1, times, rows.shape[1]) for rows in (g, a))
        parts.append(slopes.mT @ inputs)
        if bias:
            parts.append(slopes.sum(1))
    return HeldGradients(tuple(parts))
