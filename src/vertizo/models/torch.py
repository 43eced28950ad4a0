"""Models from any ``torch.nn.Module``, over one flat parameter vector."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from vertizo.core.arrays import graphs
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.models import side_by_side
from vertizo.models.base import (
    AT_ONCE,
    PROCESSOR,
    DifferentiableModel,
    HeldGradients,
    Points,
    Pullback,
    Selected,
    State,
    Where,
    gathered,
    put,
)
from vertizo.models.linear.linear_stack import Layer, LinearStack, are_affine, layers_of
from vertizo.models.parts import (
    Buffers,
    check,
    derivative,
    failing,
    first_line,
    flatten,
    is_known,
    is_same_in_training,
    trained,
    user_code_errors,
)


def wrap(
    module: nn.Module,
    where: Where = PROCESSOR,
    training: Stream | None = None,
    *,
    kind: type[TorchModel] | None = None,
) -> DifferentiableModel:
    """Make a model of a module: a `LinearStack` where it is one on the processor, else by autograd.

    Inputs may be on any device.

    The module's parameters become views of one flat vector, so that a change of that vector is a
    change of the module, and no second copy of the weights exists. Parameters without
    ``requires_grad`` are not in it and stay as they are. ``training`` is the randomness of a module
    in training mode (see `TorchModel`); None for one that is always in evaluation mode. A ``kind``
    takes the place of `TorchModel`.

    Raises:
        ConfigError: the module has nothing to train, parameters of several dtypes or of sizes that
            are not known yet, or, unless it is in training, batch normalisation (it mixes records,
            which no privacy guarantee survives; use group normalisation).
    """
    check(module, batch_norm=training is not None)
    module = module.to(where.device)
    own = trained(module)
    return over(module, flatten(own.values()), own, training, where=where, kind=kind)


def over(
    module: nn.Module,
    parameters: Tensor,
    own: Collection[str],
    training: Stream | None = None,
    *,
    where: Where = PROCESSOR,
    kind: type[TorchModel] | None = None,
) -> DifferentiableModel:
    """`wrap` for a module whose parameters named in ``own`` are already views of ``parameters``."""
    is_whole = len(own) == sum(1 for _ in module.named_parameters())
    layers = layers_of(module) if is_whole else None
    if layers is not None and kind is None and not parameters.is_cpu:
        return CardStack(layers, module, parameters, own, training, where=where)
    if layers is None or not parameters.is_cpu:
        return (kind or TorchModel)(module, parameters, own, training, where=where)
    flattens = any(type(part) is nn.Flatten for part in module.children())
    return LinearStack(layers, parameters, flatten=flattens, module=module)


class TorchModel(DifferentiableModel):
    """A module differentiated by autograd; zeroth-order training never builds a graph.

    Without ``training`` the module is in evaluation mode: a random layer such as dropout would
    answer the two evaluations of a zeroth-order query differently. No evaluation may change a
    buffer then. With it, `forward` runs in training mode: dropout draws pass by pass from a stream
    of its own, batch normalisation is over the batch, and buffers become what the pass made of them
    once it is settled. Evaluations without a graph are in evaluation mode and change nothing.

    The module's parameters named in ``own`` are views of ``parameters`` already; others are frozen.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: Tensor,
        own: Collection[str],
        training: Stream | None = None,
        *,
        where: Where = PROCESSOR,
    ) -> None:
        self.module = module.eval()
        self._where = where
        self.parameters = parameters
        known = dict(module.named_parameters())
        self._weights = {name: known[name] for name in own}
        self._frozen = {name: part for name, part in known.items() if name not in self._weights}
        self._buffers = Buffers(module)
        self._training = None if is_same_in_training(module) else training
        self._made: dict[str, Tensor] = {}
        """Buffers as the last training pass left them."""
        self._widths: dict[torch.Size, int] = {}
        """Shape of one record → number of its outputs."""
        self._maps = True
        """Whether ``torch.vmap`` takes the module, as far as is known."""
        self._is_known = self._maps_weights = is_known(module)
        """Whether its layers' code is known, and whether vmap takes several sets of weights."""

    @property
    def is_affine(self) -> bool:
        """Whether all of the module is one linear layer, none of it frozen."""
        layers = None if self._frozen else layers_of(self.module)
        return layers is not None and are_affine(layers)

    def state(self) -> State:
        """w, live; with frozen parameters and buffers, where there are some."""
        rest = {**self._frozen, **self._buffers.kept()}
        return {"parameters": self.parameters, "rest": rest} if rest else self.parameters

    def load(self, state: State) -> None:
        """Go on from ``state``; one of w alone leaves frozen parameters and buffers as they are."""
        if isinstance(state, Tensor):
            put(self.parameters, state)
            return
        rest, kept = state["rest"], self._buffers.kept()
        live = {**self._frozen, **kept}
        if rest.keys() != live.keys():
            raise KeyError("the state of another module")
        for name, part in live.items():
            if rest[name].shape != part.shape:
                raise ValueError(f"{name} of another shape")
        put(self.parameters, state["parameters"])
        for name, part in self._frozen.items():
            part.detach().copy_(rest[name])
        self._buffers.put({name: rest[name] for name in kept})

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, [batch, outputs]."""
        inputs = inputs.to(self.parameters.device)
        with torch.no_grad():
            if self._training is not None:
                return self._run(self._buffers.copies(), inputs)
            outputs = self._run({}, inputs)
            self._buffers.check_unchanged()
            return outputs

    def along(
        self, direction: Tensor, offsets: Sequence[float], inputs: Tensor | Selected
    ) -> Tensor:
        """Outputs at ``w + offset · direction``: on a card at all offsets in one pass.

        A card is hardly slower with several times the work of a small model. ``torch.vmap`` gives
        it that where it takes the module, and the code of the module's layers is known.
        """
        if self.parameters.is_cpu or not self._maps_weights:
            return super().along(direction, offsets, inputs)
        rows = gathered(inputs).to(self.parameters.device)
        at = self.parameters
        direction = direction.to(at.device)
        kind = torch.result_type(at, direction)
        moved = at.new_empty(len(offsets), at.numel(), dtype=kind)
        for row, offset in zip(moved, offsets, strict=True):
            torch.add(at, direction, alpha=offset, out=row)
        parts = torch.split(moved, [weight.numel() for weight in self._weights.values()], 1)
        pairs = zip(self._weights.items(), parts, strict=True)
        weights = {name: part.view(-1, *weight.shape) for (name, weight), part in pairs}
        try:
            with torch.no_grad(), warnings.catch_warnings():
                # of layers that it takes one by one
                warnings.filterwarnings("error", "There is a performance drop", UserWarning)
                outputs = self._side_by_side(weights, rows)
        except Exception:  # of whatever kind: it works one after the other
            self._maps_weights = False
            return super().along(direction, offsets, inputs)
        self._buffers.check_unchanged()
        return outputs

    def _side_by_side(self, weights: dict[str, Tensor], rows: Tensor) -> Tensor:
        """Outputs at several sets of weights, [sets, batch, outputs]."""
        if not self._frozen and self._where.precision != "bfloat16":
            with self.arithmetic():
                found = side_by_side.outputs(self.module, weights, rows)
            if found is not None:
                return found
        return torch.vmap(lambda each: self._run(each, rows))(weights)

    def tangents(self, directions: Tensor, inputs: Tensor) -> Tensor:
        """Derivatives of the outputs along rows of ``directions`` [K, d], [K, batch, outputs]."""
        rows = inputs.to(self.parameters.device)
        at = {name: weight.detach() for name, weight in self._weights.items()}
        sizes = [weight.numel() for weight in at.values()]

        def outputs(weights: dict[str, Tensor]) -> Tensor:
            return self._run(weights, rows)

        found = []
        for direction in directions.to(rows.device):
            parts = zip(at.items(), direction.split(sizes), strict=True)
            along = {name: part.view_as(weight) for (name, weight), part in parts}
            with warnings.catch_warnings():  # of what PyTorch imports for it the first time
                warnings.simplefilter("ignore", DeprecationWarning)
                moved = derivative(outputs, at, along)
            found.append(moved.detach())
        return torch.stack(found)

    def forward(self, points: Points, number: int = 0) -> tuple[Tensor, Pullback]:
        """Outputs at every point, with a graph for the last only."""
        rows = points.rows.detach().to(self.parameters.device)
        variable = rows.requires_grad_(rows.is_floating_point())
        weights = self._variables()
        with torch.enable_grad(), self._pass(number):
            if self._training is None:
                outputs = self._run(weights, variable)
                self._buffers.check_unchanged()
            else:
                swapped = {**weights, **self._buffers.copies()}
                outputs = self._run(swapped, variable)
                self._made = self._buffers.changed(swapped)
        if not outputs.requires_grad:
            raise self.not_differentiable()
        values = outputs.detach()
        if points.shifts:
            values = torch.cat([self(points.changed()), values])
        return values, _GraphPullback(self, outputs, weights, variable)

    def not_differentiable(self) -> ConfigError:
        """The error for outputs that have no graph."""
        return ConfigError(
            f"the model {type(self.module).__name__} is not differentiable: its outputs do not "
            "depend on its parameters by operations that have gradients; train it with "
            "method 'dpzv' or 'cascaded'"
        )

    @property
    def at_once(self) -> int:
        """Most records whose own gradients should be held at a time."""
        return max(1, AT_ONCE // self.parameters.numel())

    def record_gradients(self, rows: Tensor, slopes: Tensor) -> HeldGradients:
        """Gradients of ``slope_i · output_i``, each record evaluated as a batch of its own.

        They are computed together where ``torch.vmap`` takes the module, else one after the other.
        Inputs are [records, ...], slopes [records, outputs]. ConfigError where the module cannot be
        differentiated for one record.
        """
        with self.arithmetic():
            return self._record_gradients(rows, slopes)

    def _record_gradients(self, rows: Tensor, slopes: Tensor) -> HeldGradients:
        weights = {name: part.detach() for name, part in self._weights.items()}

        def mapped(row: Tensor, slope: Tensor) -> dict[str, Tensor]:
            (parts,) = torch.func.vjp(lambda at: self._one(at, row), weights)[1](slope)
            return dict(parts)

        if self._maps:
            try:
                with warnings.catch_warnings():  # of layers that it takes one by one
                    warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
                    found = torch.vmap(mapped)(rows, slopes)
                return HeldGradients(tuple(found.values()))
            except Exception:  # of whatever kind: it is somebody's code
                self._maps = False
        try:
            each = [self._alone(row, slope) for row, slope in zip(rows, slopes, strict=True)]
        except Exception as error:
            raise ConfigError(
                f"the model {type(self.module).__name__} cannot be differentiated record by "
                f"record: {first_line(error)}"
            ) from error
        return HeldGradients(tuple(torch.stack(part) for part in zip(*each, strict=True)))

    def _one(self, weights: dict[str, Tensor], row: Tensor) -> Tensor:
        """Outputs for one record, [outputs]."""
        result: Tensor = functional_call(self.module, weights, (row.unsqueeze(0),))
        return result.reshape(-1)

    def _alone(self, row: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
        """One record's gradient, by autograd."""
        weights = self._variables()
        with torch.enable_grad():
            output = self._one(weights, row)
        return torch.autograd.grad(
            output, list(weights.values()), slope, materialize_grads=True, allow_unused=True
        )

    def _variables(self) -> dict[str, Tensor]:
        """Leaf variables on the weights' own storage, for a new graph."""
        return {name: part.detach().requires_grad_(True) for name, part in self._weights.items()}

    def settle(self) -> None:
        """Keep the buffers as the last `forward` left them."""
        if self._made:
            self._buffers.put(self._made)
            self._made = {}

    @contextmanager
    def _pass(self, number: int) -> Iterator[None]:
        """Put the module in training mode inside the block, for pass ``number``; no-op without."""
        if self._training is None:
            yield
            return
        graphs.eager_only("a model in training mode draws anew in each pass")
        self.module.train()
        try:
            with self._training.torch_default(number, self.parameters.device):
                yield
        finally:
            self.module.eval()

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Set deterministic sums and the model's precision on a card inside the block."""
        if self.parameters.device.type != "cuda":
            yield
            return
        precision, before = self._where.precision, torch.get_float32_matmul_precision()
        rounds = precision != "float32"
        torch.set_float32_matmul_precision("high" if rounds else "highest")
        try:
            with (
                warnings.catch_warnings(),
                torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=rounds),
                torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"),
                # the gradients of PyTorch's other attentions are sums in no fixed order
                sdpa_kernel(SDPBackend.MATH) if torch.is_grad_enabled() else nullcontext(),
            ):
                # of a thread of autograd's, in which it is the first product
                warnings.filterwarnings("ignore", "Attempting to run cuBLAS", UserWarning)
                yield
        finally:
            torch.set_float32_matmul_precision(before)

    def _run(self, swapped: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Outputs as rows, with other tensors in place of some of the module's."""
        with user_code_errors(failing(type(self.module).__name__, inputs)), self.arithmetic():
            return self._rows_of(
                functional_call(self.module, swapped, (inputs,))
                if swapped
                else self.module(inputs),
                inputs,
            )

    def _rows_of(self, outputs: object, inputs: Tensor) -> Tensor:
        """Check the module's outputs for some records and return them as [records, outputs]."""
        name, count = type(self.module).__name__, inputs.shape[0]
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
            shape = getattr(outputs, "shape", None)
            found = type(outputs).__name__ if shape is None else tuple(shape)
            raise ConfigError(
                f"the model {name} returned {found} for a batch of {count}; "
                "it must return one row for each record"
            )
        rows = outputs.reshape(count, -1)
        width = self._widths.setdefault(inputs.shape[1:], rows.shape[1])
        if rows.shape[1] != width or not rows.is_floating_point():
            raise ConfigError(
                f"the model {name} returned {rows.shape[1]} numbers of type {rows.dtype} for "
                f"a record; they must be floating-point numbers, always {width} of them"
            )
        if rows.dtype is torch.bfloat16 and self._where.precision == "bfloat16":
            return rows.float()
        # It may be a view of the parameters, or something that the module keeps.
        return rows if self._is_known else rows.clone()


class CardStack(TorchModel):
    """Linear layers with ReLU between on a card: all points in one pass, without autograd.

    Autograd wants the last point apart, and makes one vector of its gradients by a copy. Such
    layers are small, and each operation of a round counts.
    """

    def __init__(self, layers: Sequence[Layer], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._layers = layers
        parts = iter(self._weights.values())
        self._pairs = [(next(parts), next(parts) if layer.bias else None) for layer in layers]
        self._flattens = any(type(part) is nn.Flatten for part in self.module.children())

    def forward(self, points: Points, number: int = 0) -> tuple[Tensor, Pullback]:
        """Outputs at every point, and the pullback at the last."""
        is_flat = points.rows.dim() == 2 or (self._flattens and not points.shifts)
        if self._training is not None or self._where.precision == "bfloat16" or not is_flat:
            return super().forward(points, number)
        rows = points.every() if points.shifts else points.rows.flatten(1)
        rows = rows.to(self.parameters.device)
        steps = [rows]
        with torch.no_grad(), self.arithmetic():
            for layer, (weight, bias) in zip(self._layers, self._pairs, strict=True):
                after = nn.functional.linear(steps[-1], weight, bias)
                steps.append(after.relu_() if layer.relu else after)
        last = slice(len(rows) - len(points.rows), None)
        return steps[-1], _CardPullback(self, [step[last] for step in steps], points.rows.shape)

    @torch.no_grad()
    def carried(self, steps: Sequence[Tensor], gradient: Tensor, into: Tensor | None) -> Tensor:
        """Gradient with respect to the first of ``steps``; that of the parameters ``into`` [d].

        ``gradient`` is with respect to the last of them. The first layer carries it no further
        where only the parameters' is wanted.
        """
        weights = list(self._weights.values())
        parts: list[Tensor] = []
        if into is not None:
            found = torch.split(into, [weight.numel() for weight in weights])
            parts = [part.view_as(weight) for part, weight in zip(found, weights, strict=True)]
        with self.arithmetic():
            for index in range(len(self._layers) - 1, -1, -1):
                if self._layers[index].relu:
                    gradient = torch.ops.aten.threshold_backward(gradient, steps[index + 1], 0)
                weight, bias = self._pairs[index]
                if parts and bias is not None:
                    torch.sum(gradient, 0, out=parts.pop())
                if parts:
                    torch.mm(gradient.t(), steps[index], out=parts.pop())
                if index or into is None:
                    gradient = gradient @ weight
        return gradient


@dataclass(eq=False)
class _CardPullback:
    """Back-propagation through one evaluation of a `CardStack`."""

    _model: CardStack
    _steps: list[Tensor]
    """Inputs and outputs of each layer at the last point, [batch, ...]."""
    _shape: torch.Size
    """Of the inputs."""

    def __call__(self, gradient: Tensor) -> Tensor:
        found = torch.empty_like(self._model.parameters)
        self._model.carried(self._steps, gradient.to(found.device), found)
        return found

    def inputs(self, gradient: Tensor) -> Tensor:
        slopes = gradient.to(self._model.parameters.device)
        return self._model.carried(self._steps, slopes, None).view(self._shape)

    @property
    def at_once(self) -> int:
        return self._model.at_once

    def record_gradients(self, gradient: Tensor, records: slice) -> HeldGradients:
        rows = self._steps[0].view(self._shape)[records]
        return self._model.record_gradients(rows, gradient[records].to(rows.device))


@dataclass(eq=False)
class _GraphPullback:
    """Back-propagation through an autograd graph, which lives as long as this object."""

    _model: TorchModel
    _outputs: Tensor
    _weights: dict[str, Tensor]
    _inputs: Tensor

    def __call__(self, gradient: Tensor) -> Tensor:
        parts = self._gradients(gradient, list(self._weights.values()))
        return torch.cat([part.reshape(-1) for part in parts])

    def inputs(self, gradient: Tensor) -> Tensor:
        return self._gradients(gradient, [self._inputs])[0]

    def _gradients(self, gradient: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
        """Gradients with respect to ``of``; zeros for those that outputs do not use."""
        outputs = self._outputs
        failure = failing(type(self._model.module).__name__, self._inputs)
        with user_code_errors(failure), self._model.arithmetic():
            return torch.autograd.grad(
                outputs, of, gradient.to(outputs.device), retain_graph=True, materialize_grads=True
            )

    @property
    def at_once(self) -> int:
        return self._model.at_once

    def record_gradients(self, gradient: Tensor, records: slice) -> HeldGradients:
        slopes = gradient[records].to(self._outputs.device)
        return self._model.record_gradients(self._inputs.detach()[records], slopes)


def rejects_single_record(module: nn.Module, row: Tensor) -> bool:
    """Whether batch normalisation refuses a single record, ``row`` [1, ...], in training.

    Found by trying on a copy.
    """
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(module).cpu().train()(row)
    except ValueError as error:
        return "more than 1 value per channel" in str(error)
    except Exception:  # whatever else is wrong with it is told where it is used
        return False
    return False
