"""The closed forms equal autograd, on the same weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from tests.autograd import flat, gradients, normal, own_norms, record_norms
from torch import Tensor, nn

from vertizo.models.base import Points, Selected
from vertizo.models.linear_stack import Layer, LinearStack
from vertizo.models.torch import TorchModel, wrap

SHIFTS = [0, 1, 3]
"""Numbers of further points, of which three columns are shifted."""


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def linear(bias: bool = True) -> nn.Module:
    return nn.Linear(6, 3, bias=bias)


def chain(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts)


STACKS = {
    "linear": lambda: linear(),
    "linear without bias": lambda: linear(bias=False),
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


def test_along() -> None:
    for kind, module, stack in pairs():
        direction = normal(2, *stack.parameters.shape)
        for offsets in [(0.1, -0.1), (0.5,), (0.0, 1.0, -1.0, 0.2, 2.0)]:
            found = stack.along(direction, offsets, batch())
            for offset, values in zip(offsets, found, strict=True):
                shifted = copy.deepcopy(module)
                nn.utils.vector_to_parameters(
                    flat(module) + offset * direction, shifted.parameters()
                )
                assert close(values, shifted(batch()).detach()), kind


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


def test_small_steps_along_are_resolved() -> None:
    """At λ = 1e-3 the slope of the outputs is that of double precision, to a per cent."""
    for kind, module, stack in pairs():
        direction = normal(2, *stack.parameters.shape)
        plus, minus = stack.along(direction, (1e-3, -1e-3), batch())
        exact = []
        for offset in (1e-3, -1e-3):
            shifted = copy.deepcopy(module).double()
            vector = flat(shifted) + offset * direction.double()
            nn.utils.vector_to_parameters(vector, shifted.parameters())
            exact.append(shifted(batch().double()).detach())
        difference = exact[0] - exact[1]
        assert float(((plus - minus) - difference).norm()) < 0.01 * float(difference.norm()), kind


def test_dead_units_get_nothing() -> None:
    stack = LinearStack([Layer(1, 2, bias=True, relu=True)], torch.tensor([1.0, 1.0, -5.0, 0.0]))
    outputs, pullback = stack.forward(Points(torch.tensor([[2.0]])))
    assert outputs.tolist() == [[0.0, 2.0]]
    assert pullback(torch.ones(1, 2)).tolist() == [0.0, 2.0, 0.0, 1.0]
    assert pullback.inputs(torch.ones(1, 2)).tolist() == [[1.0]]


def test_inputs_are_flattened_and_their_gradient_is_not() -> None:
    stack = LinearStack([Layer(6, 2, bias=True, relu=False)], torch.randn(14))
    inputs = torch.randn(4, 1, 2, 3)
    assert torch.equal(stack(inputs), stack(inputs.flatten(1)))
    _, pullback = stack.forward(Points(inputs))
    assert pullback.inputs(torch.ones(4, 2)).shape == (4, 1, 2, 3)


def test_parameters_are_kept_not_copied() -> None:
    parameters = torch.zeros(8)
    stack = LinearStack([Layer(3, 2, bias=True, relu=False)], parameters)
    assert stack.parameters is parameters
    parameters[6:] = torch.tensor([1.0, 2.0])
    assert stack(torch.randn(1, 3)).tolist() == [[1.0, 2.0]]


def test_parameters_may_be_a_part_of_a_longer_vector() -> None:
    whole = normal(0, 20)
    layers = [Layer(3, 2, bias=True, relu=False)]
    inputs = torch.randn(4, 3)
    expected = LinearStack(layers, whole[5:13].clone())(inputs)
    assert torch.equal(LinearStack(layers, whole[5:13])(inputs), expected)


def tied() -> nn.Module:
    shared = nn.Linear(4, 4)
    return chain(shared, nn.ReLU(), shared)


def hooked() -> nn.Module:
    module = chain(nn.Linear(6, 3))
    module[0].register_forward_hook(lambda layer, inputs, outputs: 2 * outputs)
    return module


def hooked_before() -> nn.Module:
    module = nn.Linear(6, 3)
    module.register_forward_pre_hook(lambda layer, inputs: (inputs[0] + 1,))
    return module


def parametrised() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))


def spectral() -> nn.Module:
    return nn.utils.spectral_norm(nn.Linear(6, 3)).eval()


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
    "tied": lambda: chain(nn.Linear(6, 4), nn.ReLU(), *tied()),
    "hook": hooked,
    "hook before": hooked_before,
    "parametrised": parametrised,
    "spectral norm": spectral,
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


def test_a_linear_layer_over_the_last_of_many_axes() -> None:
    """Without a Flatten, PyTorch applies it to every row of a record."""
    torch.manual_seed(3)
    module = nn.Linear(4, 3)
    inputs = torch.randn(5, 2, 4)
    expected = module(inputs).detach().flatten(1)
    assert close(wrap(module)(inputs), expected)


def test_record_norms_of_records_with_several_rows() -> None:
    """A stack that is applied along an axis: a record's rows share one gradient."""
    for times, layers in product([1, 2, 5], [1, 2]):
        case = times, layers
        module = linear() if layers == 1 else STACKS["two layers, relu last"]()
        stack = wrap(copy.deepcopy(module))
        assert type(stack) is LinearStack, case
        inputs = normal(6, 9, times, 6)
        _, pullback = stack.forward(Points(inputs))
        weights = normal(4, *module(inputs).shape)
        found = record_norms(pullback, weights.flatten(1))
        assert torch.allclose(found, own_norms(module, inputs, weights), rtol=1e-4, atol=1e-5), case


def test_record_norms_that_overflow_are_not_finite() -> None:
    """The square of 3e38 is finite in float64."""
    stack = wrap(chain(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    inputs = batch()
    inputs[2], inputs[4, 1], inputs[6, 0] = 3e38, float("nan"), float("inf")
    _, pullback = stack.forward(Points(inputs))
    found = record_norms(pullback, torch.ones(9, 3))
    assert [row for row in range(9) if not found[row].isfinite()] == [4, 6]
