"""A user's module evaluated one record at a time, so that it cannot mix records.

A guarantee bounds how far one record moves what is released. A module that mixes records breaks it:
in its forward pass, by a hook in the backward one, or by what it keeps from one record to the next.
No trial shows that a module does none of that, since a last layer of zeros hides it. So each record
is a batch of its own in both passes, on a copy of the module that is thrown away afterwards, with
the parameters as arguments. Under ``torch.vmap`` that is one pass for many records; a module that
it refuses is evaluated for one record after the other.

It is still assumed that the module keeps nothing outside itself, such as in a global variable, and
that compiled operators which it brings keep records apart under ``torch.vmap``.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call

from vertizo.core.arrays import graphs
from vertizo.core.errors import ConfigError
from vertizo.models.base import DIFFERENCE, HeldGradients, Points, Pullback
from vertizo.models.parts import (
    Weights,
    derivative,
    failing,
    first_line,
    flatten,
    user_code_errors,
)
from vertizo.models.torch import TorchModel

LOG = logging.getLogger("vertizo.models")


@dataclass(frozen=True)
class _Asked:
    """A question to the module about each record, whose answer may have several parts."""

    name: str
    mapped: Callable[..., tuple[Tensor, ...]]
    """The answer of a module's copy for weights, a record [...] and slopes; for ``vmap``."""
    alone: Callable[..., tuple[Tensor, ...]]
    """The same answer by autograd, hooks included."""
    shapes: Callable[[Tensor], Sequence[torch.Size]]
    """Shapes of the parts, for a record."""


class RecordwiseModel(TorchModel):
    """A module in evaluation mode whose every pass is for one record, on a copy of its own.

    Random draws are the same for each record and in each pass. Once an evaluation went well, a
    record for which one fails yields zeros, and is logged: no record decides whether a run goes on.
    """

    def __init__(self, *made: Any, **options: Any) -> None:
        super().__init__(*made, **options)
        self._name = f"the model {type(self.module).__name__}"
        self._went: dict[str, bool] = {}
        """Names of questions that were answered → whether ``torch.vmap`` took them."""

    def together(self) -> TorchModel:
        """A copy that evaluates whole batches, to try whether the module mixes records."""
        module = _copied(self.module)
        own = dict(module.named_parameters())
        parameters = flatten(own[name] for name in self._weights)
        return TorchModel(module, parameters, self._weights.keys())

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, [batch, outputs]."""

        def of(module: nn.Module, at: Weights, row: Tensor) -> tuple[Tensor, ...]:
            return (self._outputs(module, at, row),)

        asked = _Asked("outputs", of, of, self._shape_of_outputs)
        return self._each(asked, inputs.to(self.parameters.device))[0]

    def tangents(self, directions: Tensor, inputs: Tensor) -> Tensor:
        """Derivatives of the outputs along rows of ``directions`` [K, d], [K, batch, outputs].

        They are central differences where PyTorch has no derivatives.
        """
        rows, found = inputs.to(self.parameters.device), []
        sizes = [weight.numel() for weight in self._weights.values()]
        for direction in directions.to(rows.device):
            parts = zip(self._weights.items(), direction.split(sizes), strict=True)
            along = {name: part.view_as(weight) for (name, weight), part in parts}
            step = DIFFERENCE / (float(direction.norm()) or 1.0)

            def mapped(
                module: nn.Module, at: Weights, row: Tensor, along: Weights = along
            ) -> tuple[Tensor, ...]:
                outputs = partial(self._outputs, module, row=row)
                return (derivative(outputs, at, along),)

            def alone(
                module: nn.Module,
                at: Weights,
                row: Tensor,
                along: Weights = along,
                step: float = step,
            ) -> tuple[Tensor, ...]:
                plus, minus = (
                    {name: part + by * along[name] for name, part in at.items()}
                    for by in (step, -step)
                )
                other = _copied(module)
                rise = self._outputs(module, plus, row) - self._outputs(other, minus, row)
                return (rise / (2 * step),)

            asked = _Asked("tangents", mapped, alone, self._shape_of_outputs)
            found.append(self._each(asked, rows)[0])
        return torch.stack(found)

    def forward(self, points: Points, number: int = 0) -> tuple[Tensor, Pullback]:
        """Outputs at every point, and the pullback at the last."""
        rows = points.rows.detach().to(self.parameters.device)
        if not self._went:
            self._check_gradients(rows)
        outputs = self(rows)
        if points.shifts:
            outputs = torch.cat([self(points.changed()), outputs])
        return outputs, _EachPullback(self, rows)

    def _check_gradients(self, rows: Tensor) -> None:
        weights = {name: part.requires_grad_(True) for name, part in self._cloned().items()}
        with torch.enable_grad(), user_code_errors(failing(type(self.module).__name__, rows)):
            outputs = self._outputs(_copied(self.module), weights, rows[0])
        if not outputs.requires_grad:
            raise self.not_differentiable()

    def _record_gradients(self, rows: Tensor, slopes: Tensor) -> HeldGradients:
        def mapped(
            module: nn.Module, at: Weights, row: Tensor, slope: Tensor
        ) -> tuple[Tensor, ...]:
            back = torch.func.vjp(partial(self._outputs, module, row=row), at)[1]
            return tuple(back(slope)[0].values())

        def alone(module: nn.Module, at: Weights, row: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
            return self._pulled(module, at, row, slope, list(at.values()))

        shapes = [part.shape for part in self._weights.values()]
        asked = _Asked("gradients", mapped, alone, lambda _: shapes)
        return HeldGradients(self._each(asked, rows, slopes))

    def input_gradients(self, rows: Tensor, slopes: Tensor) -> Tensor:
        """Gradients of ``slope_i · output_i`` by each record, of the shape of ``rows``."""

        def mapped(
            module: nn.Module, at: Weights, row: Tensor, slope: Tensor
        ) -> tuple[Tensor, ...]:
            back = torch.func.vjp(partial(self._outputs, module, at), row)[1]
            return tuple(back(slope))

        def alone(module: nn.Module, at: Weights, row: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
            return self._pulled(module, at, row, slope, [row])

        asked = _Asked("inputs", mapped, alone, lambda row: [row.shape])
        return self._each(asked, rows, slopes)[0]

    def _pulled(
        self, module: nn.Module, at: Weights, row: Tensor, slope: Tensor, of: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Gradients of one record, with respect to its weights or itself."""
        for part in (*at.values(), row):
            part.requires_grad_(part.is_floating_point())
        with torch.enable_grad():
            outputs = self._outputs(module, at, row)
        found: tuple[Tensor, ...] = torch.autograd.grad(
            outputs, of, slope, materialize_grads=True, allow_unused=True
        )
        return found

    def _outputs(self, module: nn.Module, weights: Weights, row: Tensor) -> Tensor:
        """Outputs for one record, [outputs]."""
        batch = row.unsqueeze(0)
        return self._rows_of(functional_call(module, weights, (batch.clone(),)), batch)[0]

    def _shape_of_outputs(self, row: Tensor) -> Sequence[torch.Size]:
        return [torch.Size([self._widths[row.shape]])]

    def _each(self, asked: _Asked, rows: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """Ask about every record; each part is [records, ...]."""
        graphs.eager_only("a model of your own is asked about each record apart")
        if not len(rows):
            blank = [part.new_zeros(1, *part.shape[1:]) for part in (rows, *more)]
            return tuple(part[:0] for part in self._each(asked, *blank))
        with user_code_errors(failing(type(self.module).__name__, rows)), self._apart(rows):
            found = self._together(asked, rows, *more) if self._went.get(asked.name, True) else None
            maps = found is not None
            if found is None:
                found = self._one_by_one(asked, rows, *more)
        self._went.setdefault(asked.name, maps)  # the records of a later call decide nothing
        return found

    def _together(self, asked: _Asked, *each: Tensor) -> tuple[Tensor, ...] | None:
        """Ask in one pass; None where ``torch.vmap`` refuses, or might not keep records apart."""
        of = partial(asked.mapped, _copied(self.module), self._cloned())
        if _some_rule_is_somebodys():
            return None
        try:
            found: tuple[Tensor, ...] = torch.vmap(of)(*each)
        except Exception:  # of whatever kind: it is somebody's code
            return None
        return None if _some_rule_is_somebodys() else found

    def _one_by_one(self, asked: _Asked, *each: Tensor) -> tuple[Tensor, ...]:
        found = []
        for one in zip(*each, strict=True):
            torch.default_generator.manual_seed(0)
            if self.parameters.is_cuda:
                torch.cuda.manual_seed(0)
            own = [part.clone() for part in one]
            try:
                parts = asked.alone(_copied(self.module), self._cloned(), *own)
            except Exception:
                if not self._went:
                    raise
                LOG.warning("%s fails for a record, which counts as zeros", self._name)
                parts = tuple(self.parameters.new_zeros(x) for x in asked.shapes(one[0]))
            found.append([part.detach() for part in parts])
        return tuple(torch.stack(part) for part in zip(*found, strict=True))

    def _cloned(self) -> Weights:
        return {name: part.detach().clone() for name, part in self._weights.items()}

    @contextmanager
    def _apart(self, rows: Tensor) -> Iterator[None]:
        """Keep random generators, graphs and warnings outside the block untouched by it."""
        devices = [rows.device] if rows.device.type == "cuda" else []
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=devices),
            self.arithmetic(),
            warnings.catch_warnings(),
        ):
            # of layers that vmap takes one by one, and of what PyTorch imports for it
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield


@dataclass(eq=False)
class _EachPullback:
    """Back-propagation through one evaluation, record by record."""

    _model: RecordwiseModel
    _rows: Tensor

    def __call__(self, gradient: Tensor) -> Tensor:
        total = torch.zeros_like(self._model.parameters, dtype=torch.float64)
        for first in range(0, len(gradient), self.at_once):
            records = slice(first, first + self.at_once)
            ones = torch.ones_like(gradient[records, 0], dtype=torch.float64)
            total += self.record_gradients(gradient, records).total(ones)
        return total.to(self._model.parameters)

    def inputs(self, gradient: Tensor) -> Tensor:
        return self._model.input_gradients(self._rows, gradient.to(self._rows.device))

    @property
    def at_once(self) -> int:
        return self._model.at_once

    def record_gradients(self, gradient: Tensor, records: slice) -> HeldGradients:
        slopes = gradient[records].to(self._rows.device)
        return self._model.record_gradients(self._rows[records], slopes)


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise ConfigError(
            f"the model {type(module).__name__} cannot be copied, and a guarantee needs a copy for "
            f"every evaluation: {first_line(error)}"
        ) from None


def _some_rule_is_somebodys() -> bool:
    """Whether a `torch.autograd.Function` of a user's in this process has its own rule for vmap."""
    kinds = Function.__subclasses__()
    while kinds:
        kind = kinds.pop()
        if kind.vmap is not Function.vmap and not kind.__module__.startswith("torch."):
            return True
        kinds += kind.__subclasses__()
    return False
