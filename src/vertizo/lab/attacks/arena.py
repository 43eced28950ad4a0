"""Train a federation to be attacked, and build the adversaries from what they saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.core import arrays
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks.adversaries import (
    CuriousClient,
    CuriousServer,
    Eavesdropper,
    Public,
    ReleasedModel,
)
from vertizo.lab.attacks.malicious_clients import Intruder
from vertizo.lab.attacks.scores import Promise
from vertizo.lab.attacks.transcript import Exchange, Transcript, exchanges
from vertizo.methods.base import ClientPair
from vertizo.models.base import Model
from vertizo.party.batches import Batches
from vertizo.party.client import ClientParty
from vertizo.protocol import wire
from vertizo.protocol.messages import Query
from vertizo.run.build.data_defaults import complete
from vertizo.run.build.models import client_model
from vertizo.run.loop.federation import Federation, build
from vertizo.run.loop.simulator import Way
from vertizo.run.loop.training import Training

CURIOUS = 0
"""Index of the attacking client, in attacks by a client."""


@dataclass
class Watched:
    """The server's state at the curious client's queries, by query number."""

    parameters: dict[int, Tensor] = field(default_factory=dict)
    """Server parameters w_0 [d_0] when the query arrived."""
    rows: dict[int, Tensor] = field(default_factory=dict)
    """Rows of the embedding table behind the answer, [batch, Σ d_h], for scoring."""

    def note(self, config: ExperimentConfig, there: Federation, way: Way, most: int | None) -> None:
        """Record the server's parameters as a query arrives, and its table rows once answered.

        Only the last ``most`` queries are kept; all of them if None.
        """
        party, side = there.clients[CURIOUS], there.server.side
        number = party.answered
        if way == "up":
            self.parameters[number] = side.model.parameters.to("cpu", copy=True)
            if most is not None:
                for kept in (self.parameters, self.rows):
                    for old in [n for n in kept if n <= number - most]:
                        del kept[old]
        elif number in self.parameters:  # else it is the announcement of the next round
            message = wire.decode(party.ask(), config.codecs.up)  # the open query, once more
            assert isinstance(message, Query)
            self.rows[number] = arrays.rows(side.table.values, message.ids).cpu()


@dataclass
class Arena:
    """A trained federation and the frames that were recorded."""

    config: ExperimentConfig
    data: VerticalData
    federation: Federation
    transcript: Transcript
    watched: Watched
    """The server's state at the curious client's last queries; empty unless asked for."""

    @property
    def promise(self) -> Promise | None:
        """The run's guarantee for labels, exact or simulated; None without one."""
        statement = self.federation.statement()
        if not statement.is_bounded or statement.label_advantage is None:
            return None
        # Secret steps have no equivalent μ, and the law of private labels is not that of a reply.
        mechanism = self.config.privacy.mechanism
        mu = statement.mu if statement.secret_steps is None and mechanism == "gaussian" else None
        return Promise(statement.label_advantage, mu, mechanism == "teacher")

    def public(self) -> Public:
        """Return what every member knows."""
        return public(self.config, self.data, self.federation)

    def _exchanges(self, client: int | None = None) -> list[Exchange]:
        return exchanges(self.transcript, self.config, self.data.records, client)

    def eavesdropper(self) -> Eavesdropper:
        """Build the adversary that reads the frames of all clients."""
        return Eavesdropper(self.public(), self._exchanges())

    def client(self, index: int = CURIOUS) -> CuriousClient:
        """Build the adversary that is one of the clients."""
        return CuriousClient(
            public=self.public(),
            index=index,
            features=self.data.features[index]["train"],
            exchanges=self._exchanges(index),
            model=self.federation.models[index],
            shared=Stream.from_seed(self.config.seed).child("shared", index),
        )

    def server(self, known: Mapping[int, Tensor]) -> CuriousServer:
        """Build the curious server; ``known`` are the record IDs it knows at each client."""
        return CuriousServer(
            public=self.public(),
            exchanges=self._exchanges(),
            labels=self.data.labels["train"],
            known=known,
            known_features={m: self.columns(m)[ids] for m, ids in known.items()},
        )

    def fresh(self, client: int, stream: Stream) -> Model:
        """Build a model of the client's architecture, with initial parameters from ``stream``."""
        shape, cardinalities = self.data.shape(client), self.data.cardinalities
        codes = cardinalities[client] if cardinalities else ()
        return client_model(
            self.config.of_party(self.data.parties[client]).client.model, shape, stream, codes
        )

    def columns(self, client: int) -> Tensor:
        """Return a client's training features as float32 rows, [D, columns]."""
        return self.data.features[client]["train"].flatten(1).to(torch.float32)

    def released(self, population: Tensor) -> ReleasedModel:
        """Build the adversary that has the trained model, and the test records ``population``."""
        features = [own["test"][population] for own in self.data.features]
        return ReleasedModel(self.logits, features, self.data.labels["test"][population])

    def logits(self, features: Sequence[Tensor]) -> Tensor:
        """Compute the joint model's logits [rows, classes] from all parties' features."""
        parts = [m(x) for m, x in zip(self.federation.models, features, strict=True)]
        side = self.federation.server.side
        return side.model.logits(side.table.combine(torch.cat(parts, 1))).cpu()


def public(config: ExperimentConfig, data: VerticalData, federation: Federation) -> Public:
    """Collect what every member knows of a configured federation."""
    noised, told = config.privacy.mechanism == "gaussian", federation.statement()
    return Public(
        method=config.method,
        batch_size=config.batch_size,
        records=data.records,
        outputs=data.task.outputs,
        dims=tuple(federation.server.side.table.dims),
        server_model=config.server.model,
        join=config.server.join,
        embedding_bound=config.server.embedding_bound,
        clip=config.privacy.clip if noised else None,
        noise_std=told.noise_std if noised else None,
    )


def train(
    config: ExperimentConfig,
    data: VerticalData,
    *,
    intruder: Callable[[Public, Batches], Intruder] | None = None,
    latest: int | None = None,
    watch_server: bool = False,
) -> Arena:
    """Train a federation to the end, in memory, with every frame recorded.

    Args:
        config, data: as for `Experiment`, whose errors are raised.
        intruder: makes the client that replaces client `CURIOUS`, from what is public and that
            client's batches; None for honest clients only.
        latest: number of queries kept of each client, the last ones; None for all.
        watch_server: whether to record the server's state at the queries of client `CURIOUS`.
    """
    torch.set_num_threads(config.threads)
    codecs = config.codecs.model_copy(update={"ids": "sent"})  # no secret either way, and readable
    config = complete(config.model_copy(update={"codecs": codecs}), data)
    transcript = Transcript(None if config.codecs.feedback in ("up", "both") else latest)
    watched = Watched()
    federation: Federation

    def observe(time: float, way: Way, client: int, frame: bytes) -> None:
        transcript(time, way, client, frame)
        if watch_server and client == CURIOUS:
            watched.note(config, federation, way, latest)

    federation = build(config, data, observer=observe)
    if intruder is not None:
        known, replaced = public(config, data, federation), federation.clients[CURIOUS]
        sends = intruder(known, replaced.batches)
        federation.clients[CURIOUS] = ClientParty(
            index=CURIOUS,
            pair=ClientPair(sends.ask, sends.tell),
            features=data.features[CURIOUS],
            embed=federation.models[CURIOUS],
            batches=sends.batches,
            up=config.codecs.up,
            down=config.codecs.down,
            reply_shape=partial(config.method.reply_shape, embedding_dim=known.dims[CURIOUS]),
            teaching=replaced.teaching,
        )
    Training(federation).run(resume=False)
    return Arena(config, data, federation, transcript, watched)
