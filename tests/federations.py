"""What `vertizo.testing.federations` has, and beside it twins of small networks by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.methods.base import ClientPair, ClientSide, Method
from vertizo.models.array import ArrayModel
from vertizo.models.base import Model
from vertizo.models.losses import Classification
from vertizo.models.optimizers import Gradient, Sgd
from vertizo.models.torch import wrap
from vertizo.party.server_model import NoUpdate, ServerModel, ServerSide
from vertizo.party.table import EmbeddingTable
from vertizo.privacy.plan import NoPrivacy
from vertizo.protocol.messages import Query, Reply
from vertizo.run.loop.federation import Federation
from vertizo.testing.codecs import back  # noqa: F401
from vertizo.testing.federations import (  # noqa: F401 - for those who import this module
    CLASSES,
    CODEC,
    COLUMNS,
    DIM,
    EMBEDDING_NOISE,
    GAUSSIAN,
    HARDLY_ANY,
    HIDDEN,
    PLANS,
    SMALL,
    Tape,
    ask,
    bits,
    build,
    client_holds,
    config,
    converse,
    copied,
    data,
    differences,
    encoded,
    go_on,
    query,
    ran,
    reply,
    restore_client,
    two_bits,
)

TEXT = {"checkpoint": "random", "vector": 8, "layers": 1, "heads": 2, "vocabulary": 20}
TEXTS: dict[str, Any] = {
    "client.model": {"name": "text", **TEXT, "outputs": 3},
    "client.optimizer.learning_rate": 1e-3,
}
"""Of clients whose records are texts."""
ADDITIVE: dict[str, Any] = {"server.model": {"name": "sum"}, "server.update": "none"}
ADDITIVE |= {"client.optimizer.learning_rate": 1.0, "method.num_directions": 5, "batch_size": 29}
"""For methods along tangents: all records in one batch, and whole steps."""


def charged(federation: Federation) -> Tensor:
    """What each client's queries were charged of each record, in noised numbers: [clients, D].

    For federations whose replies are all that carries noise.
    """
    releases = federation.releases
    spent = federation.server.side.plan.state()["ledger"]["charged"]
    assert not bool((spent % releases.cost).any())
    return spent // releases.cost * releases.per_query


def server_holds(federation: Federation) -> dict[str, Any]:
    """A copy of everything that the server keeps."""
    server = federation.server
    return copied({"party": server.state(), "parameters": server.side.model.parameters})


def restore_server(federation: Federation, held: Mapping[str, Any]) -> None:
    """Put back what `server_holds` returned."""
    held = copied(held)
    federation.server.load(held["party"])
    federation.server.side.model.parameters.copy_(held["parameters"])


def twin(parameters: Tensor, widths: list[int]) -> nn.Sequential:
    """Linear layers with ReLU between, in float64, of the given flat parameters."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.ReLU()] * bool(layers) + [nn.Linear(inputs, outputs, dtype=torch.float64)]
    module = nn.Sequential(*layers)
    nn.utils.vector_to_parameters(parameters.detach().double(), module.parameters())
    return module


def gradient_of(module: nn.Module) -> Tensor:
    """What autograd left at a module's parameters, as one vector."""
    return torch.cat([w.grad.reshape(-1) for w in module.parameters() if w.grad is not None])


def server_twin(federation: Federation) -> nn.Sequential:
    """The server's network as it is now, in float64."""
    side = federation.server.side
    return twin(side.model.parameters, [side.table.width, HIDDEN, CLASSES])


def joined(join: str, parts: list[Tensor]) -> Tensor:
    """The server's input of the clients' embeddings."""
    if join == "concat":
        return torch.cat(parts, 1)
    return torch.stack(parts).sum(0) / (len(parts) if join == "mean" else 1)


@dataclass
class Round:
    """What clients asked and were told, with their parameters of before, and the server's twin."""

    ids: Tensor
    pairs: list[tuple[Query, Reply]]
    before: list[Tensor]
    server: nn.Sequential
    parts: list[Tensor]
    """Every client's rows of the table, as the round left them, float64."""
    labels: Tensor
    join: str

    def losses(self, client: int = 0, embeddings: Tensor | None = None) -> Tensor:
        """Of every record before the server stepped, with these embeddings of one client."""
        parts = [*self.parts]
        if embeddings is not None:
            parts[client] = embeddings.double()
        return cross_entropy(self.server(joined(self.join, parts)), self.labels, reduction="none")


def rounds(
    federation: Federation,
    timing: str,
    *,
    stored: Callable[[Tensor], Tensor] = lambda embeddings: embeddings[0],
    slack: float = 0.0,
    join: str = "concat",
    momentum: float | None = 0.0,
) -> Iterator[Round]:
    """Ten rounds, short batches included, in which table and server do what autograd says.

    ``stored`` is what the table keeps of a query's embeddings, up to ``slack``. The server's
    momentum is None where it does not step by its gradient: nothing is held against its step then.
    """
    side, labels = federation.server.side, federation.data.labels["train"]
    velocity = torch.zeros_like(side.model.parameters, dtype=torch.float64)
    order, sizes = [0, 1, 2] if timing == "synchronous" else [2], set()
    for number in range(10):
        server = server_twin(federation)
        frames = [ask(federation, client) for client in order]
        queries = [query(frame) for frame in frames]
        ids, table = queries[0].ids, side.table.values.clone()
        sizes.add(ids.numel())
        for asked in queries:
            table[ids, DIM * asked.client : DIM * (asked.client + 1)] = stored(asked.embeddings)
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        assert [client for client, _ in answers] == order
        others = torch.ones(len(table), dtype=torch.bool).index_fill(0, ids, False)
        assert torch.equal(side.table.values[others], table[others])
        assert torch.allclose(side.table.values, table, rtol=10 * slack, atol=slack)
        before = [model.parameters.clone() for model in federation.models]
        for client, answer in answers:
            federation.clients[client].tell(answer)
        pairs = [*zip(queries, [reply(answer) for _, answer in answers], strict=True)]
        assert all(asked.number == told.number for asked, told in pairs)
        parts = [part.double() for part in table[ids].split(DIM, 1)]
        made = Round(ids, pairs, before, server, parts, labels[ids], join)
        if momentum is not None:
            (made.losses().sum() / SMALL["batch_size"]).backward()
            velocity = momentum * velocity + gradient_of(server)
            stepped = flat(server) - 0.1 * velocity
            assert torch.allclose(side.model.parameters.double(), stepped, atol=1e-6)
        yield made
        if timing == "asynchronous":
            order = [(number * 2) % 3]
    assert sizes == {8, 29 % 8}


AXES = 7
"""Parameters of a `bare` client."""
NORMS = {"sphere": 1.0, "coordinate": 1.0} | dict.fromkeys(
    ("scaled-sphere", "rademacher"), math.sqrt(AXES)
)
FACTORS = {"sphere": 7.0, "coordinate": 7.0}


def bare(method: Method, momentum: float) -> tuple[ClientPair, ArrayModel]:
    """A client whose embedding is its parameters: perturbations can be read off."""
    model = ArrayModel(lambda w, x: np.repeat(w[None], len(x), 0), torch.linspace(-1, 1, AXES))
    own, shared = Stream.from_seed(5), Stream.from_seed(9)
    return method.client(ClientSide(model, Sgd(0.1, momentum), own, shared)), model


def side_of(model: Model, seed: int = 0) -> ClientSide:
    """Of a client that takes whole steps."""
    stream = Stream.from_seed(seed)
    return ClientSide(model, Sgd(1.0, 0.0), stream, stream)


class GradientRows:
    """An optimiser that keeps every gradient and moves nothing."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def step(self, parameters: Tensor, gradient: Gradient) -> None:
        """One gradient more."""
        row = torch.zeros(parameters.numel(), dtype=torch.float64)
        gradient.add_to(row, 1.0)
        self.rows.append(row)

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Nothing."""


@dataclass
class Halves:
    """A linear client and a linear server of six records, without parties between them."""

    client: ClientPair
    side: ServerSide
    parameters: Tensor
    """The client's."""
    features: Tensor
    gradient: Tensor
    """Of the loss of all records to the client's parameters, by autograd."""

    def round(self, number: int) -> Query:
        """All records in one query, which is answered, and its answer told."""
        asked = Query(0, number, torch.arange(6), self.client.ask(number, self.features))
        (answer,) = self.side.answer([asked], number + 1)
        self.client.tell(number, self.features, answer.values)
        return asked


def halves(
    method: Method, optimizer: Any = None, *, private: int = 1, mine: int = 2, theirs: int = 2
) -> Halves:
    """Seeds: of the client's own stream, and of the shared one as either side has it."""
    torch.manual_seed(3)
    features, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 1, 0, 2])
    client, server = nn.Linear(3, 2), nn.Linear(2, 3)
    cross_entropy(server(client(features)), labels).backward()
    model, shared = wrap(client), Stream.from_seed(mine)
    own = ClientSide(model, optimizer or Sgd(0.1), Stream.from_seed(private), shared)
    side = ServerSide(
        method=method,
        model=ServerModel(wrap(server), Classification(3)),
        table=EmbeddingTable(6, [2]),
        labels=labels,
        plan=NoPrivacy(6),
        update=NoUpdate(),
        shared=[Stream.from_seed(theirs)],
    )
    return Halves(method.client(own), side, model.parameters, features, gradient_of(client))


def estimates(method: Method, rounds: int) -> tuple[Tensor, Tensor]:
    """One client's updates on one batch in many rounds, a row each, and autograd's gradient."""
    kept = GradientRows()
    both = halves(method, kept)
    for number in range(rounds):
        both.round(number)
    return torch.stack(kept.rows), both.gradient


def estimated_gradient(method: Method, rounds: int) -> tuple[Tensor, Tensor]:
    """The mean of `estimates`, and autograd's gradient."""
    rows, gradient = estimates(method, rounds)
    return rows.mean(0).float(), gradient


@dataclass
class Twins:
    """A float64 copy of every party's network, trained by autograd and PyTorch's own optimiser.

    For federations of linear layers at clients and `HIDDEN` units at the server.
    """

    clients: list[nn.Sequential]
    server: nn.Sequential
    momentum: float
    data: VerticalData
    rate: float
    """Of the clients."""

    def __post_init__(self) -> None:
        sgd = partial(torch.optim.SGD, momentum=self.momentum)
        self._optimizers = [sgd(client.parameters(), lr=self.rate) for client in self.clients]
        self._server_optimizer = sgd(self.server.parameters(), lr=0.1)

    def round(
        self,
        ids: Tensor,
        steps: list[int],
        server_steps: int,
        as_sent: Callable[[Tensor], Tensor] = Tensor.clone,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """One synchronous round: what each client sends, and the gradient each is told."""
        labels, nominal = self.data.labels["train"][ids], SMALL["batch_size"]
        inputs = [own["train"][ids].double() for own in self.data.features]
        with torch.no_grad():
            sent = [as_sent(f(x)) for f, x in zip(self.clients, inputs, strict=True)]
        leaves = [h.clone().requires_grad_(True) for h in sent]
        gradients: list[Tensor] = []
        for _ in range(server_steps):
            self._server_optimizer.zero_grad()
            logits = self.server(torch.cat(leaves, 1))
            (cross_entropy(logits, labels, reduction="sum") / nominal).backward()
            if not gradients:
                gradients = [leaf.grad.clone() for leaf in leaves if leaf.grad is not None]
            self._server_optimizer.step()
        parties = zip(self.clients, self._optimizers, inputs, gradients, steps, strict=True)
        for client, optimizer, own, gradient, count in parties:
            for _ in range(count):
                optimizer.zero_grad()
                client(own).backward(gradient)
                optimizer.step()
        return sent, gradients


def twins(
    federation: Federation, momentum: float = 0.0, hidden: Sequence[int] = (), rate: float = 0.05
) -> Twins:
    """Copies of all parties as they are now; ``hidden`` units are the clients'."""
    widths = [federation.server.side.table.width, HIDDEN, CLASSES]
    return Twins(
        [twin(model.parameters, [COLUMNS, *hidden, DIM]) for model in federation.models],
        twin(federation.server.side.model.parameters, widths),
        momentum,
        federation.data,
        rate,
    )


def agree(federation: Federation, copies: Twins, atol: float = 2e-6) -> bool:
    """Whether all parties are where their copies are, up to rounding."""
    pairs = [*zip(federation.models, copies.clients, strict=True)]
    return all(
        torch.allclose(model.parameters.double(), flat(copy), rtol=1e-4, atol=atol)
        for model, copy in [*pairs, (federation.server.side.model, copies.server)]
    )


def flat(module: nn.Module) -> Tensor:
    """A module's parameters as one vector."""
    return nn.utils.parameters_to_vector(module.parameters()).detach()
