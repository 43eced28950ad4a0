"""Linear layers with ReLU between, in closed form.

The models of the papers' tables are such stacks, and small: at batch 64 autograd and one call after
another cost several times what the arithmetic does. Here a layer is one call
(`vertizo.core.kernels`), the first layer's product is shared between perturbed evaluations, and
gradients are written into one flat vector.

``flat`` holds the parameters, [d]. To each row comes what would come to it alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vertizo.core import kernels
from vertizo.core.deferred import torch
from vertizo.core.kernels import plain_products

Numbers = NDArray[np.float32]
Ids = NDArray[np.int64]
LARGE = 1 << 20
"""Weights of a layer beyond which products are PyTorch's: as fast where no cache holds the weights,
and the ones of `vertizo.models.blockwise`, whose buffers they share."""
EVERY: Ids = np.empty(0, np.int64)
"""For rows that are all of an array, in order."""


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


@dataclass(frozen=True)
class Moved:
    """Points at which some columns of the inputs differ.

    Args:
        start: the first of those columns.
        shift: what is added to them, [points, rows, columns].
        first: the first of the points, among all.
    """

    start: int
    shift: Numbers
    first: int


class Layers:
    """Layers from inputs to outputs; each one's weights (row by row) and bias lie in order.

    Args:
        layers: neighbours must fit.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self.size = sum(layer.size for layer in layers)
        self.inputs = layers[0].inputs
        self._first = [sum(layer.size for layer in layers[:k]) for k in range(len(layers))]
        """Where each layer's parameters begin."""
        self._by = [
            plain_products if layer.inputs * layer.outputs > LARGE else kernels for layer in layers
        ]
        """Whose products are used for each."""

    def forward(
        self, flat: Numbers, rows: Numbers, moved: Sequence[Moved] = (), points: int = 1
    ) -> tuple[list[Numbers], Numbers]:
        """Inputs and every layer's outputs at the rows, and the outputs at all points.

        The first layer multiplies what the points have in common once, and their shifts apart.

        Args:
            flat: w.
            rows: [rows, inputs], the last of the points.
            moved: the others.
            points: how many there are.

        Returns:
            Arrays [rows, …], and [points, rows, outputs].
        """
        layer, threads = self.layers[0], torch.get_num_threads()
        values = np.empty((points, len(rows), layer.outputs), np.float32)
        if len(moved) == 1 and len(moved[0].shift) == points - 1:
            shift, start = moved[0].shift, moved[0].start
            self._by[0].moved(values, rows, shift, flat, start, 0, layer.bias, layer.relu, threads)
        else:
            self._raised(flat, rows, moved, values)
        common = values[-1]
        steps = [rows, common]
        for layer, first, by in zip(self.layers[1:], self._first[1:], self._by[1:], strict=True):
            before, values = values, np.empty((*values.shape[:-1], layer.outputs), np.float32)
            by.affine(values, before, flat, first, layer.bias, layer.relu, threads)
            steps.append(values[-1])
        return steps, values

    def _raised(
        self, flat: Numbers, rows: Numbers, moved: Sequence[Moved], values: Numbers
    ) -> None:
        """The first layer's outputs at points of any kinds."""
        layer, threads, common = self.layers[0], torch.get_num_threads(), values[-1]
        relu = layer.relu and not moved
        self._by[0].affine(common, rows, flat, 0, layer.bias, relu, threads)
        for part in moved:
            out = values[part.first : part.first + len(part.shift)]
            shape = (part.start, layer.inputs, layer.relu)
            self._by[0].raised(out, part.shift, common, flat, 0, *shape, threads)
        if layer.relu and moved:
            np.maximum(common, np.float32(0), out=common)

    def along(
        self, flat: Numbers, direction: Numbers, steps: Numbers, rows: Numbers, ids: Ids = EVERY
    ) -> Numbers:
        """Outputs at ``w + step · u``, [points, rows, outputs].

        Args:
            flat: w.
            direction: u, [d or more].
            steps: [points].
            rows: [rows, inputs], the same at every point; or a table [records, inputs].
            ids: which rows of the table, [rows].
        """
        threads, values = torch.get_num_threads(), rows
        front = (len(steps), len(ids) if ids.size else len(rows))
        for layer, first in zip(self.layers, self._first, strict=True):
            before, values = values, np.empty((*front, layer.outputs), np.float32)
            own = (flat, direction, steps, ids if first == 0 else EVERY)
            kernels.along(values, before, *own, first, layer.bias, layer.relu, threads)
        return values

    def gradients(
        self, flat: Numbers, steps: Sequence[Numbers], gradient: Numbers, out: Numbers
    ) -> None:
        """Of the parameters.

        Args:
            flat: w.
            steps: from `forward`.
            gradient: of the outputs, [rows, outputs].
            out: becomes the gradient, [d].
        """
        threads = torch.get_num_threads()
        if self.layers[-1].relu:
            gradient = self._at_outputs(steps, gradient)
        gradient = np.ascontiguousarray(gradient)
        for index in range(len(self.layers) - 1, -1, -1):
            bias = self.layers[index].bias
            self._by[index].outer(out, gradient, steps[index], self._first[index], bias, threads)
            if index:
                gradient = self._back(flat, steps, gradient, index)

    def input_gradients(
        self, flat: Numbers, steps: Sequence[Numbers], gradient: Numbers
    ) -> Numbers:
        """Of the inputs, [rows, inputs]; arguments as of `gradients`."""
        gradient = self._at_outputs(steps, gradient)
        for index in range(len(self.layers) - 1, -1, -1):
            gradient = self._back(flat, steps, gradient, index)
        return gradient

    def each_gradient(
        self, flat: Numbers, steps: Sequence[Numbers], gradient: Numbers
    ) -> list[Numbers]:
        """Of every layer's outputs before its ReLU, from the first; arguments as of `gradients`."""
        found = [self._at_outputs(steps, gradient)]
        for index in range(len(self.layers) - 1, 0, -1):
            found.append(self._back(flat, steps, found[-1], index))
        return found[::-1]

    def _at_outputs(self, steps: Sequence[Numbers], gradient: Numbers) -> Numbers:
        """Through a last ReLU."""
        if not self.layers[-1].relu:
            return np.ascontiguousarray(gradient)
        return np.where(steps[-1] > 0, gradient, np.float32(0))

    def _back(
        self, flat: Numbers, steps: Sequence[Numbers], gradient: Numbers, index: int
    ) -> Numbers:
        """From the outputs of a layer to those of the one before it, or to the inputs."""
        inputs = steps[index]
        out = np.empty(inputs.shape, np.float32)
        masked = index > 0 and self.layers[index - 1].relu
        threads = torch.get_num_threads()
        self._by[index].back(out, gradient, flat, inputs, self._first[index], masked, threads)
        return out
