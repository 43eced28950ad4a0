"""A model that lives on another device: what goes there, what comes back, what is refused.

The device ``meta`` computes shapes and checks that operands live together; nothing can come back
from it, so that here zeros of that shape do. With a graphics card the numbers are compared as well.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from vertizo.config.architectures import FunctionConfig, MlpConfig
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.first_order import Vafl
from vertizo.methods.forward_difference import Cascaded
from vertizo.models import torch as models
from vertizo.models.base import Points
from vertizo.models.networks import Bag, Filters, TableNet, cnn, mlp
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import TorchModel, wrap
from vertizo.run.build_models import client_model
from vertizo.zeroth_order.directions import KEEP_UP_TO

MODULES = {
    "mlp": (lambda: mlp(12, [7], 5, final_relu=False), torch.randn(6, 12)),
    "cnn": (lambda: cnn((1, 4, 8), [2], 5), torch.randn(6, 1, 4, 8)),
    "filters": (lambda: Filters((1, 8, 8), 3), torch.randn(6, 1, 8, 8)),
    "table": (lambda: TableNet(4, [3, 9], [5], 5, final_relu=False), torch.rand(6, 4)),
    "bag": (lambda: Bag(50, 4, [5], 5), torch.randint(0, 50, (6, 9), dtype=torch.int32)),
}
METHODS = [
    Dpzv(),
    Dpzv(directions="rademacher", num_directions=2),
    Cascaded(),
    Vafl(),
]
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch finds no CUDA device on this machine"
)


@pytest.fixture
def _meta(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(result: Tensor) -> Tensor:
        assert result.device.type == "meta"
        return torch.zeros(result.shape, dtype=result.dtype)

    monkeypatch.setattr(models, "to_processor", zeros)


def rounds(
    method: Dpzv | Cascaded | Vafl, module: nn.Module, inputs: Tensor, device: str
) -> Tensor:
    """Two rounds of a client and its optimiser's checkpoint between them; its parameters."""
    model = wrap(module, device)
    root, optimizer = Stream.from_seed(0), Sgd(0.01, momentum=0.9)
    side = ClientSide(model, optimizer, root.child("directions"), root.child("shared"), 0)
    client = method.client(side)
    for number in range(2):
        answer = client.ask(number, inputs)
        assert answer.device.type == "cpu"
        shape = method.reply_shape(len(inputs), answer.shape[-1])
        client.tell(number, inputs, torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape))
        kept = {key: value.cpu() for key, value in optimizer.state().items() if device != "meta"}
        optimizer.load(kept)
    assert model.parameters.device.type == device
    return model.parameters


@pytest.mark.usefixtures("_meta")
def test_a_client_trains_on_another_device() -> None:
    for name, method in product(MODULES, METHODS):
        make, inputs = MODULES[name]
        rounds(method, make(), inputs, "meta")


@pytest.mark.usefixtures("_meta")
def test_gradients_come_back() -> None:
    for name in MODULES:
        make, inputs = MODULES[name]
        model = wrap(make(), "meta")
        assert type(model) is TorchModel, name
        outputs, pullback = model.forward(Points(inputs))
        assert outputs.device.type == "cpu", name
        gradient = torch.ones_like(outputs)
        assert pullback(gradient).device.type == "meta", name
        own = pullback.record_gradients(gradient, slice(0, 6))
        assert own.total(torch.ones(6, dtype=torch.float64)).shape == model.parameters.shape, name
        if inputs.is_floating_point() and name != "table":
            assert pullback.inputs(gradient).shape == inputs.shape, name


@pytest.mark.usefixtures("_meta")
def test_large_models_are_shifted_there() -> None:
    module = nn.Sequential(nn.Linear(1100, 1000), nn.Tanh(), nn.Linear(1000, 2))
    assert sum(part.numel() for part in module.parameters()) > KEEP_UP_TO
    rounds(Dpzv(), module, torch.randn(3, 1100), "meta")


def test_functions_stay_on_the_processor() -> None:
    config = FunctionConfig(path="numpy:tanh", num_parameters=3)
    with pytest.raises(ConfigError, match=r"'cuda' but client\.model is a plain function"):
        client_model(config, (3,), Stream.from_seed(0), device="cuda")


@needs_cuda
def test_the_numbers_are_those_of_the_processor() -> None:
    for name, method in product(MODULES, METHODS):
        case = name, method
        make, inputs = MODULES[name]
        torch.manual_seed(0)
        module = make()
        torch.manual_seed(0)
        there = rounds(method, make(), inputs, "cuda").cpu()
        assert torch.allclose(there, rounds(method, module, inputs, "cpu"), rtol=1e-3, atol=1e-4), (
            case
        )


@needs_cuda
def test_first_parameters_do_not_depend_on_the_device() -> None:
    one, other = (
        client_model(MlpConfig(), (12,), Stream.from_seed(0), device=device).parameters.cpu()
        for device in ("cpu", "cuda")
    )
    assert torch.equal(one, other)
