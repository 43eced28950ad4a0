"""VAFL against autograd through the whole network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.rows import each
from torch import Tensor, nn

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.methods.base import ClientSide
from vertizo.methods.vafl import Vafl
from vertizo.models import networks
from vertizo.models.array import ArrayModel
from vertizo.models.losses import Classification
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import wrap
from vertizo.party.server_model import NoUpdate, ServerModel, ServerSide
from vertizo.party.table import EmbeddingTable
from vertizo.privacy.plan import NoPrivacy
from vertizo.protocol.messages import Query
from vertizo.run.federation import Federation

PARTIES, NOMINAL = 3, 8
JOINS = ("concat", "sum", "mean")
CLIENTS: dict[str, dict[str, Any]] = {
    "linear": {"name": "mlp", "outputs": 3},
    "two layers": {"name": "mlp", "hidden": [6], "outputs": 3},
    "final ReLU": {"name": "mlp", "hidden": [6], "outputs": 3, "final_relu": True},
    "convolution": {"name": "cnn", "channels": [2], "outputs": 3},
}


def data_for(federations: SimpleNamespace, client: str) -> VerticalData:
    return federations.data(sides=(1, 4, 4) if client == "convolution" else ())


def client_twins(federation: Federation, client: str) -> list[nn.Module]:
    """The clients' networks in float64, of the federation's parameters."""
    twins: list[nn.Module] = []
    for model, shape in zip(federation.models, map(federation.data.shape, range(3)), strict=True):
        if client == "convolution":
            module = networks.cnn(shape, [2], 3)
        else:
            hidden = CLIENTS[client].get("hidden", [])
            relu = CLIENTS[client].get("final_relu", False)
            module = networks.mlp(shape[0], hidden, 3, final_relu=relu)
        nn.utils.vector_to_parameters(model.parameters.double(), module.double().parameters())
        twins.append(module)
    return twins


def join(name: str, parts: list[Tensor]) -> Tensor:
    if name == "concat":
        return torch.cat(parts, 1)
    return torch.stack(parts).sum(0) / (len(parts) if name == "mean" else 1)


def server_twin(federations: SimpleNamespace, federation: Federation) -> nn.Sequential:
    widths = [federation.server.side.table.width, federations.HIDDEN, federations.CLASSES]
    return federations.twin(federation.server.side.model.parameters, widths)


@each("client", CLIENTS)
@each("name", JOINS)
def test_asynchronous_rounds_by_hand(federations: SimpleNamespace, client: str, name: str) -> None:
    """The reply is autograd's ∂L/∂h; the client ends where end-to-end back-propagation does."""
    data = data_for(federations, client)
    changes = {"client.model": CLIENTS[client], "server.join": name}
    federation = federations.build("vafl", changes=changes, of=data)
    side, labels, dim = federation.server.side, data.labels["train"], federations.DIM
    for m in (0, 2, 1, 1, 0, 0, 0, 2):
        server, own = server_twin(federations, federation), client_twins(federation, client)[m]
        frame = federations.ask(federation, m)
        query = federations.query(frame)
        ids = query.ids
        parts = [part.double() for part in side.table.values[ids].split(dim, 1)]
        parts[m] = own(data.features[m]["train"][ids].double())
        parts[m].retain_grad()
        assert query.embeddings.shape == (1, ids.numel(), dim)
        assert torch.allclose(query.embeddings[0].double(), parts[m].detach(), atol=1e-5)
        loss = F.cross_entropy(server(join(name, parts)), labels[ids], reduction="sum") / NOMINAL
        loss.backward()

        ((_, answer),) = federation.server.receive(frame)
        reply = federations.reply(answer)
        assert torch.allclose(reply.values.double(), parts[m].grad, atol=1e-6)
        stored = side.table.values[ids, dim * m : dim * (m + 1)]
        assert torch.equal(stored, query.embeddings[0])
        gradient = torch.cat([w.grad.reshape(-1) for w in server.parameters()])
        stepped = federations.flat(server) - 0.1 * gradient
        assert torch.allclose(side.model.parameters.double(), stepped, atol=1e-6)

        federation.clients[m].tell(answer)
        gradient = torch.cat([w.grad.reshape(-1) for w in own.parameters()])
        moved = federations.flat(own) - 0.05 * gradient
        assert torch.allclose(federation.models[m].parameters.double(), moved, atol=1e-6)


@each("client", CLIENTS)
@each("momentum", [0.0, 0.9])
def test_synchronous_rounds_are_centralised_sgd(
    federations: SimpleNamespace, client: str, momentum: float
) -> None:
    """PyTorch's own SGD on the joint network, over more than two epochs with short batches."""
    data = data_for(federations, client)
    changes = {
        "epochs": 3,
        "client.model": CLIENTS[client],
        "client.optimizer.momentum": momentum,
        "server.optimizer.momentum": momentum,
    }
    federation = federations.build("vafl", "synchronous", changes, of=data)
    server, clients = server_twin(federations, federation), client_twins(federation, client)
    groups = [{"params": list(module.parameters()), "lr": 0.05} for module in clients]
    groups.append({"params": list(server.parameters()), "lr": 0.1})
    optimizer = torch.optim.SGD(groups, momentum=momentum)
    federation.start(upload_table=False)
    rounds = 0
    while True:
        ids = federations.query(federations.ask(federation, 0)).ids
        optimizer.zero_grad()
        parts = [
            module(own["train"][ids].double())
            for module, own in zip(clients, data.features, strict=True)
        ]
        losses = F.cross_entropy(server(torch.cat(parts, 1)), data.labels["train"][ids])
        (losses * ids.numel() / NOMINAL).backward()
        optimizer.step()
        if not federation.simulator.step():
            break
        rounds += 1
        pairs = [*zip(federation.models, clients, strict=True)]
        for model, module in [*pairs, (federation.server.side.model, server)]:
            expected = federations.flat(module)
            assert torch.allclose(model.parameters.double(), expected, rtol=1e-4, atol=2e-6)
        if rounds == 12:
            break
    assert rounds == 3 * 4


def test_a_model_without_gradients_is_refused_before_training(
    federations: SimpleNamespace,
) -> None:
    function = {"name": "function", "path": "numpy:outer", "num_parameters": 3}
    with pytest.raises(ConfigError, match=r"'dpzv', 'cascaded' or 'zoo-vfl'"):
        federations.build("vafl", changes={"client.model": function})
    with pytest.raises(ConfigError, match="vafl"):
        parse({"method": {"name": "vafl"}, "client": {"model": function}})
    model = ArrayModel(lambda w, x: x * w, torch.zeros(4))
    with pytest.raises(ConfigError, match="ArrayModel"):
        Vafl().client(ClientSide(model, Sgd(0.1), Stream.from_seed(0), Stream.from_seed(9)))


MODULE = """
import torch
from torch import nn

class Threshold(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return (x > self.cut).float()
"""


def test_a_module_without_gradients_is_refused_before_training(
    federations: SimpleNamespace, tmp_path: Any
) -> None:
    """An nn.Module need not be differentiable either; DPZV takes it, VAFL must say no."""
    (tmp_path / "cut.py").write_text(MODULE)
    changes = {"client.model": {"name": "module", "path": f"{tmp_path / 'cut.py'}:Threshold"}}
    federations.ran("dpzv", changes=changes, rounds=3)
    with pytest.raises(ConfigError):
        federations.build("vafl", changes=changes)


def test_the_reply_of_a_small_example() -> None:
    """One record, one client, an identity for a server: softmax minus one-hot, over B."""
    identity = nn.Linear(2, 2, bias=False)
    nn.init.eye_(identity.weight)
    side = ServerSide(
        method=Vafl(),
        model=ServerModel(wrap(identity), Classification(2)),
        table=EmbeddingTable(3, [2]),
        labels=torch.tensor([0, 1, 0]),
        plan=NoPrivacy(4),
        update=NoUpdate(),
        shared=[Stream.from_seed(9)],
    )
    query = Query(0, 0, torch.tensor([1]), torch.tensor([[[0.0, 0.0]]]))
    (reply,) = side.answer([query], 1)
    assert reply.values.tolist() == [[0.5 / 4, -0.5 / 4]]
