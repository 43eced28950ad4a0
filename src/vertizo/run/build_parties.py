"""From a configuration and data to one party: each is made by itself, of what it alone has.

A simulated federation makes them all (`vertizo.run.federation`); over a network each process
makes its own, of its own data and its own randomness (`vertizo.network`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.core import kernels
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.methods.base import ClientSide
from vertizo.models.base import Model
from vertizo.models.optimizers import Frozen, Optimizer, RandomUpdates, Sgd
from vertizo.models.pretrained import Preparation
from vertizo.party.batches import Batches
from vertizo.party.client import ClientParty
from vertizo.party.server import ServerParty
from vertizo.party.server_model import ServerModel, ServerSide
from vertizo.party.table import EmbeddingTable
from vertizo.privacy.accounting import mu_of
from vertizo.privacy.discrete_gaussian import RandomBytes
from vertizo.privacy.embedding_noise import (
    EmbeddingNoise,
    EmbeddingStatement,
    account,
    noise_std_for_embeddings,
)
from vertizo.privacy.statement import Statement
from vertizo.protocol import wire
from vertizo.protocol.codecs.feedback import Feedback, Received
from vertizo.protocol.messages import Purpose
from vertizo.run import data_defaults, modes
from vertizo.run.build_models import (
    OwnFeatures,
    client_model,
    embedding_dim,
    is_foreign,
    named,
    server_model,
)
from vertizo.run.build_privacy import Charge, Protection
from vertizo.run.lengths import answers_expected, batch_sizes
from vertizo.run.record_mixing import mixes_records
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import Along

FITTED_LABELS = (
    "No privacy guarantee: what the task is, its classes, or the mean and spread that labels are "
    "scaled by were read off the labels, and every reply depends on it; data.classes, or "
    "data.task and data.label_range, give public knowledge instead."
)
UNDECLARED = (
    "No privacy guarantee: the method does not declare what it releases of a record "
    "(Method.releases_per_query)."
)


@dataclass(frozen=True)
class MadeClient:
    """A feature holder's party, and what its driver needs beside it."""

    party: ClientParty
    model: Model
    optimizer: Optimizer
    learning_rate: float
    """η_m, given or chosen."""
    embedding_dim: int
    mixes_records: bool
    """Whether its model computes a record's embedding from other records as well."""
    notes: tuple[str, ...] = ()
    """What people should know of its model."""


def check_sizes(config: ExperimentConfig, records: int) -> None:
    """Refuse more records a batch than there are.

    Raises:
        ConfigError: names the key.
    """
    if not records:
        raise ConfigError(
            f"data.validation is {config.data.validation}, which leaves no record to train on"
        )
    if config.batch_size > records:
        raise ConfigError(
            f"batch_size is {config.batch_size} but there are {records} training records; "
            f"use at most {records}"
        )


def make_client(
    config: ExperimentConfig,
    index: int,
    features: Mapping[Purpose, Tensor],
    root: Stream,
    *,
    clients: int,
    cardinalities: tuple[int, ...] = (),
    shared: Stream,
    public: Stream,
    noise: EmbeddingStatement | None = None,
    noised: bool = False,
    digest: str | None = None,
    encode: wire.Encode = wire.encode,
) -> MadeClient:
    """A feature holder.

    Args:
        config: of the run; its own parts and those that all agreed on.
        index: which client it is.
        features: its own, by purpose.
        root: of its randomness.
        clients: how many there are.
        cardinalities: number of categories of each of the first columns, which hold codes.
        shared: the randomness that the server knows as well.
        public: the randomness that everybody knows.
        noise: what it puts on its embeddings; None for nothing.
        noised: whether replies carry noise, where the configuration does not say so.
        digest: of the run, which the noise on embeddings hangs on; None for the configuration's.
        encode: how it gives messages away.

    Raises:
        ConfigError: the model does not fit the features.
    """
    table = features["train"]
    records = table.shape[0]
    why = modes.why_client_evaluates(config, noised=noised)
    front = None
    if config.client.pretrain != "none":
        with named("client.pretrain"):
            front = Preparation(
                config.client.pretrain,
                table,
                cardinalities,
                config.client.components,
                root.child("client", index, "pretrain").seed() % 2**32,
            )
    model = client_model(
        config.client.model,
        tuple(table.shape[1:]),
        root.child("client", index, "model"),
        cardinalities,
        tokens=not table.is_floating_point(),
        device=config.client.device,
        training=root.child("client", index, "training") if why is None else None,
        front=front,
    )
    dim = embedding_dim(
        model,
        table[:2],
        config.server.embedding_bound,
        first_order=config.method.first_order_client,
    )
    stream = root.child("client", index)
    rate = config.client.optimizer.learning_rate
    if rate is None:
        rate = data_defaults.client_rate(
            config.method,
            model.parameters.numel(),
            dim,
            config.batch_size,
            config.client.optimizer.momentum,
        )
    steps = answers_expected(config, records, clients)[index] * config.method.steps_of(index)
    optimizer = _client_optimizer(config, model, rate, stream, steps)
    side = ClientSide(model, optimizer, stream.child("directions"), shared, index)
    feedback = config.codecs.feedback
    party = ClientParty(
        index=index,
        pair=config.method.client(side),
        features=features,
        embed=model,
        batches=known_batches(config, records, public, index)
        or Batches(records, config.batch_size, stream.child("batches")),
        up=config.codecs.up,
        down=config.codecs.down,
        reply_shape=partial(config.method.reply_shape, embedding_dim=dim),
        noise=None
        if noise is None
        else EmbeddingNoise(
            noise.clip, noise.noise_std, stream.child("noise", digest or config.digest)
        ),
        received=Received(records, dim) if feedback in ("up", "both") else None,
        encode=encode,
        known=config.codecs.ids == "known",
    )
    foreign = is_foreign(config.client.model)
    sizes = (min(config.batch_size, records),) if foreign else ()
    with named("client.model"):
        mixes = front is not None or mixes_records(model, table[:5], sizes)
    notes = (*modes.notes("client.model", model, why), *kernels.notes())
    return MadeClient(party, model, optimizer, rate, dim, mixes, notes)


def known_batches(
    config: ExperimentConfig, records: int, public: Stream, client: int
) -> Batches | None:
    """A client's order of records, if everybody knows it: its own, or one for all in step."""
    if config.codecs.ids == "sent":
        return None
    of = 0 if config.simulation.timing == "synchronous" else client
    return Batches(records, config.batch_size, public.child("batches", of))


def _client_optimizer(
    config: ExperimentConfig, model: Model, rate: float, stream: Stream, steps: int
) -> Optimizer:
    options = config.client.optimizer
    sgd = Sgd(rate, options.momentum, steps if options.falls else None)
    if config.control == "frozen":
        return Frozen()
    if config.control == "random":
        directions = Directions("sphere", model.parameters.numel(), stream.child("control"))
        return RandomUpdates(sgd, lambda step, norm: Along(directions.draw(step), norm))
    return sgd


def embedding_noise(config: ExperimentConfig, records: int) -> EmbeddingStatement | None:
    """How much noise every client puts on its embeddings, and what it comes to."""
    privacy = config.privacy
    if privacy.mechanism != "embedding-noise" or privacy.clip is None:
        return None
    releases = config.epochs * config.method.points + (config.simulation.table == "upload")
    sampling = config.batch_size / records
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


def make_server(
    config: ExperimentConfig,
    data: VerticalData,
    dims: Sequence[int],
    stream: Stream,
    shared: Sequence[Stream],
    public: Stream,
    *,
    charge: Charge | None = None,
    random_bytes: RandomBytes = os.urandom,
    encode: wire.Encode = wire.encode,
) -> ServerParty:
    """The label holder.

    Args:
        config: of the run.
        data: labels and own features; the clients' are not looked at.
        dims: d_h of every client.
        stream: its randomness.
        shared: the randomness that it shares with each client.
        public: the randomness that everybody knows.
        charge: what the run is charged to; None for a ledger of its own.
        random_bytes: where secure noise and secret samples come from.
        encode: how it gives messages away.

    Raises:
        ConfigError: parts of the configuration do not fit each other or the data.
    """
    method, options = config.method, config.server
    own: dict[Purpose, Tensor] = {}
    encoded = None
    if data.own is not None:
        own = _flattened(data.own.values)
        features = data.own.values["train"]
        encoded = OwnFeatures(
            options.encoder,
            tuple(features.shape[1:]),
            data.own.cardinalities,
            tokens=not features.is_floating_point(),
        )
    table = EmbeddingTable(data.records, dims, options.join, own.get("train"))
    why = modes.why_server_evaluates(config)
    model = server_model(
        options.model,
        table.width,
        data.task.outputs,
        stream.child("model"),
        purpose=data.name,
        own=encoded,
        training=stream.child("training") if why is None else None,
        sizes=batch_sizes(config, data.records, len(dims)),
        parts=len(dims) if options.join == "concat" else 1,
    )
    _check_own(model, table.width, own)
    synchronous = config.simulation.timing == "synchronous"
    orders = [known_batches(config, data.records, public, client) for client in range(len(dims))]
    known = [order for order in orders if order is not None]
    order = known[0] if known else None
    order = order or Batches(data.records, config.batch_size, stream.child("batches"))
    protection = Protection(
        config,
        data,
        stream,
        server_parameters=model.parameters.numel(),
        reply_numbers=max(method.reply_shape(1, dim)[-1] for dim in dims),
        reply_size=max(math.prod(method.reply_shape(config.batch_size, dim)) for dim in dims),
        charge=charge,
        random_bytes=random_bytes,
    )
    side = ServerSide(
        method=method,
        model=ServerModel(model, data.task),
        table=table,
        labels=data.labels["train"],
        plan=protection.plan(),
        update=protection.update(model),
        shared=shared,
        learning_rate=protection.learning_rate,
        notes=(*modes.notes("server.model", model, why), *kernels.notes()),
    )
    feedback = config.codecs.feedback
    return ServerParty(
        side=side,
        labels=data.labels,
        batch_size=config.batch_size,
        up=config.codecs.up,
        down=config.codecs.down,
        bound=options.embedding_bound,
        batches=order if synchronous else None,
        own=own or None,
        feedback=[Feedback(data.records) for _ in dims if feedback in ("down", "both")],
        received=[Received(data.records, dim) for dim in dims if feedback in ("up", "both")],
        schedule=protection.schedule(),
        noises=protection.noises,
        encode=encode,
        known=known,
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


def statement_of(
    server: ServerParty,
    data: VerticalData,
    covers: Sequence[str],
    noise: EmbeddingStatement | None,
) -> Statement:
    """What a run guarantees.

    Args:
        server: of the run.
        data: its records.
        covers: what of a training record reaches clients through the server's noise alone.
        noise: what noise on the clients' embeddings comes to, where there is some.
    """
    side = server.side
    statement = side.plan.statement(
        server_is_private=side.update.is_private, covers=covers, records=data.records
    )
    if data.fitted_labels and side.plan.releases is not None:
        statement = statement.without_guarantee(FITTED_LABELS)
    if side.method.releases_per_query is None and side.plan.releases is not None:
        statement = statement.without_guarantee(UNDECLARED)
    return statement if noise is None else replace(statement, words=noise.words())
