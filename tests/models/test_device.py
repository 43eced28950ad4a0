"""A model that lives on another device: what goes there, what comes back, what is refused.

The device ``meta`` computes shapes and checks that operands live together; nothing can come back
from it, so that here zeros of that shape do. With a graphics card the numbers are compared as well.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from tests.cards import a_stand_in, as_on_a_card, on_a_card, on_host_numbers
from torch import Tensor, nn

from vertizo.config.architectures import FunctionConfig, MlpConfig
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.first_order import Vafl
from vertizo.methods.forward_difference import Cascaded
from vertizo.models.architectures.networks import Bag, Filters, TableNet, TabularNet, cnn, mlp
from vertizo.models.architectures.resnet import whole
from vertizo.models.base import Model, Points, Where
from vertizo.models.encoded import EncodedModel
from vertizo.models.losses import Classification
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import TorchModel, wrap
from vertizo.party.private_updates import PrivateSgd, PrivateZerothOrder, SecretSgd, SeededSampler
from vertizo.party.server_model import FirstOrder, ServerModel, ServerUpdate, ZerothOrder
from vertizo.privacy.noise.mechanisms import SeededNoise
from vertizo.run.build.models import client_model
from vertizo.zeroth_order.card_directions import directions_of
from vertizo.zeroth_order.directions import KEEP_UP_TO

MODULES = {
    "mlp": (lambda: mlp(12, [7], 5, final_relu=False), torch.randn(6, 12)),
    "cnn": (lambda: cnn((1, 4, 8), [2], 5), torch.randn(6, 1, 4, 8)),
    "filters": (lambda: Filters((1, 8, 8), 3), torch.randn(6, 1, 8, 8)),
    "table": (lambda: TableNet(4, [3, 9], [5], 5, final_relu=False), torch.rand(6, 4)),
    "tabular": (lambda: TabularNet(4, [3, 9], [5], 5), torch.rand(6, 4)),
    "bag": (lambda: Bag(50, 4, [5], 5), torch.randint(0, 50, (6, 9), dtype=torch.int32)),
}
METHODS = [Dpzv(), Dpzv(directions="rademacher", num_directions=2), Cascaded(), Vafl()]


def rounds(
    method: Dpzv | Cascaded | Vafl, module: nn.Module, inputs: Tensor, device: str
) -> Tensor:
    """Two rounds of a client and its optimiser's checkpoint between them; its parameters."""
    model = wrap(module, Where(device))
    before = model.parameters.clone()
    root, optimizer = Stream.from_seed(0), Sgd(0.01, momentum=0.9)
    side = ClientSide(model, optimizer, root.child("directions"), root.child("shared"), 0)
    client = method.client(side)
    for number in range(2):
        answer = client.ask(number, inputs)
        assert (answer.device.type, answer.requires_grad) == (device, False)
        shape = method.reply_shape(len(inputs), answer.shape[-1])
        told = torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)
        client.tell(number, inputs, told.to(device))
        optimizer.load(
            {k: v.cpu() if isinstance(v, Tensor) else v for k, v in optimizer.state().items()}
        )
    assert model.parameters.device.type == device
    assert not torch.equal(model.parameters, before)
    return model.parameters


def test_a_client_trains_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one is shifted there."""
    with a_stand_in().with_a_card(monkeypatch):
        for name, method in product(MODULES, METHODS):
            make, inputs = MODULES[name]
            rounds(method, make(), inputs, "card")
        module = nn.Sequential(nn.Linear(1100, 1000), nn.Tanh(), nn.Linear(1000, 2))
        assert sum(part.numel() for part in module.parameters()) > KEEP_UP_TO
        rounds(Dpzv(), module, torch.randn(3, 1100), "card")


def test_gradients_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = a_stand_in()
    with stand_in.with_a_card(monkeypatch):
        for name, (make, inputs) in MODULES.items():
            model = wrap(make(), Where("card"))
            assert isinstance(model, TorchModel), name
            outputs, pullback = model.forward(Points(inputs))
            gradient = torch.ones_like(outputs)
            assert outputs.device == pullback(gradient).device == stand_in.CARD, name
            own = pullback.record_gradients(gradient, slice(0, 6))
            ones = torch.ones(6, dtype=torch.float64, device=stand_in.CARD)
            assert own.total(ones).shape == model.parameters.shape, name
            if inputs.is_floating_point() and name != "table":
                assert pullback.inputs(gradient).shape == inputs.shape, name


def test_no_tensor_is_kept_for_a_graph() -> None:
    """Of a zeroth-order client."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    for method in METHODS:
        kept.clear()
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, keep):
            rounds(method, cnn((1, 4, 4), [2], 3), torch.randn(5, 1, 4, 4), "cpu")
        assert bool(kept) == isinstance(method, Vafl), method


def test_functions_stay_on_the_processor() -> None:
    config = FunctionConfig(path="numpy:tanh", num_parameters=3)
    with pytest.raises(ConfigError, match=r"'cuda' but client\.model is a plain function"):
        client_model(config, (3,), Stream.from_seed(0), where=Where("cuda"))


def served(make: Callable[[], nn.Module], inputs: Tensor, device: str) -> dict[str, Tensor]:
    """A server's parameters after two steps by every update, by name."""
    task, labels, found = Classification(5), torch.arange(len(inputs)) % 5, {}
    root = Stream.from_seed(0)
    noise = SeededNoise(root.child("noise"), clip_norm=0.5, noise_std=0.1)
    sampler = SeededSampler(root.child("samples"))
    size = sum(part.numel() for part in make().parameters())
    there = torch.zeros(size, device=device)
    law = directions_of(there, "scaled-sphere", root.child("server"))
    batch = {"batch_size": len(inputs)}
    updates: dict[str, Callable[[], ServerUpdate]] = {
        "sgd": lambda: FirstOrder(Sgd(0.01, momentum=0.9), **batch),
        "zeroth-order": lambda: ZerothOrder(Sgd(0.01), directions=law, smoothing=1e-2, **batch),
        "private-sgd": lambda: PrivateSgd(Sgd(0.01, momentum=0.9), noise, **batch),
        "private-zeroth-order": lambda: PrivateZerothOrder(
            Sgd(0.01), noise, directions=law, smoothing=1e-2, **batch
        ),
        "poisson-dp-sgd": lambda: SecretSgd(
            Sgd(0.01), noise, sampling=0.5, capacity=len(inputs), sampler=sampler
        ),
    }
    for name, made in updates.items():
        torch.manual_seed(0)
        model, update = ServerModel(wrap(make(), Where(device)), task), made()
        for step in range(2):
            evaluation = model.evaluate(Points(inputs), labels)
            assert evaluation.losses.device.type == device, name
            update.step(model, evaluation, inputs, labels)
            if isinstance(update, SecretSgd):
                update.between(step, model, inputs, labels, len(inputs) - 1, len(inputs))
        assert model.parameters.device.type == device, name
        found[name] = model.parameters
    return found


def test_a_server_trains_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """By every update, as on the processor."""
    with a_stand_in().with_a_card(monkeypatch):
        for name in ("mlp", "cnn", "filters"):
            one, other = (served(*MODULES[name], device) for device in ("card", "cpu"))
            for update, parameters in other.items():
                near = torch.allclose(one[update].cpu(), parameters, rtol=1e-3, atol=1e-4)
                assert near, (name, update)


class Own(nn.Sequential):
    """Whose code nobody knows."""


PASSES = {
    **dict.fromkeys(("mlp", "cnn", "filters", "table", "tabular", "deep", "resnet"), 1),
    **dict.fromkeys(("bag", "own"), 3),  # torch.vmap does not take a bag
}
"""Evaluations of the module for three offsets, each of so many records."""


def test_all_offsets_are_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several sets of weights; one after the other where that cannot be, or is not known."""
    images = torch.randn(3, 3, 16, 16)
    modules = {
        **MODULES,
        "deep": (lambda: cnn((3, 16, 16), [4, 6, 8], 5), images),
        "resnet": (lambda: whole((3, 16, 16), 10, 8), images),
        "own": (lambda: Own(nn.Linear(4, 2)), torch.rand(6, 4)),
    }
    for name, (make, inputs) in modules.items():
        with as_on_a_card(monkeypatch):
            model = wrap(make())
            assert isinstance(model, TorchModel), name
            before, u = model.parameters.clone(), torch.randn(model.parameters.numel())
            model.along(u, (0.1,), inputs)  # finds out whether it can be
            unseen = model.along(u, (1e-2, 0.0, -1e-2), inputs)  # a hook is to be called
            seen: list[int] = []
            model.module.register_forward_hook(lambda *_, seen=seen: seen.append(1))
            found = model.along(u, (1e-2, 0.0, -1e-2), inputs)
            assert len(seen) == PASSES[name], name
            wanted = Model.along(model, u, (1e-2, 0.0, -1e-2), inputs)
        assert torch.allclose(found, wanted, 1e-4, 1e-5), name
        assert torch.allclose(unseen, wanted, 1e-4, 1e-5), name
        assert torch.equal(model.parameters, before), name


def test_own_columns_go_there_too() -> None:
    """A server's encoder and what follows it."""
    model = EncodedModel(
        lambda encoded: nn.Linear(3 + encoded, 2), nn.Linear(4, 5), 3, (4,), where=Where("meta")
    )
    assert [part.parameters.device.type for part in model.parts] == ["meta", "meta"]


@on_a_card
def test_a_server_moves_as_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    on_host_numbers(monkeypatch)
    for name in ("mlp", "cnn", "filters"):
        one, other = (served(*MODULES[name], device) for device in ("cuda", "cpu"))
        for update, parameters in other.items():
            near = torch.allclose(one[update].cpu(), parameters, rtol=1e-3, atol=1e-4)
            assert near, (name, update)


@on_a_card
def test_small_differences_survive_on_a_card() -> None:
    """A slope over λ = 1e-3, through convolutions that TF32 rounds where it may."""
    inputs, slopes = torch.randn(64, 3, 16, 16), {}
    for where in (Where(), Where("cuda"), Where("cuda", "tf32"), Where("cuda", "bfloat16")):
        torch.manual_seed(0)
        model = wrap(cnn((3, 16, 16), [64, 64, 64], 10), where)
        u = torch.randn(model.parameters.numel())
        plus, minus = model.along(u, (1e-3, -1e-3), inputs)
        slopes[where] = (plus - minus) / 2e-3
    wanted = slopes[Where()]
    errors = [float((found - wanted).norm() / wanted.norm()) for found in slopes.values()]
    assert errors[1] < 0.02
    assert 5 * errors[1] < errors[2] < 0.2
    assert errors[2] < errors[3] < 1


@on_a_card
def test_the_numbers_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """First parameters, and what training makes of them."""
    on_host_numbers(monkeypatch)
    one, other = (
        client_model(MlpConfig(), (12,), Stream.from_seed(0), where=Where(device)).parameters.cpu()
        for device in ("cpu", "cuda")
    )
    assert torch.equal(one, other)
    for name, method in product(MODULES, METHODS):
        make, inputs = MODULES[name]
        found = []
        for device in ("cuda", "cpu"):
            torch.manual_seed(0)
            found.append(rounds(method, make(), inputs, device).cpu())
        assert torch.allclose(*found, rtol=1e-3, atol=1e-4), (name, method)


@on_a_card
def test_training_on_a_card_repeats_to_the_bit() -> None:
    for name, method in product(MODULES, METHODS):
        make, inputs = MODULES[name]
        many, found = inputs.repeat(50, *[1] * (inputs.dim() - 1)), []
        for _ in range(2):
            torch.manual_seed(0)
            found.append(rounds(method, make(), many, "cuda"))
        assert torch.equal(*found), (name, method)


@pytest.mark.parametrize("differentiates", [False, True])
def test_attention_on_a_card_is_added_up_in_one_order(differentiates: bool) -> None:
    """Where gradients are asked for: those of the fast ones are sums in no fixed order."""
    fast = (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.mem_efficient_sdp_enabled)
    there = SimpleNamespace(
        parameters=SimpleNamespace(device=torch.device("cuda")), _where=Where("cuda")
    )
    with torch.set_grad_enabled(differentiates), TorchModel.arithmetic(there):  # type: ignore[arg-type]
        assert [is_on() for is_on in fast] == [not differentiates] * 2
        assert torch.backends.cuda.math_sdp_enabled()
    assert all(is_on() for is_on in fast)
