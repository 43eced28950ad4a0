"""Any module as a model over one flat vector; what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.autograd import flat, gradients, normal, own_norms, record_norms
from tests.refusals import refused
from tests.rows import each
from torch import Tensor, nn
from torch.nn.functional import dropout

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.models.architectures.networks import cnn, mlp
from vertizo.models.base import Points
from vertizo.models.linear.linear_stack import LinearStack
from vertizo.models.parts import is_same_in_training
from vertizo.models.torch import TorchModel, flatten, wrap

IMAGES = torch.randn(6, 1, 4, 8, generator=torch.Generator().manual_seed(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    return cnn((1, 4, 8), [2, 3], 5)


def test_parameters_are_views_of_one_vector() -> None:
    for make, kind in [
        (network, TorchModel),
        (lambda: mlp(32, [7], 5, final_relu=True), LinearStack),
    ]:
        module = make()
        before = flat(module)
        model = wrap(module)
        assert type(model) is kind
        assert torch.equal(model.parameters, before), make
        assert torch.equal(flat(module), before), make
        model.parameters.mul_(2.0)
        assert torch.equal(flat(module), 2 * before), make
        with torch.no_grad():
            next(module.parameters()).zero_()
        assert not torch.equal(model.parameters, 2 * before), make
        assert torch.equal(model.parameters, flat(module)), make
        storages = {part.untyped_storage().data_ptr() for part in module.parameters()}
        assert storages == {model.parameters.untyped_storage().data_ptr()}, make


def test_gradients_equal_autograd() -> None:
    """Asked for more than once; without one no graph is made."""
    module = network()
    model = wrap(copy.deepcopy(module))
    with torch.enable_grad():
        assert not model(IMAGES).requires_grad
        direction = torch.ones_like(model.parameters)
        assert not model.along(direction, (1e-3, -1e-3), IMAGES).requires_grad
    assert not any(part.requires_grad for part in model.module.parameters())
    outputs, pullback = model.forward(Points(IMAGES))
    weights = normal(2, *outputs.shape)
    expected, first = gradients(module, IMAGES, weights)
    assert torch.allclose(outputs, module(IMAGES).detach(), atol=1e-6)
    assert torch.allclose(pullback.inputs(weights), first, atol=1e-6)
    for _ in range(2):
        assert torch.allclose(pullback(weights), expected, rtol=1e-4, atol=1e-6)
    for _ in range(3):  # training goes on after a gradient
        _, pullback = model.forward(Points(IMAGES))
        gradient, before = pullback(torch.ones(6, 5)), model(IMAGES).sum()
        model.parameters.add_(gradient, alpha=-1e-4)
        assert model(IMAGES).sum() < before


def test_unused_parameters_get_zeros_and_tied_ones_are_counted_once() -> None:
    shared, spare, inputs = nn.Linear(3, 3), nn.Linear(3, 2), torch.randn(5, 3)
    spare.register_parameter("spare", nn.Parameter(torch.ones(4)))
    for module in (spare, nn.Sequential(shared, nn.Tanh(), shared)):
        total, parts = module(inputs).sum(), list(module.parameters())
        grads = torch.autograd.grad(total, parts, allow_unused=True, materialize_grads=True)
        model = wrap(module)
        outputs, pullback = model.forward(Points(inputs))
        expected = torch.cat([part.reshape(-1) for part in grads])
        assert model.parameters.numel() == 12
        assert torch.allclose(pullback(torch.ones_like(outputs)), expected, atol=1e-6)
        model.parameters.zero_()
        assert not model(inputs).any()


def test_frozen_parameters_are_not_in_the_vector() -> None:
    """A stack with a frozen layer is no closed form."""
    module = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 2))
    inputs = torch.randn(5, 3)
    grads = torch.autograd.grad(module(inputs).sum(), list(module[2].parameters()))
    expected = torch.cat([part.reshape(-1) for part in grads])
    body = module[0].weight.clone()
    model = wrap(module)
    assert model.parameters.numel() == 10
    _, pullback = model.forward(Points(inputs))
    assert torch.allclose(pullback(torch.ones(5, 2)), expected, atol=1e-6)
    found = pullback.record_gradients(torch.ones(5, 2), slice(0, 5)).total(torch.ones(5).double())
    assert torch.allclose(found.float(), expected, atol=1e-5)
    model.parameters.zero_()
    assert torch.equal(module[0].weight, body)
    assert not model(inputs).any()
    stack = mlp(4, [3], 2, final_relu=False)
    stack[1].requires_grad_(False)
    assert type(wrap(stack)) is TorchModel


def test_a_state_of_parameters_alone_leaves_the_rest() -> None:
    """As checkpoints of before have it."""
    model = wrap(nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2)))
    model.load(torch.ones(10))
    assert torch.equal(model.parameters, torch.ones(10))
    for state in (torch.ones(9), {"parameters": torch.ones(10), "rest": {}}):
        with pytest.raises((ValueError, KeyError)):
            model.load(state)


def test_modules_run_in_evaluation_mode() -> None:
    module = nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.5)).train()
    model = wrap(module)
    inputs = torch.randn(4, 3)
    assert torch.equal(model(inputs), model(inputs))
    assert not module.training


class Hidden(nn.Linear):
    """Whose code nobody knows: it draws in training."""

    def forward(self, rows: Tensor) -> Tensor:
        return dropout(super().forward(rows), 0.5, self.training)


TRAINED = {
    "linear": (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.GroupNorm(2, 4)), True),
    "ours": (network(), True),
    "no dropout": (nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.0)), True),
    "attention": (nn.MultiheadAttention(4, 2), True),
    "dropout": (nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1)), False),
    "dropout in attention": (nn.MultiheadAttention(4, 2, dropout=0.1), False),
    "random slopes": (nn.Sequential(nn.Linear(3, 4), nn.RReLU()), False),
    "batch normalisation": (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), False),
    "running means": (nn.InstanceNorm2d(2, affine=True, track_running_stats=True), False),
    "somebody's": (nn.Sequential(Hidden(3, 4)), False),
}


@each("name", TRAINED)
def test_training_mode_is_left_out_where_it_is_known_to_change_nothing(name: str) -> None:
    module, same = TRAINED[name]
    assert is_same_in_training(module) == same


def test_what_somebody_draws_in_training_is_drawn() -> None:
    model = TorchModel(Hidden(3, 20), torch.zeros(80), ["weight", "bias"], Stream.from_seed(1))
    zeros = [int((model.forward(Points(torch.ones(8, 3)), n)[0] == 0).sum()) for n in (0, 1)]
    assert all(40 < count < 120 for count in zeros)
    assert not bool((model(torch.ones(8, 3)) == 0).any())


def test_integer_inputs() -> None:
    model = wrap(nn.EmbeddingBag(10, 4, mode="mean"))
    tokens = torch.tensor([[1, 2], [2, 2], [9, 0]])
    outputs, pullback = model.forward(Points(tokens))
    assert torch.equal(outputs, model(tokens))
    gradient = pullback(torch.ones(3, 4)).view(10, 4)
    assert gradient.sum(1).tolist() == [2, 2, 6, 0, 0, 0, 0, 0, 0, 2]


class Shaped(nn.Module):
    """Returns whatever it is told to."""

    def __init__(self, result: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.result = result

    def forward(self, inputs: Tensor) -> object:
        return self.result


def test_outputs_are_a_row_for_each_record() -> None:
    assert wrap(Shaped(torch.ones(6, 2, 3)))(IMAGES).shape == (6, 6)
    assert wrap(Shaped(torch.ones(6)))(IMAGES).shape == (6, 1)
    others = [torch.ones(5, 2), torch.ones(()), (torch.ones(6, 2),), None]
    for result, told in zip(others, (r"\(5, 2\)", r"\(\)", "tuple", "NoneType"), strict=True):
        words = f"Shaped returned {told} for a batch of 6"
        refused(told, ConfigError, wrap(Shaped(result)), IMAGES, match=words)


def test_what_cannot_be_trained_is_refused() -> None:
    untracked = nn.BatchNorm1d(3, affine=True, track_running_stats=False)
    mixing = [nn.BatchNorm1d(3), untracked, nn.LazyBatchNorm1d(), nn.SyncBatchNorm(3)]
    for part in mixing:
        words = f"{type(part).__name__}, which mixes the records"
        inner = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), part), nn.Linear(3, 2))
        for module in (nn.Sequential(nn.Linear(3, 3), part), inner):
            refused(module, ConfigError, wrap, module, match=words)
    alone, frozen = nn.BatchNorm2d(3), nn.Linear(3, 2).requires_grad_(False)
    refused("alone", ConfigError, wrap, alone, match="layer itself is BatchNorm2d")
    for module in (nn.ReLU(), nn.Sequential(), nn.Flatten(), frozen):
        words = "no parameters with requires_grad"
        refused(module, ConfigError, wrap, module, match=words)
    mixed = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2).double())
    refused("dtypes", ConfigError, wrap, mixed, match=r"dtypes .*float64")
    for part in (nn.GroupNorm(1, 3), nn.LayerNorm(3)):  # within a record they are welcome
        assert wrap(nn.Sequential(nn.Linear(3, 3), part))(torch.randn(2, 3)).shape == (2, 3)


def test_flatten_keeps_values_order_and_shapes() -> None:
    """Those that are not contiguous in reading order."""
    parts = [nn.Parameter(torch.randn(shape)) for shape in ((2, 3), (), (4,))]
    copies = [part.detach().clone() for part in parts]
    vector = flatten(parts)
    assert torch.equal(vector, torch.cat([part.reshape(-1) for part in copies]))
    assert all(map(torch.equal, parts, copies))
    module = nn.Linear(3, 2)
    module.weight = nn.Parameter(torch.arange(6.0).view(3, 2).t())
    inputs = torch.randn(4, 3)
    expected = module(inputs).detach()
    model = wrap(module)
    assert model.parameters[:6].tolist() == [0, 2, 4, 1, 3, 5]
    assert torch.allclose(model(inputs), expected)


def test_record_norms_equal_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many gradients are formed at a time."""
    for at_once in [1, 2**24]:
        monkeypatch.setattr("vertizo.models.torch.AT_ONCE", at_once)
        module = network()
        model = wrap(copy.deepcopy(module))
        assert type(model) is TorchModel, at_once
        outputs, pullback = model.forward(Points(IMAGES))
        weights = normal(2, *outputs.shape)
        found = record_norms(pullback, weights)
        assert found.dtype == torch.float64, at_once
        wanted = own_norms(module, IMAGES, weights)
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6), at_once
        assert not any(part.requires_grad for part in model.module.parameters()), at_once


def test_record_norms_that_overflow_are_not_finite() -> None:
    model = wrap(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    inputs = torch.ones(4, 4)
    inputs[1, 2] = float("nan")
    inputs[3] = float("inf")
    _, pullback = model.forward(Points(inputs))
    found = record_norms(pullback, torch.ones(4, 2))
    assert found.isfinite().tolist() == [True, False, True, False]


class Choosy(nn.Linear):
    """Does what depends on numbers, which ``torch.vmap`` cannot; perhaps for no single record."""

    least = 1

    def forward(self, x: Tensor) -> Tensor:
        if len(x) < self.least:
            raise RuntimeError("one record is too few")
        return super().forward(x) * (2.0 if float(x.detach().sum()) > 0 else 1.0)


def test_a_module_that_vmap_refuses_is_taken_one_record_at_a_time() -> None:
    """Each as a batch of its own, so that no record is in another's gradient."""
    module = Choosy(4, 2)
    inputs = torch.tensor([[1.0] * 4, [-3.0] * 4, [2.0] * 4])
    _, pullback = wrap(copy.deepcopy(module)).forward(Points(inputs))
    weights = normal(2, 3, 2)
    found = pullback.record_gradients(weights, slice(0, 3)).total(torch.ones(3).double())
    rows = zip(inputs, weights, strict=True)
    expected = sum(gradients(module, row[None], weight[None])[0] for row, weight in rows)
    assert torch.allclose(found, expected.double(), rtol=1e-5, atol=1e-6)
    module.least = 2
    _, pullback = wrap(module).forward(Points(torch.ones(3, 4)))
    with pytest.raises(ConfigError, match=r"Choosy .* one record is too few"):
        pullback.record_gradients(torch.ones(3, 2), slice(0, 3)).squares()


def test_what_is_measured_is_what_is_added_up() -> None:
    """One record's total has its norm, to the last digits of float64."""
    model = wrap(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    inputs = 1e6 * (1 + 1e-7 * torch.randn(5, 4, generator=torch.Generator().manual_seed(3)))
    _, pullback = model.forward(Points(inputs))
    own = pullback.record_gradients(torch.ones(5, 2), slice(0, 5))
    for record, square in enumerate(own.squares()):
        weights = torch.zeros(5, dtype=torch.float64)
        weights[record] = 1
        assert float(own.total(weights).norm()) == pytest.approx(float(square.sqrt()), rel=1e-12)
