"""The closed forms equal autograd, on the same weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import product

import torch
from tests.autograd import flat, gradients, normal, own_norms, record_norms
from torch import Tensor, nn

from vertizo.models.base import Points, Selected
from vertizo.models.linear.linear_stack import Layer, LinearStack
from vertizo.models.torch import TorchModel, wrap

SHIFTS = [0, 1, 3]
"""Numbers of further points, of which three columns are shifted."""


chain = nn.Sequential

STACKS = {
    "linear": lambda: nn.Linear(6, 3),
    "linear without bias": lambda: nn.Linear(6, 3, bias=False),
    "one output": lambda: nn.Linear(6, 1),
    "relu last": lambda: chain(nn.Linear(6, 4), nn.ReLU()),
    "two layers": lambda: chain(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "two layers, relu last": lambda: chain(
        nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3, bias=False), nn.ReLU()
    ),
    "no bias": lambda: chain(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)),
    "first bias only": lambda: chain(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)),
    "no relu": lambda: chain(nn.Linear(6, 5), nn.Linear(5, 2), nn.Linear(2, 4)),
    "flattened": lambda: chain(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)),
    "three layers": lambda: chain(
        nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3)
    ),
}


def pairs() -> Iterator[tuple[str, nn.Module, LinearStack]]:
    """Modules with their own weights, and the stacks over copies of them."""
    for kind, make in STACKS.items():
        torch.manual_seed(3)
        module = make()
        stack = wrap(copy.deepcopy(module))
        assert type(stack) is LinearStack, kind
        yield kind, module, stack


def batch(rows: int = 9) -> Tensor:
    return normal(1, rows, 6)


def close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_it_says_what_its_module_says() -> None:
    """Outputs at every point; gradients at the last, asked for twice; each record's own norm.

    No gradient of a record is formed, and each has the norm of the one that autograd forms.
    """
    for others, (kind, module, stack) in product(SHIFTS, pairs()):
        case, moved = (others, kind), normal(5, others, 9, 3)
        assert torch.equal(stack.parameters, flat(module)), case
        assert sum(layer.size for layer in stack.layers) == stack.parameters.numel(), case
        for rows in (1, 9):
            assert close(stack(batch(rows)), module(batch(rows)).detach()), case
        points = [*(batch() + nn.functional.pad(one, (2, 1)) for one in moved), batch()]
        expected = torch.cat([module(point).detach() for point in points])
        outputs, pullback = stack.forward(Points(batch(), ((2, moved),) if others else ()))
        shape = outputs[-9:].shape
        for weights in (normal(4, *shape), normal(4, *shape[::-1]).T):  # wherever they lie
            kept = weights.clone()
            to_parameters, to_inputs = gradients(module, batch(), weights)
            for _ in range(2):
                assert close(pullback(weights), to_parameters), case
                assert close(pullback.inputs(weights), to_inputs), case
                norms = record_norms(pullback, weights)
                own = own_norms(module, batch(), weights)
                assert torch.allclose(norms, own, rtol=1e-5, atol=1e-6), case
            assert norms.dtype == torch.float64, case
            assert torch.equal(weights, kept), case
        assert close(outputs, expected), case


def at(module: nn.Module, vector: Tensor) -> nn.Module:
    """A copy with these parameters, of their type."""
    moved = copy.deepcopy(module).to(vector.dtype)
    nn.utils.vector_to_parameters(vector, moved.parameters())
    return moved


def test_along() -> None:
    """At λ = 1e-3 the slope of the outputs is that of double precision, to a per cent."""
    for kind, module, stack in pairs():
        direction = normal(2, *stack.parameters.shape)
        for offsets in [(0.1, -0.1), (0.5,), (0.0, 1.0, -1.0, 0.2, 2.0)]:
            found = stack.along(direction, offsets, batch())
            for offset, values in zip(offsets, found, strict=True):
                shifted = at(module, flat(module) + offset * direction)
                assert close(values, shifted(batch()).detach()), kind
        plus, minus = stack.along(direction, (1e-3, -1e-3), batch())
        one, other = (
            at(module, flat(module).double() + offset * direction.double())(batch().double())
            for offset in (1e-3, -1e-3)
        )
        difference = (one - other).detach()
        assert float(((plus - minus) - difference).norm()) < 0.01 * float(difference.norm()), kind


def test_records_are_read_where_they_are() -> None:
    for kind, _, stack in pairs():
        table, ids = torch.randn(20, 6), torch.tensor([7, 0, 19, 7])
        direction = torch.randn_like(stack.parameters)
        assert stack.table_of(table) is not None, kind
        found = stack.along(direction, (0.1, 0.0), Selected(table, ids))
        assert torch.equal(found, stack.along(direction, (0.1, 0.0), table[ids])), kind
        assert torch.equal(Selected(table, ids).gathered(), table[ids]), kind
        assert stack.table_of(table.t()) is None, kind  # rows lie apart
        assert stack.table_of(table.double()) is None, kind


def test_inputs_are_flattened_and_parameters_are_kept() -> None:
    """Which may be a part of a longer vector; gradients of the inputs are not flattened."""
    whole = normal(0, 20)
    layers, inputs = [Layer(6, 2, bias=True, relu=False)], torch.randn(4, 1, 2, 3)
    stack = LinearStack(layers, whole[5:19])
    expected = LinearStack(layers, whole[5:19].clone())(inputs)
    assert torch.equal(stack(inputs), expected)
    assert torch.equal(stack(inputs.flatten(1)), expected)
    _, pullback = stack.forward(Points(inputs))
    assert pullback.inputs(torch.ones(4, 2)).shape == (4, 1, 2, 3)
    whole[5:17], whole[17:19] = 0, torch.tensor([1.0, 2.0])
    assert stack(torch.randn(1, 6)).tolist() == [[1.0, 2.0]]


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda layer, inputs, outputs: 2 * outputs)
    return module


def hooked_before(module: nn.Module) -> nn.Module:
    module.register_forward_pre_hook(lambda layer, inputs: (inputs[0] + 1,))
    return module


class Own(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).sigmoid()


class Backwards(nn.Sequential):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.flip(1))


OTHERS = {
    "relu first": lambda: chain(nn.ReLU(), nn.Linear(6, 3)),
    "another activation": lambda: chain(nn.Linear(6, 3), nn.Tanh()),
    "capped relu": lambda: chain(nn.Linear(6, 3), nn.ReLU6()),
    "flatten last": lambda: chain(nn.Linear(6, 3), nn.Flatten()),
    "nested": lambda: chain(chain(nn.Linear(6, 3)), nn.ReLU()),
    "convolution": lambda: chain(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)
    ),
    "layer norm": lambda: chain(nn.Linear(6, 3), nn.LayerNorm(3)),
    "dropout": lambda: chain(nn.Linear(6, 3), nn.Dropout(0.5)),
    "tied": lambda: chain(nn.Linear(6, 4), *[nn.Linear(4, 4), nn.ReLU()] * 2),
    "hook": lambda: chain(hooked(nn.Linear(6, 3))),
    "hook before": lambda: hooked_before(nn.Linear(6, 3)),
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)),
    "spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(6, 3)).eval(),
    "subclass of a layer": lambda: Own(6, 3),
    "subclass of a chain": lambda: Backwards(nn.Linear(6, 3)),
}


def test_other_modules_are_left_to_autograd() -> None:
    """Where the closed form would be wrong the module itself is asked."""
    for name in OTHERS:
        torch.manual_seed(3)
        module = OTHERS[name]().eval()
        expected = module(batch()).detach()
        model = wrap(module)
        assert close(model(batch()), expected), name
        assert type(model) is TorchModel, name


def test_record_norms_of_records_with_several_rows() -> None:
    """A stack that is applied along an axis, as PyTorch does: a record's rows share a gradient."""
    for times, layers in product([1, 2, 5], [1, 2]):
        case = times, layers
        module = STACKS["linear" if layers == 1 else "two layers, relu last"]()
        stack = wrap(copy.deepcopy(module))
        assert type(stack) is LinearStack, case
        inputs = normal(6, 9, times, 6)
        outputs, pullback = stack.forward(Points(inputs))
        weights = normal(4, *module(inputs).shape)
        found = record_norms(pullback, weights.flatten(1))
        assert close(outputs, module(inputs).detach().flatten(1)), case
        assert torch.allclose(found, own_norms(module, inputs, weights), rtol=1e-4, atol=1e-5), case


def test_record_norms_that_overflow_are_not_finite() -> None:
    """The square of 3e38 is finite in float64."""
    stack = wrap(chain(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    inputs = batch()
    inputs[2], inputs[4, 1], inputs[6, 0] = 3e38, float("nan"), float("inf")
    _, pullback = stack.forward(Points(inputs))
    found = record_norms(pullback, torch.ones(9, 3))
    assert [row for row in range(9) if not found[row].isfinite()] == [4, 6]
