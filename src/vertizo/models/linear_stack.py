"""A stack of linear layers as a model; `vertizo.models.torch.wrap` recognises modules of its shape.

The arithmetic is that of `vertizo.models.layers`; tests hold it to autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vertizo.core.deferred import torch
from vertizo.models.base import (
    HeldGradients,
    Points,
    Pullback,
    RecordGradients,
    Selected,
    State,
    counted,
    put,
)
from vertizo.models.layers import EVERY, Layer, Layers, Moved, Numbers

if TYPE_CHECKING:
    from torch import Tensor


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
        self._flatten = flatten
        self.parameters = parameters
        self._flat: Numbers = parameters.numpy()
        self._stack = Layers(layers)
        self._gradient: Tensor | None = None

    def state(self) -> State:
        """w, live."""
        return self.parameters

    def load(self, state: State) -> None:
        """Go on from ``state``."""
        if not isinstance(state, torch.Tensor):
            raise TypeError("the state of another kind of model")
        put(self.parameters, state)

    def rows(self, inputs: Tensor) -> Tensor:
        """Inputs as rows of the first layer, [batch · times, inputs]."""
        if inputs.dim() == 2:
            return inputs
        return inputs.flatten(1) if self._flatten else inputs.flatten(0, -2)

    def _numbers(self, inputs: Tensor) -> Numbers:
        rows = inputs if inputs.dim() == 2 else self.rows(inputs)
        numbers: Numbers = rows.numpy()
        return np.ascontiguousarray(numbers)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, [batch, outputs]."""
        _, outputs = self._stack.forward(self._flat, self._numbers(inputs))
        return torch.from_numpy(outputs).view(inputs.shape[0], -1)

    def along(
        self, direction: Tensor, offsets: Sequence[float], inputs: Tensor | Selected
    ) -> Tensor:
        """Outputs at ``w + offset · direction``, [offsets, batch, outputs].

        The first layer sees the same inputs at every offset, so that two products serve all.
        """
        steps = np.array(offsets, np.float32)
        if isinstance(inputs, Selected):
            rows, ids, batch = self._numbers(inputs.table), inputs.ids.numpy(), len(inputs.ids)
        else:
            rows, ids, batch = self._numbers(inputs), EVERY, inputs.shape[0]
        values = self._stack.along(self._flat, direction.numpy(), steps, rows, ids)
        if values.shape[1] != batch:
            values = values.reshape(len(offsets), batch, -1)
        return torch.from_numpy(values)

    def table_of(self, features: Tensor) -> Tensor | None:
        """Records as rows of which `along` takes `Selected` ones; None where each is several."""
        fits = features.is_contiguous() and features.dtype == torch.float32
        return self.rows(features) if fits and (features.dim() == 2 or self._flatten) else None

    def forward(self, points: Points, number: int = 0) -> tuple[Tensor, Pullback]:
        """Outputs at every point, and the pullback at the last."""
        moved, count = [], 0
        for start, shift in points.shifts:
            moved.append(Moved(start, np.ascontiguousarray(shift.numpy()), count))
            count += len(shift)
        rows = self._numbers(points.rows)
        steps, outputs = self._stack.forward(self._flat, rows, moved, count + 1)
        found = outputs.reshape((count + 1) * points.rows.shape[0], -1)
        return torch.from_numpy(found), StackPullback(self, steps, points.rows.shape)

    def settle(self) -> None:
        """Nothing: there is nothing beside the parameters."""

    def record_gradients_of(
        self, steps: list[Numbers], gradient: Numbers, batch: int, records: slice
    ) -> RecordGradients:
        """Those records' own gradients of the parameters, out of ``batch``.

        A record's gradient of a layer is ``Σ_t g_t a_tᵀ`` over its rows t, of inputs a and output
        gradients g.
        """
        times = len(steps[0]) // batch
        first, stop, _ = records.indices(batch)
        rows = slice(first * times, stop * times)
        own = [step[rows] for step in steps]
        gradients = self._stack.each_gradient(self._flat, own, gradient[rows])
        pairs = [
            (torch.from_numpy(g), torch.from_numpy(a), layer.bias)
            for g, a, layer in zip(gradients, own, self.layers, strict=False)
        ]
        return RankOne(pairs) if times == 1 else _formed(pairs, times)

    def input_gradient_of(self, steps: list[Numbers], gradient: Numbers) -> Tensor:
        """Gradient of the inputs, [batch, inputs]."""
        return torch.from_numpy(self._stack.input_gradients(self._flat, steps, gradient))


class StackPullback:
    """Back-propagation through one evaluation of a `LinearStack`."""

    def __init__(self, stack: LinearStack, steps: list[Numbers], shape: torch.Size) -> None:
        self._stack = stack
        self._steps = steps
        self._shape = shape

    def __call__(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the parameters, [d]; overwritten by the next call."""
        numbers: Numbers = gradient.numpy().reshape(self._steps[-1].shape)
        stack = self._stack
        if stack._gradient is None:
            stack._gradient = torch.empty_like(stack.parameters)
        stack._stack.gradients(stack._flat, self._steps, numbers, stack._gradient.numpy())
        return stack._gradient

    @property
    def at_once(self) -> int:
        """Many where gradients need not be formed, as many as memory should hold where they do."""
        if len(self._steps[0]) == self._shape[0]:
            return ROWS
        return max(1, AT_ONCE // self._stack.parameters.numel())

    def record_gradients(self, gradient: Tensor, records: slice) -> RecordGradients:
        """What some records alone give the gradient of the parameters."""
        return self._stack.record_gradients_of(
            self._steps, self._numbers(gradient), self._shape[0], records
        )

    def inputs(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the inputs, of their shape."""
        result = self._stack.input_gradient_of(self._steps, self._numbers(gradient))
        return result.view(self._shape)

    def _numbers(self, gradient: Tensor) -> Numbers:
        return gradient.numpy().reshape(self._steps[-1].shape)


ROWS = 4096
"""Records whose gradients are added up by one product."""
AT_ONCE = 2**24
"""Numbers that may be held at a time where gradients are formed."""


@dataclass(frozen=True)
class RankOne:
    """Gradients ``g aᵀ`` of each layer, and g of its bias, which need not be formed.

    The norm of one is ``‖g‖ ‖a‖`` ("ghost norm"; Goodfellow 2015), their sum one product. Both are
    of the same numbers in float64, in which products of float32 are exact.
    """

    pairs: Sequence[tuple[Tensor, Tensor, bool]]
    """(g [records, outputs], a [records, inputs], has a bias) of each layer."""

    def squares(self) -> Tensor:
        """``‖g‖² (‖a‖² + 1)`` over layers with a bias, float64 [records]."""
        parts = [_square(g) * (_square(a) + bias) for g, a, bias in self.pairs]
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


def _square(rows: Tensor) -> Tensor:
    return rows.to(torch.float64).square().sum(1)


def _formed(pairs: Sequence[tuple[Tensor, Tensor, bool]], times: int) -> HeldGradients:
    """Sums over each record's rows, formed: what cancels there cancels once, for both uses."""
    parts = []
    for g, a, bias in pairs:
        slopes, inputs = (rows.to(torch.float64).view(-1, times, rows.shape[1]) for rows in (g, a))
        parts.append(slopes.mT @ inputs)
        if bias:
            parts.append(slopes.sum(1))
    return HeldGradients(tuple(parts))


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
    own = sum(p.numel() for p in module.parameters())  # none of which may be frozen
    return tuple(layers) if layers and widths_fit and own == sum(x.size for x in layers) else None


def _is_customised(module: torch.nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    names = {name for name, _ in module.named_parameters(recurse=False)}
    return any(getattr(module, hook) for hook in hooks) or not names <= {"weight", "bias"}
