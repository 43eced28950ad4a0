"""The first-order methods against autograd and PyTorch's own optimiser, quantiser included."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from tests import federations
from tests.rows import each, pairs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.methods.base import ClientSide
from vertizo.methods.first_order import FlexVfl, Vafl
from vertizo.models.architectures import networks
from vertizo.models.array import ArrayModel
from vertizo.models.optimizers import Sgd
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.uniform import Uniform
from vertizo.protocol.messages import Query
from vertizo.run.loop.federation import Federation

NOMINAL = 8
CLIENTS: dict[str, dict[str, Any]] = {
    "linear": {"name": "mlp", "outputs": 3},
    "two layers": {"name": "mlp", "hidden": [6], "outputs": 3},
    "final ReLU": {"name": "mlp", "hidden": [6], "outputs": 3, "final_relu": True},
    "convolution": {"name": "cnn", "channels": [2], "outputs": 3},
}


def quantised(bits: int, h: Tensor) -> Tensor:
    """2^bits levels from the lowest number of a batch to the highest."""
    low, high = h.min(), h.max()
    step = (high - low) / (2**bits - 1)
    return low + ((h - low) / step).round() * step


def momenta(momentum: float) -> dict[str, float]:
    return {f"{side}.optimizer.momentum": momentum for side in ("client", "server")}


Local = tuple[str, dict[str, Any], int | None, list[int], int]
LOCAL: list[Local] = [
    ("split", {}, None, [1] * 3, 1),
    *(("fedbcd", {"local_steps": q}, None, [q] * 3, q) for q in (1, 2, 5)),
    *(("flex-vfl", {"local_steps": q, "server_local_steps": q_0}, None, q_m, q_0)
      for q, q_m, q_0 in (([1, 2, 4], [1, 2, 4], 3), ([4, 1, 1], [4, 1, 1], 1), ([3], [3] * 3, 2))),
    *(("compressed-vfl", {"local_steps": q}, bits, [q] * 3, q)
      for bits, q in ((8, 1), (8, 3), (2, 1), (2, 4))),
]  # fmt: skip
"""Method, its options, bits of its codec, steps of each client and of the server."""
MOMENTA = (0.0, 0.5, 0.9)


@each("local, momentum", [*product(LOCAL, MOMENTA)], gate=pairs(LOCAL, MOMENTA))
def test_rounds_in_step_by_hand(local: Local, momentum: float) -> None:
    """Every party makes its steps on one exchange: the others' part of it stays as it was.

    The server sees quantised embeddings; each client back-propagates through its own.
    """
    method, options, bits, steps, server_steps = local
    changes = {f"method.{key}": value for key, value in options.items()} | momenta(momentum)
    if bits is not None:
        changes["codecs.up"] = {"name": "uniform", "bits": bits}
    codec = NoCompression() if bits is None else Uniform(bits=bits)
    federation = federations.build(method, changes=changes)
    copies, sizes = federations.twins(federation, momentum), set()
    for _ in range(8 if bits is None else 4):
        frames = [federations.ask(federation, client) for client in range(3)]
        queries = [federations.query(frame, codec) for frame in frames]
        ids = queries[0].ids
        sizes.add(ids.numel())
        inputs = [own["train"][ids].double() for own in federation.data.features]
        plain = [f(x).detach() for f, x in zip(copies.clients, inputs, strict=True)]
        as_sent = Tensor.clone if bits is None else lambda h: quantised(bits, h)
        sent, gradients = copies.round(ids, steps, server_steps, as_sent)
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        for client, answer in answers:
            seen, told = queries[client].embeddings, federations.reply(answer).values
            assert seen.shape == (1, ids.numel(), federations.DIM)
            assert torch.allclose(seen[0].double(), sent[client], atol=1e-5)
            assert torch.allclose(seen[0].double(), plain[client], atol=1e-4) == (bits is None)
            assert torch.allclose(told.double(), gradients[client], atol=1e-5)
            federation.clients[client].tell(answer)
        stored = federation.server.side.table.values[ids]
        assert torch.allclose(stored.double(), torch.cat(sent, 1), atol=1e-5)
        several = max(*steps, server_steps) > 1
        slack = 2e-5 if bits else 1e-5 if several else 2e-6
        assert federations.agree(federation, copies, atol=slack)
    assert bits is not None or sizes == {8, 29 % 8}


@each("method, options", [("fedbcd", {}), ("flex-vfl", {"local_steps": [1, 2, 4]})])
def test_a_later_local_step_goes_back_through_the_weights_of_the_step_before(
    method: str, options: dict[str, Any]
) -> None:
    """Clients bend, and step far: with the first step's back-propagation they end elsewhere."""
    rate, hidden = 2.0, [6]
    changes = {f"method.{key}": value for key, value in options.items()}
    changes |= {"client.model": {"name": "mlp", "hidden": hidden, "outputs": federations.DIM}}
    changes |= {"client.optimizer.learning_rate": rate}
    federation = federations.build(method, changes=changes)
    copies = federations.twins(federation, hidden=hidden, rate=rate)
    start = [model.parameters.clone() for model in federation.models]
    for _ in range(2):
        frames = [federations.ask(federation, client) for client in range(3)]
        ids, steps = federations.query(frames[0]).ids, options.get("local_steps", [5] * 3)
        copies.round(ids, steps, federation.server.side.method.server_steps)
        for frame in frames:
            for client, answer in federation.server.receive(frame):
                federation.clients[client].tell(answer)
    assert federations.agree(federation, copies, atol=1e-4)
    moved = [m.parameters - before for m, before in zip(federation.models, start, strict=True)]
    assert min(float(each.abs().max()) for each in moved) > 0.1


PLAIN = {"codecs.up.name": "none"}


@each(
    "one, other",
    [
        (("split", None, {}), ("vafl", "synchronous", {})),
        (("split", None, {}), ("fedbcd", None, {"method.local_steps": 1})),
        (("fedbcd", None, {}), ("fedbcd", None, {"method.local_steps": 5})),
        (
            ("flex-vfl", None, {"method.local_steps": [3] * 3, "method.server_local_steps": 3}),
            ("fedbcd", None, {"method.local_steps": 3}),
        ),
        *(
            (("compressed-vfl", None, {**PLAIN, **local}), ("fedbcd", None, local))
            for local in ({"method.local_steps": 1}, {"method.local_steps": 3})
        ),
    ],
)
def test_one_method_is_another_with_these_options(one: Any, other: Any) -> None:
    """The same frames and the same weights, bit by bit."""
    (first, tape), (second, again) = federations.ran(*one), federations.ran(*other)
    assert tape.seen == again.seen
    assert not federations.differences(first.parameters, second.parameters)


def test_local_steps_cost_no_bytes() -> None:
    sizes = []
    for steps in (1, 7):
        _, tape = federations.ran("fedbcd", changes={"method.local_steps": steps})
        sizes.append([(way, client, len(frame)) for _, way, client, frame in tape.seen])
    assert sizes[0] == sizes[1]


def test_embeddings_take_a_byte_a_number_and_gradients_four() -> None:
    settings = federations.config("compressed-vfl")
    assert settings.codecs.up == Uniform(bits=8)
    assert settings.codecs.down == NoCompression()
    assert settings.method.local_steps == 1
    _, tape = federations.ran("compressed-vfl")
    _, plain = federations.ran("compressed-vfl", changes=PLAIN)
    pairs = zip(tape.messages(), tape.seen, plain.seen, strict=True)
    for (_, way, _, message), (*_, frame), (*_, other) in pairs:
        if way == "down":
            assert len(frame) == len(other)
        else:
            assert isinstance(message, Query)
            numbers = message.embeddings.numel()
            saved = 4 * numbers - (numbers + 8)  # lowest and highest beside the levels
            assert abs(len(other) - len(frame) - saved) <= 2  # MessagePack's own lengths


def test_steps_of_flex_vfl_fit_the_clients_or_are_refused() -> None:
    FlexVfl(local_steps=(1, 2, 3)).check(3)
    FlexVfl(local_steps=(2,)).check(7)
    for numbers in ([1, 2], [1, 2, 3, 4]):
        said = f"method.local_steps has {len(numbers)} numbers for 3 clients; give one for each"
        with pytest.raises(ConfigError, match=said):
            federations.build("flex-vfl", changes={"method.local_steps": numbers})
    for numbers in ([], [0, 1, 1], [2, -1, 2]):
        with pytest.raises(ConfigError, match=r"method\.local_steps"):
            federations.config("flex-vfl", changes={"method.local_steps": numbers})


def test_nobody_is_answered_before_all_have_asked() -> None:
    federation = federations.build("split")
    before = federation.server.side.model.parameters.clone()
    for client in (2, 0):
        assert federation.server.receive(federations.ask(federation, client)) == []
    assert torch.equal(federation.server.side.model.parameters, before)
    answers = federation.server.receive(federations.ask(federation, 1))
    assert [client for client, _ in answers] == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"'asynchronous' but method 'split' is synchronous"):
        federations.config("split", "asynchronous")


def data_for(client: str) -> VerticalData:
    return federations.data(sides=(1, 4, 4) if client == "convolution" else ())


def client_twins(federation: Federation, client: str) -> list[nn.Module]:
    """The clients' networks in float64, of the federation's parameters."""
    twins: list[nn.Module] = []
    for model, shape in zip(federation.models, map(federation.data.shape, range(3)), strict=True):
        if client == "convolution":
            module = networks.cnn(shape, [2], 3)
        else:
            own = CLIENTS[client]
            relu = own.get("final_relu", False)
            module = networks.mlp(shape[0], own.get("hidden", []), 3, final_relu=relu)
        nn.utils.vector_to_parameters(model.parameters.double(), module.double().parameters())
        twins.append(module)
    return twins


@each("client", CLIENTS)
@each("join", ("concat", "sum", "mean"))
def test_asynchronous_rounds_by_hand(client: str, join: str) -> None:
    """The reply is autograd's ∂L/∂h; the client ends where end-to-end back-propagation does."""
    data = data_for(client)
    changes = {"client.model": CLIENTS[client], "server.join": join}
    federation = federations.build("vafl", changes=changes, of=data)
    side, dim = federation.server.side, federations.DIM
    for m in (0, 2, 1, 1, 0, 0, 0, 2):
        server, own = federations.server_twin(federation), client_twins(federation, client)[m]
        frame = federations.ask(federation, m)
        query = federations.query(frame)
        ids = query.ids
        parts = [part.double() for part in side.table.values[ids].split(dim, 1)]
        parts[m] = own(data.features[m]["train"][ids].double())
        parts[m].retain_grad()
        assert query.embeddings.shape == (1, ids.numel(), dim)
        assert torch.allclose(query.embeddings[0].double(), parts[m].detach(), atol=1e-5)
        logits, labels = server(federations.joined(join, parts)), data.labels["train"][ids]
        (cross_entropy(logits, labels, reduction="sum") / NOMINAL).backward()

        ((_, answer),) = federation.server.receive(frame)
        reply = federations.reply(answer)
        assert torch.allclose(reply.values.double(), parts[m].grad, atol=1e-6)
        stored = side.table.values[ids, dim * m : dim * (m + 1)]
        assert torch.equal(stored, query.embeddings[0])
        federation.clients[m].tell(answer)
        for model, module, rate in ((side.model, server, 0.1), (federation.models[m], own, 0.05)):
            moved = federations.flat(module) - rate * federations.gradient_of(module)
            assert torch.allclose(model.parameters.double(), moved, atol=1e-6)


@each("client", CLIENTS)
@each("momentum", [0.0, 0.9])
def test_synchronous_rounds_are_centralised_sgd(client: str, momentum: float) -> None:
    """PyTorch's own SGD on the joint network, over more than two epochs with short batches."""
    data = data_for(client)
    changes = {"epochs": 3, "client.model": CLIENTS[client], **momenta(momentum)}
    federation = federations.build("vafl", "synchronous", changes, of=data)
    server, clients = federations.server_twin(federation), client_twins(federation, client)
    groups = [{"params": list(module.parameters()), "lr": 0.05} for module in clients]
    groups.append({"params": list(server.parameters()), "lr": 0.1})
    optimizer = torch.optim.SGD(groups, momentum=momentum)
    federation.start(upload_table=False)
    for _ in range(3 * 4):
        ids = federations.query(federations.ask(federation, 0)).ids
        optimizer.zero_grad()
        pairs = zip(clients, data.features, strict=True)
        parts = [module(own["train"][ids].double()) for module, own in pairs]
        losses = cross_entropy(server(torch.cat(parts, 1)), data.labels["train"][ids])
        (losses * ids.numel() / NOMINAL).backward()
        optimizer.step()
        assert federation.simulator.step()
        models = [*federation.models, federation.server.side.model]
        for model, module in zip(models, [*clients, server], strict=True):
            expected = federations.flat(module)
            assert torch.allclose(model.parameters.double(), expected, rtol=1e-4, atol=2e-6)


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


def test_a_model_without_gradients_is_refused_before_training(tmp_path: Any) -> None:
    """An nn.Module need not be differentiable either; DPZV takes it, VAFL must say no."""
    function = {"name": "function", "path": "numpy:outer", "num_parameters": 3}
    with pytest.raises(ConfigError, match=r"'dpzv', 'cascaded' or 'zoo-vfl'"):
        federations.build("vafl", changes={"client.model": function})
    with pytest.raises(ConfigError, match="vafl"):
        parse({"method": {"name": "vafl"}, "client": {"model": function}})
    model = ArrayModel(lambda w, x: x * w, torch.zeros(4))
    with pytest.raises(ConfigError, match="ArrayModel"):
        Vafl().client(ClientSide(model, Sgd(0.1), Stream.from_seed(0), Stream.from_seed(9)))
    (tmp_path / "cut.py").write_text(MODULE)
    changes = {"client.model": {"name": "module", "path": f"{tmp_path / 'cut.py'}:Threshold"}}
    federations.ran("dpzv", changes=changes, rounds=3)
    with pytest.raises(ConfigError):
        federations.build("vafl", changes=changes)
