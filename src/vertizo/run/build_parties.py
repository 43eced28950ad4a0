"""From a configuration and data to one party: each is made by itself, of what it alone has.

A simulated federation makes them all (`vertizo.run.federation`); over a network each process
makes its own, of its own data and its own randomness (`vertizo.network`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vertizo.config.architectures import FiltersConfig, MlpConfig
from vertizo.config.client import ClientConfig
from vertizo.config.schema import ExperimentConfig
from vertizo.config.several_labels import check_sums
from vertizo.core import kernels, system
from vertizo.core.errors import ConfigError
from vertizo.core.names import FITTED, HeadName, PretrainName
from vertizo.core.randomness import Stream
from vertizo.data import weights
from vertizo.data.vertical import VerticalData
from vertizo.methods.base import ClientSide
from vertizo.models.base import DifferentiableModel, Model
from vertizo.models.losses import Classification, ClassWeighted, MultiLabel, Task
from vertizo.models.optimizers import Frozen, Optimizer, RandomUpdates
from vertizo.models.pretrained import FilterMeans, Padded, Preparation, preparation
from vertizo.party.batches import Batches
from vertizo.party.client import ClientParty
from vertizo.party.final_head import FinalHead, Fitted, Refitted
from vertizo.party.server import ServerParty
from vertizo.party.server_model import ServerModel, ServerSide
from vertizo.party.table import EmbeddingTable
from vertizo.privacy import forecast
from vertizo.privacy.accounting import mu_of
from vertizo.privacy.discrete_gaussian import RandomBytes
from vertizo.privacy.embedding_noise import (
    EmbeddingNoise,
    EmbeddingStatement,
    account,
    noise_std_for_embeddings,
)
from vertizo.protocol import wire
from vertizo.protocol.codecs.feedback import Feedback, Received
from vertizo.protocol.messages import Purpose
from vertizo.run import build_models as models
from vertizo.run import build_optimizers, data_defaults
from vertizo.run.build_privacy import Charge, Protection
from vertizo.run.lengths import answers_expected, batch_sizes
from vertizo.run.persons import check_persons
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import Along

SUM_ALONE = (
    "server.model 'sum' adds up the clients' numbers alone: the label holder's columns enter the "
    "raw head (server.final_head), not the private one"
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
    notes: tuple[str, ...]
    """What people should know of its model."""


def check_sizes(config: ExperimentConfig, records: int) -> None:
    """Raise ConfigError for more records a batch than there are, or for none at all."""
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
    """A feature holder: number ``index`` of so many clients.

    Of the configuration, its own parts and those that all agreed on are used. Its randomness comes
    from ``root``; the server knows that of ``shared`` as well, and everybody that of ``public``.
    ``cardinalities`` are as in `client_model`, ``noise`` is put on embeddings and depends on the
    ``digest`` (None for the configuration's), and ``noised`` says that replies carry noise where
    the configuration does not say so.

    Raises:
        ConfigError: the model does not fit the features.
    """
    table, method, codecs, options = features["train"], config.method, config.codecs, config.client
    records, stream = len(table), root.child("client", index)
    why = models.why_evaluates(config, noised=noised)
    front = teaching = None
    if config.privacy.mechanism == "teacher":
        wanted, seed = config.privacy.teacher, stream.child("teacher").seed() % 2**32
        with models.named("privacy.teacher"):
            made = preparation(
                wanted.features or "pca", table, cardinalities, wanted.components, seed
            )
        teaching = Padded(made, wanted.components)
    if options.pretrain != "none":
        front = _prepared(options.pretrain, table, cardinalities, options.components, stream)
    model = models.client_model(
        options.model,
        tuple(table.shape[1:]),
        root.child("client", index, "model"),
        cardinalities,
        tokens=not table.is_floating_point(),
        device=options.device,
        training=root.child("client", index, "training") if why is None else None,
        front=front,
    )
    bound = config.server.embedding_bound
    as_prepared = table.is_floating_point() and not isinstance(options.model, FiltersConfig)
    if config.control == "label-free" and as_prepared:
        numbers = model(table[:2]).shape[1]
        front, model = _label_free(options, table, cardinalities, numbers, stream)
    dim = models.embedding_dim(model, table[:2], bound, first_order=method.first_order_client)
    rate = options.optimizer.learning_rate
    if rate is None and options.optimizer.algorithm == "adam":
        rate = build_optimizers.ADAM_RATE
    elif rate is None:
        size, momentum = model.parameters.numel(), options.optimizer.momentum
        rate = data_defaults.client_rate(method, size, dim, config.batch_size, momentum)
    steps = answers_expected(config, records, clients)[index] * method.steps_of(index)
    optimizer = _client_optimizer(config, model, rate, stream, steps)
    side = ClientSide(model, optimizer, stream.child("directions"), shared, index)
    added = None
    if noise is not None:
        secrets = stream.child("noise", digest or config.digest)
        added = EmbeddingNoise(noise.clip, noise.noise_std, secrets)
    party = ClientParty(
        index=index,
        pair=method.client(side),
        features=features,
        embed=model,
        batches=_known_batches(config, records, public, index)
        or Batches(records, config.batch_size, stream.child("batches")),
        up=codecs.up,
        down=codecs.down,
        reply_shape=partial(method.reply_shape, embedding_dim=dim),
        noise=added,
        received=Received(records, dim) if codecs.feedback in ("up", "both") else None,
        encode=encode,
        known=codecs.ids == "known",
        teaching=teaching,
    )
    sizes = (min(config.batch_size, records),) if isinstance(options.model, models.Foreign) else ()
    with models.named("client.model"):
        if why is None:
            models.check_last_batch(model, table[:1], records, config.batch_size)
        mixes = models.mixes_records(model, models.unlike(table), sizes)
    mixes = mixes or options.pretrain in FITTED or method.fits(model)
    notes = (*models.mode_notes("client.model", model, why), *kernels.notes(), *system.notes())
    return MadeClient(party, model, optimizer, rate, dim, mixes, notes)


def _prepared(
    kind: PretrainName,
    table: Tensor,
    cardinalities: tuple[int, ...],
    components: int,
    stream: Stream,
) -> Preparation | FilterMeans:
    """What a client makes of its features without labels."""
    with models.named("client.pretrain"):
        seed = stream.child("pretrain").seed() % 2**32
        return preparation(kind, table, cardinalities, components, seed)


def _label_free(
    options: ClientConfig,
    table: Tensor,
    cardinalities: tuple[int, ...],
    numbers: int,
    stream: Stream,
) -> tuple[Preparation | FilterMeans, Model]:
    """A client that sends so many numbers of a record, made of its features alone."""
    kind: PretrainName = "pca" if options.pretrain == "none" else options.pretrain
    front = _prepared(kind, table, cardinalities, numbers, stream)
    passed_on = MlpConfig(outputs=front.components)
    shape = tuple(table.shape[1:])
    return front, models.client_model(passed_on, shape, stream.child("model"), front=front)


def _known_batches(
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
    if config.control in ("frozen", "label-free"):
        return Frozen()
    descent = build_optimizers.made(config.client.optimizer, rate, steps)
    if config.control == "random":
        directions = Directions("sphere", model.parameters.numel(), stream.child("control"))
        return RandomUpdates(descent, lambda step, norm: Along(directions.draw(step), norm))
    return descent


def embedding_noise(config: ExperimentConfig, records: int) -> EmbeddingStatement | None:
    """How much noise every client puts on its embeddings, and what it comes to."""
    privacy = config.privacy
    if privacy.mechanism != "embedding-noise" or privacy.clip is None:
        return None
    releases = config.epochs * config.method.points + (config.simulation.table == "upload")
    sampling, noise_std = config.batch_size / records, privacy.noise_std
    if noise_std is None:
        assert privacy.epsilon is not None
        mu, published = mu_of(privacy.epsilon, privacy.delta), privacy.accounting == "published"
        noise_std = noise_std_for_embeddings(
            privacy.clip, mu, releases=releases, sampling=sampling, published=published
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
    label_file: Path | None = None,
    encode: wire.Encode = wire.encode,
) -> ServerParty:
    """The label holder, of data whose clients' features are not looked at.

    ``dims`` are d_h of every client. Its own randomness is ``stream``; it shares one with each
    client, and ``public`` is everybody's. Secure noise and secret samples come from
    ``random_bytes``. Without a ``charge`` the run has a ledger of its own; private labels are made
    anew where no ``label_file`` keeps them.

    Raises:
        ConfigError: parts of the configuration do not fit each other or the data.
    """
    options = config.server
    config.method.check_outputs(data.task.outputs, dims)
    check_persons(config, data)
    check_sums(config, data.task.outputs, dims)
    own: dict[Purpose, Tensor] = {}
    encoded = None
    notes: tuple[str, ...] = ()
    if data.own is not None:
        own = {purpose: rows.flatten(1).float() for purpose, rows in data.own.values.items()}
        if options.reads_own:
            features = data.own.values["train"]
            shape, tokens = tuple(features.shape[1:]), not features.is_floating_point()
            encoded = models.OwnFeatures(options.encoder, shape, data.own.cardinalities, tokens)
        elif options.final_head == "private":
            raise ConfigError(
                f"server.model is 'sum', which adds up the clients' numbers alone, but the label "
                f"holder has columns of its own ({data.own.name}), which nothing would use; set "
                "server.final_head to 'logistic' or 'boosting', or server.model to 'mlp'"
            )
        else:
            notes = (SUM_ALONE,)
    joined = own.get("train") if options.reads_own else None
    table = EmbeddingTable(data.records, dims, options.join, joined)
    why = models.why_evaluates(config, server=True)
    made = partial(
        models.server_model,
        options.model,
        table.width,
        data.task.outputs,
        stream.child("model"),
        purpose=data.name,
        own=encoded,
        sizes=batch_sizes(config, data.records, len(dims)),
        parts=len(dims) if options.join == "concat" else 1,
    )
    model = made(training=stream.child("training") if why is None else None)
    if options.reads_own:
        _check_own(model, table.width, own)
    if why is None:
        with models.named("server.model"):
            row = torch.zeros(1, table.width)
            models.check_last_batch(model, row, data.records, config.batch_size)
    synchronous = config.simulation.timing == "synchronous"
    orders = [_known_batches(config, data.records, public, client) for client in range(len(dims))]
    known = [order for order in orders if order is not None]
    order = next(iter(known), Batches(data.records, config.batch_size, stream.child("batches")))
    classes = weights.of_classes(config.data, data)
    protection = Protection(config, data, model, dims, stream, charge, random_bytes, label_file)
    private, plan = protection.labels, protection.plan()
    if plan.releases is not None:
        shares = (config.data.class_shares or {}).values()
        rarest = min(shares) if len(shares) == 2 else None
        size = model.parameters.numel()
        about = plan.releases, data.records, config.batch_size, size, rarest
        notes = (*notes, *forecast.notes(*about))
    side = ServerSide(
        method=config.method,
        model=ServerModel(model, _task(data.task, classes) if private is None else private.task),
        table=table,
        labels=data.labels["train"] if private is None else data.labels["train"][:0],
        plan=plan,
        update=protection.update(),
        shared=shared,
        learning_rate=protection.learning_rate,
        notes=(
            *notes,
            *models.mode_notes("server.model", model, why),
            *kernels.notes(),
            *system.notes(),
        ),
        weights=data.weights,
        head_weights=weights.of_labels(data.labels["train"], classes, data.weights),
    )
    feedback = config.codecs.feedback
    return ServerParty(
        side=side,
        head=_final_head(options.final_head, data.task, made),
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
        private_labels=private,
    )


def _task(task: Task, classes: Tensor | None) -> Task:
    """What is learned from raw labels, of classes with these weights."""
    if classes is None or not isinstance(task, Classification):
        return task
    return ClassWeighted(classes, task.positive)


def _final_head(
    kind: HeadName, task: Task, model: Callable[[], DifferentiableModel]
) -> FinalHead | None:
    """The raw head of that kind; ``model`` makes the server's once more, as it begins."""
    if kind == "private":
        return None
    if kind == "refit":
        return Refitted(ServerModel(model(), task))
    assert not isinstance(task, MultiLabel), "a configuration with several labels has no such head"
    return Fitted(kind, task)


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
