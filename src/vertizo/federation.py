"""From a configuration and data to the parties of one simulated federation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vertizo.batches import Batches
from vertizo.codecs.feedback import Feedback, Received
from vertizo.config import ExperimentConfig
from vertizo.data.vertical import VerticalData
from vertizo.errors import ConfigError
from vertizo.making import (
    OwnFeatures,
    client_model,
    embedding_dim,
    mixes_records,
    server_model,
)
from vertizo.messages import Purpose
from vertizo.methods.base import ClientSide, ServerSide
from vertizo.models.base import Model
from vertizo.models.optimizers import Frozen, Optimizer, RandomUpdates, Sgd
from vertizo.party import ClientParty, ServerParty
from vertizo.privacy.accounting import mu_of
from vertizo.privacy.embedding_noise import (
    EmbeddingNoise,
    EmbeddingStatement,
    account,
    noise_std_for_embeddings,
)
from vertizo.privacy.events import Releases
from vertizo.privacy.statement import Statement
from vertizo.protection import Charge, Protection, covers, planned_rounds, steps_of_client
from vertizo.randomness import Stream
from vertizo.server.head import Head
from vertizo.server.table import EmbeddingTable
from vertizo.simulation.simulator import Observer, Simulator
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import Along

FITTED_LABELS = (
    "No privacy guarantee: what the task is, its classes, or the mean and spread that labels are "
    "scaled by were read off the labels, and every reply depends on it; data.classes, or "
    "data.task and data.label_range, give public knowledge instead."
)


@dataclass
class Federation:
    """The parties, the simulator that runs them, and what a checkpoint needs of both."""

    data: VerticalData
    models: list[Model]
    """Each client's."""
    optimizers: list[Optimizer]
    server: ServerParty
    clients: list[ClientParty]
    simulator: Simulator
    total_rounds: int
    covers: tuple[str, ...] = ("labels",)
    """What of a training record reaches clients through the server's noise alone."""
    releases: Releases | None = None
    """All that may depend on one record, where replies carry noise."""
    embedding_noise: EmbeddingStatement | None = None
    """What noise on the clients' embeddings comes to, where there is some."""

    def start(self, *, upload_table: bool) -> None:
        """Begin a new run."""
        if upload_table:
            self.simulator.upload("table", self.data.records)
        self.simulator.start()

    def statement(self) -> Statement:
        """What the run guarantees."""
        side = self.server.side
        statement = side.plan.statement(
            server_is_private=side.update.is_private, covers=self.covers
        )
        if self.data.fitted_labels and side.plan.releases is not None:
            statement = replace(
                statement,
                guarantee="none",
                epsilon=None,
                delta=None,
                mu=None,
                replies_alone_mu=None,
                replies_alone_epsilon=None,
                covers=(),
                words=FITTED_LABELS,
            )
        if self.embedding_noise is None:
            return statement
        return replace(statement, words=self.embedding_noise.words())

    def privacy(self) -> dict[str, Any]:
        """The statement, and what noise on embeddings comes to, for ``summary.json``."""
        noise = self.embedding_noise
        return {
            **self.statement().as_dict(),
            "embedding_noise": noise.as_dict() if noise is not None else None,
        }

    def parameters(self) -> dict[str, Any]:
        """All parameters: the models alone."""
        return {
            "clients": [model.parameters for model in self.models],
            "server": self.server.side.head.parameters,
        }

    def load_parameters(self, state: Mapping[str, Any]) -> None:
        """Put parameters in place."""
        for model, values in zip(self.models, state["clients"], strict=True):
            model.parameters.copy_(values)
        self.server.side.head.parameters.copy_(state["server"])

    def state(self) -> dict[str, Any]:
        """Everything a run needs to go on as if it had never stopped."""
        return {
            "parameters": self.parameters(),
            "optimizers": [optimizer.state() for optimizer in self.optimizers],
            "clients": [client.state() for client in self.clients],
            "server": self.server.state(),
            "simulator": self.simulator.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self.load_parameters(state["parameters"])
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load(values)
        for client, values in zip(self.clients, state["clients"], strict=True):
            client.load(values)
        self.server.load(state["server"])
        self.simulator.load(state["simulator"])


def build(
    config: ExperimentConfig,
    data: VerticalData,
    *,
    observer: Observer | None = None,
    charge: Charge | None = None,
) -> Federation:
    """All parties of one experiment, in one process.

    Args:
        config: of the run.
        data: its records.
        observer: sees every frame on the wire.
        charge: what the run is charged to; None for a ledger of its own.

    Raises:
        ConfigError: parts of the configuration do not fit each other or the data.
    """
    root = Stream.from_seed(config.seed)
    parties = len(data.parties)
    synchronous = config.simulation.timing == "synchronous"
    feedback = config.codecs.feedback
    if not data.records:
        raise ConfigError(
            f"data.validation is {config.data.validation}, which leaves no record to train on"
        )
    if config.batch_size > data.records:
        raise ConfigError(
            f"batch_size is {config.batch_size} but there are {data.records} training records; "
            f"use at most {data.records}"
        )
    for straggler in config.simulation.stragglers:
        if not 0 <= straggler < parties:
            raise ConfigError(
                f"simulation.stragglers names client {straggler}; clients are 0 to {parties - 1}"
            )

    config.method.check(parties)
    cardinalities = data.cardinalities or ((),) * parties
    models = [
        client_model(
            config.client.model,
            data.shape(m),
            root.child("client", m, "model"),
            cardinalities[m],
            tokens=not data.features[m]["table"].is_floating_point(),
        )
        for m in range(parties)
    ]
    samples = [data.features[m]["table"][:5] for m in range(parties)]
    dims = [
        embedding_dim(
            model,
            data.features[m]["table"][:2],
            config.server.embedding_bound,
            first_order=config.method.first_order_client,
        )
        for m, model in enumerate(models)
    ]
    shared = [root.child("shared", m) for m in range(parties)]
    server = _server(config, data, dims, root.child("server"), shared, charge)
    noise = _embedding_noise(config, data)
    clients, optimizers = [], []
    for m, model in enumerate(models):
        own = root.child("client", m)
        optimizer = _client_optimizer(config, model, own, data.records)
        side = ClientSide(model, optimizer, own.child("directions"), shared[m], m)
        optimizers.append(optimizer)
        clients.append(
            ClientParty(
                index=m,
                half=config.method.client(side),
                features=data.features[m],
                embed=model,
                batches=Batches(data.records, config.batch_size, own.child("batches")),
                up=config.codecs.up,
                down=config.codecs.down,
                reply_shape=partial(config.method.reply_shape, embedding_dim=dims[m]),
                noise=None
                if noise is None
                else EmbeddingNoise(noise.clip, noise.noise_std, own.child("noise")),
                received=Received(data.records, dims[m]) if feedback in ("up", "both") else None,
            )
        )
    simulator = Simulator(
        clients,
        server,
        config.simulation,
        root.child("links"),
        synchronous=synchronous,
        queries_per_client=config.epochs * clients[0].batches.per_epoch,
        observer=observer,
    )
    total = planned_rounds(config, data)
    return Federation(
        data=data,
        models=models,
        optimizers=optimizers,
        server=server,
        clients=clients,
        simulator=simulator,
        total_rounds=total,
        covers=covers(config, data, models_mix=any(map(mixes_records, models, samples))),
        releases=server.side.plan.releases,
        embedding_noise=noise,
    )


def _client_optimizer(
    config: ExperimentConfig, model: Model, stream: Stream, records: int
) -> Optimizer:
    options = config.client.optimizer
    steps = steps_of_client(config, records) * config.method.server_steps
    decay = steps if options.decay == "linear" else None
    sgd = Sgd(options.learning_rate, options.momentum, decay)
    if config.control == "frozen":
        return Frozen()
    if config.control == "random":
        directions = Directions("sphere", model.parameters.numel(), stream.child("control"))
        return RandomUpdates(sgd, lambda step, norm: Along(directions.draw(step), norm))
    return sgd


def _embedding_noise(config: ExperimentConfig, data: VerticalData) -> EmbeddingStatement | None:
    """How much noise every client puts on its embeddings, and what it comes to."""
    privacy = config.privacy
    if privacy.mechanism != "embedding-noise" or privacy.clip is None:
        return None
    releases = config.epochs * config.method.points + (config.simulation.table == "upload")
    sampling = config.batch_size / data.records
    noise_std = privacy.noise_std
    if noise_std is None:
        assert privacy.epsilon is not None
        noise_std = noise_std_for_embeddings(
            privacy.clip,
            mu_of(privacy.epsilon, privacy.delta),
            releases=releases,
            sampling=sampling,
            published=privacy.accounting == "published",
        )
    return account(privacy.clip, noise_std, privacy.delta, releases=releases, sampling=sampling)


def _server(
    config: ExperimentConfig,
    data: VerticalData,
    dims: list[int],
    stream: Stream,
    shared: list[Stream],
    charge: Charge | None,
) -> ServerParty:
    method, options = config.method, config.server
    table = EmbeddingTable(data.records, dims, options.join)
    own: dict[Purpose, Tensor] = {}
    encoded = None
    if data.own is not None:
        own = _flattened(data.own.values)
        features = data.own.values["table"]
        encoded = OwnFeatures(
            options.encoder,
            tuple(features.shape[1:]),
            data.own.cardinalities,
            tokens=not features.is_floating_point(),
        )
    model = server_model(
        options.model,
        table.width,
        data.task.outputs,
        stream.child("model"),
        purpose=data.name,
        own=encoded,
    )
    _check_own(model, table.width, own)
    synchronous = config.simulation.timing == "synchronous"
    order = Batches(data.records, config.batch_size, stream.child("batches"))
    protection = Protection(
        config,
        data,
        stream,
        server_parameters=model.parameters.numel(),
        reply_numbers=max(method.reply_shape(1, dim)[-1] for dim in dims),
        reply_size=max(math.prod(method.reply_shape(config.batch_size, dim)) for dim in dims),
        charge=charge,
    )
    side = ServerSide(
        head=Head(model, data.task),
        table=table,
        labels=data.labels["table"],
        plan=protection.plan(),
        update=protection.update(model),
        shared=shared,
        own=own.get("table"),
    )
    feedback = config.codecs.feedback
    return ServerParty(
        half=method.server(side),
        side=side,
        labels=data.labels,
        points=method.points,
        batch_size=config.batch_size,
        up=config.codecs.up,
        down=config.codecs.down,
        bound=options.embedding_bound,
        batches=order if synchronous else None,
        own=own or None,
        feedback=[Feedback(data.records) for _ in dims if feedback in ("down", "both")],
        received=[Received(data.records, dim) for dim in dims if feedback in ("up", "both")],
        schedule=protection.schedule(),
    )


def _check_own(model: Model, width: int, own: Mapping[Purpose, Tensor]) -> None:
    """Refuse own features that the encoder does not take: now, since no query may be refused later.

    Tokens are the only ones it may refuse, for being too large or negative.
    """
    for purpose, rows in own.items():
        for place in {int(rows.amax(1).argmax()), int(rows.amin(1).argmin())} if len(rows) else ():
            try:
                model(torch.cat([torch.zeros(1, width), rows[place : place + 1]], 1))
            except ConfigError as error:
                raise ConfigError(f"server.encoder, for {purpose} records: {error}") from None


def _flattened(values: Mapping[Purpose, Tensor]) -> dict[Purpose, Tensor]:
    """Features as rows of float32."""
    return {purpose: rows.flatten(1).to(torch.float32) for purpose, rows in values.items()}
