"""Any ``torch.nn.Module`` as a model over one flat parameter vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vertizo.errors import ConfigError
from vertizo.models.base import DifferentiableModel, Model, Points, Pullback
from vertizo.models.linear_stack import LinearStack, layers_of


def wrap(module: nn.Module, device: str = "cpu") -> DifferentiableModel:
    """The module as a model: in closed form where its shape allows that, by autograd else.

    On another device than the processor it is by autograd always. Inputs, outputs and the gradients
    of either are the processor's wherever the model lives; parameters and theirs are the device's.

    The module's parameters become views of one flat vector, so that a change of that vector is a
    change of the module, and no second copy of the weights exists.

    Raises:
        ConfigError: the module has no parameters, several dtypes, or batch normalisation (it mixes
            records, which no privacy guarantee survives; use group normalisation).
    """
    _refuse_mixing(module)  # first: parameters of lazy layers cannot be put in a vector
    return over(module.to(device), flatten(module.parameters()))


def over(module: nn.Module, parameters: Tensor) -> DifferentiableModel:
    """`wrap` for a module whose parameters are views of ``parameters`` already.

    Raises:
        ConfigError: as `wrap`.
    """
    _refuse_mixing(module)
    layers = layers_of(module) if parameters.device.type == "cpu" else None
    if layers is None:
        return TorchModel(module, parameters)
    flattens = any(type(part) is nn.Flatten for part in module.children())
    return LinearStack(layers, parameters, flatten=flattens)


def flatten(parameters: Iterable[nn.Parameter]) -> Tensor:
    """One vector that holds all parameters in order; each becomes a view of its part."""
    parts = list(parameters)
    if not parts:
        raise ConfigError("the model has no parameters; there is nothing to train")
    kinds = {part.dtype for part in parts}
    if len(kinds) > 1:
        raise ConfigError(f"the model's parameters have dtypes {kinds}; they must be of one")
    flat = torch.cat([part.detach().reshape(-1) for part in parts])
    offset = 0
    for part in parts:
        part.requires_grad_(False)
        part.data = flat[offset : offset + part.numel()].view(part.shape)
        offset += part.numel()
    return flat


def _refuse_mixing(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"the model's layer {name or 'itself'} is {type(part).__name__}, which mixes the "
                "records of a batch; use GroupNorm or LayerNorm"
            )


class TorchModel:
    """A module by autograd; zeroth-order training never builds a graph.

    Modules run in evaluation mode: a random layer such as dropout would answer the two evaluations
    of a zeroth-order query differently.
    """

    def __init__(self, module: nn.Module, parameters: Tensor) -> None:
        self.module = module.eval()
        self.parameters = parameters

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, no graph."""
        with torch.no_grad():
            return to_processor(self._rows(self.module(self._there(inputs)), inputs))

    def along(self, direction: Tensor, offsets: Sequence[float], inputs: Tensor) -> Tensor:
        """Outputs at ``w + offset · direction``, [offsets, batch, outputs]."""
        return in_turn(self, direction, offsets, inputs)

    def forward(self, points: Points) -> tuple[Tensor, Pullback]:
        """Outputs at every point, with a graph for the last only."""
        rows = self._there(points.rows.detach())
        variable = rows.requires_grad_(rows.is_floating_point())
        weights = {
            name: weight.detach().requires_grad_(True)  # the same storage, with a graph of its own
            for name, weight in self.module.named_parameters()
        }
        with torch.enable_grad():
            outputs = self._rows(functional_call(self.module, weights, (variable,)), variable)
        if not outputs.requires_grad:
            raise ConfigError(
                f"the model {type(self.module).__name__} is not differentiable: its outputs do not "
                "depend on its parameters by operations that have gradients; train it with "
                "method 'dpzv' or 'cascaded'"
            )
        values = to_processor(outputs.detach())
        if points.shifts:
            values = torch.cat([self(points.changed()), values])
        return values, GraphPullback(self.module, outputs, weights, variable)

    def _there(self, inputs: Tensor) -> Tensor:
        """Inputs where the model lives."""
        return inputs.to(self.parameters.device)

    def _rows(self, outputs: object, inputs: Tensor) -> Tensor:
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ConfigError(
                f"the model {type(self.module).__name__} returned {found} for a batch of "
                f"{inputs.shape[0]}; it must return one row for each record"
            )
        return outputs.reshape(outputs.shape[0], -1).clone()  # it may be a view of the parameters


def to_processor(result: Tensor) -> Tensor:
    """A result where everything but the model is; itself if it is there."""
    return result.cpu()


def in_turn(model: Model, direction: Tensor, offsets: Sequence[float], inputs: Tensor) -> Tensor:
    """`Model.along`, one offset after the other, from a copy of w."""
    saved = model.parameters.clone()
    direction = direction.to(saved.device)
    results = []
    try:
        for offset in offsets:
            torch.add(saved, direction, alpha=offset, out=model.parameters)
            results.append(model(inputs))
    finally:
        model.parameters.copy_(saved)
    return torch.stack(results)


class GraphPullback:
    """Back-propagation through an autograd graph, which lives as long as this object."""

    def __init__(
        self, module: nn.Module, outputs: Tensor, weights: dict[str, Tensor], inputs: Tensor
    ) -> None:
        self._module = module
        self._outputs = outputs
        self._weights = weights
        self._inputs = inputs

    def __call__(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the parameters, [d]; unused parameters get zeros."""
        parts = torch.autograd.grad(
            self._outputs,
            list(self._weights.values()),
            gradient.to(self._outputs.device),
            retain_graph=True,
            materialize_grads=True,
        )
        return torch.cat([part.reshape(-1) for part in parts])

    def inputs(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the inputs, of their shape."""
        (result,) = torch.autograd.grad(
            self._outputs,
            [self._inputs],
            gradient.to(self._outputs.device),
            retain_graph=True,
            materialize_grads=True,
        )
        return to_processor(result)

    def record_norms(self, gradient: Tensor) -> Tensor:
        """Norm of what each record alone gives the gradient of the parameters, [batch].

        Some records' gradients are formed at a time (``torch.func``), and dropped.

        Raises:
            ConfigError: the module does what cannot be done for one record after another.
        """
        weights = {name: weight.detach() for name, weight in self._weights.items()}
        size = sum(weight.numel() for weight in weights.values())

        def square(row: Tensor, slope: Tensor) -> Tensor:
            def output(at: dict[str, Tensor]) -> Tensor:
                result: Tensor = functional_call(self._module, at, (row.unsqueeze(0),))
                return result.reshape(-1)

            (parts,) = torch.func.vjp(output, weights)[1](slope)
            total = row.new_zeros((), dtype=torch.float64)
            for part in parts.values():
                total = total + part.to(torch.float64).square().sum()
            return total

        chunk = max(1, AT_ONCE // size)
        try:
            squares = torch.vmap(square, chunk_size=chunk)(
                self._inputs.detach(), gradient.to(self._outputs.device)
            )
        except RuntimeError as error:
            raise ConfigError(
                f"the model {type(self._module).__name__} cannot be differentiated record by "
                f"record: {str(error).splitlines()[0]}"
            ) from None
        return to_processor(squares.sqrt())


AT_ONCE = 2**24
"""Numbers that may be held at a time when gradients are taken record by record."""
