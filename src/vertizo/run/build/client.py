"""Building a feature holder's party from the configuration and its features.

A simulated federation makes all parties (`vertizo.run.loop.federation`); over a network each
process makes its own, of its own data and its own randomness (`vertizo.network`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vertizo.config.architectures import FiltersConfig, MlpConfig, TableConfig
from vertizo.config.schema import ExperimentConfig
from vertizo.config.sections.client import ClientConfig
from vertizo.core import arrays, kernels, system
from vertizo.core.errors import ConfigError
from vertizo.core.names import FITTED, PretrainName
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.forward_difference import ForwardDifference
from vertizo.models.base import Model
from vertizo.models.mixing import mixes_records
from vertizo.models.optimizers import Frozen, Optimizer, RandomUpdates
from vertizo.models.pretrained import FilterMeans, Padded, Preparation, preparation
from vertizo.models.torch import TorchModel
from vertizo.party.batches import Augmentation, Batches
from vertizo.party.checks import Watch
from vertizo.party.client import REPLY_BOUND, ClientParty
from vertizo.party.graphed_client import GraphedClient
from vertizo.privacy.accounting.gaussian import mu_of
from vertizo.privacy.noise.embedding import (
    EmbeddingNoise,
    EmbeddingStatement,
    account,
    noise_std_for_embeddings,
)
from vertizo.protocol import wire
from vertizo.protocol.codecs.feedback import Received
from vertizo.protocol.messages import Purpose
from vertizo.run.build import data_defaults, models, optimizers, placement
from vertizo.run.build.schedule import answers_expected
from vertizo.zeroth_order.card_directions import directions_of
from vertizo.zeroth_order.estimators import Along

SMOOTHING = 1e-3
"""Length of a perturbation for a regulariser, if the method names none."""


@dataclass(frozen=True)
class MadeClient:
    """A feature holder's party, and what its driver needs beside it."""

    party: ClientParty
    model: Model
    optimizer: Optimizer
    learning_rate: float
    """η_m, as configured or by default."""
    embedding_dim: int
    """d_h."""
    mixes_records: bool
    """Whether its model computes a record's embedding from other records as well."""
    notes: tuple[str, ...]
    """Notes for users on its model, a line each."""


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
    """Make the party of feature holder number ``index`` of so many ``clients``.

    It uses its own parts of the configuration and those that all parties agreed on. Its randomness
    comes from ``root``; the server knows that of ``shared`` as well, and everybody that of
    ``public``. ``cardinalities`` are as in `client_model`. ``noise`` is put on embeddings; its
    randomness depends on ``digest`` (None for the configuration's). ``noised`` says that replies
    carry noise, if the configuration does not.

    Raises:
        ConfigError: the model does not fit the features.
    """
    table, method, codecs, options = features["train"], config.method, config.codecs, config.client
    records, stream = len(table), root.child("client", index)
    why = models.why_evaluates(config, noised=noised)
    where, device = placement.where(options), torch.device(options.device)
    front = teaching = None
    shape = tuple(table.shape[1:])
    prepared = partial(_prepared, stream, table, cardinalities)
    if config.privacy.mechanism == "teacher":
        wanted = config.privacy.teacher
        made = prepared("privacy.teacher", wanted.features or "pca", wanted.components)
        teaching = Padded(made, wanted.components)
    if options.pretrain != "none":
        front = prepared("client.pretrain", options.pretrain, options.components)
    model = models.client_model(
        options.model,
        shape,
        root.child("client", index, "model"),
        cardinalities,
        tokens=not table.is_floating_point(),
        records=table,
        where=where,
        training=root.child("client", index, "training") if why is None else None,
        front=front,
        apart=models.keeps_apart(config, noised=noised),
    )
    if arrays.is_card(device):
        models.check_tokens("client.model", model, features.values())
    bound = config.server.embedding_bound
    as_prepared = table.is_floating_point() and not isinstance(options.model, FiltersConfig)
    if config.is_label_free and as_prepared:  # as many numbers, made by the preparation alone
        kind: PretrainName = "pca" if options.pretrain == "none" else options.pretrain
        front = prepared("client.pretrain", kind, model(table[:2]).shape[1])
        passed_on = MlpConfig(outputs=front.components)
        model = models.client_model(passed_on, shape, stream.child("model"), front=front)
    dim = models.embedding_dim(model, table[:2], bound, first_order=method.first_order_client)
    rate = options.optimizer.learning_rate
    if rate is None and options.optimizer.algorithm == "adam":
        rate = optimizers.ADAM_RATE
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
    pair, levels = method.client(side), placement.levels_beside(model, table, device)
    if levels is None:
        features = placement.features_beside(model, features, device)
    watch, is_known = Watch(), isinstance(model, TorchModel) and not method.is_foreign()
    if arrays.is_card(device) and is_known and method.whole_queries is None:
        check = partial(watch.check, "the reply", bound=REPLY_BOUND)
        pair = GraphedClient(pair, side, device, levels=levels, check=check).pair
    party = ClientParty(
        index=index,
        pair=pair,
        features=features,
        embed=model,
        batches=known_batches(config, records, public, index)
        or Batches(records, config.batch_size, stream.child("batches")),
        up=codecs.up,
        down=codecs.down,
        reply_shape=partial(method.reply_shape, embedding_dim=dim),
        noise=added,
        received=Received(records, dim) if codecs.feedback in ("up", "both") else None,
        encode=encode,
        known=codecs.ids == "implicit",
        augmentation=_augmentation(options, table, stream),
        teaching=teaching,
        levels=levels,
        device=device,
        watch=watch,
    )
    with models.named("client.model"):
        if why is None:
            models.check_last_batch(model, table[:1], records, config.batch_size)
        mixes = isinstance(options.model, models.Foreign) and mixes_records(
            model, models.unlike(table), (min(config.batch_size, records),), slopes=why is not None
        )
    fits = options.pretrain in FITTED or isinstance(options.model, TableConfig)
    mixes = mixes or fits or method.fits(model)
    notes = (*models.mode_notes("client.model", model, why), *kernels.notes(), *system.notes())
    return MadeClient(party, model, optimizer, rate, dim, mixes, notes)


def _prepared(
    stream: Stream,
    table: Tensor,
    cardinalities: tuple[int, ...],
    key: str,
    kind: PretrainName,
    components: int,
) -> Preparation | FilterMeans:
    """Make a client's preparation of its features, which uses no label.

    ``key`` is where it was asked for: errors name it, and its last word names the randomness.
    """
    with models.named(key):
        seed = stream.child(key.partition(".")[2]).seed() % 2**32
        return preparation(kind, table, cardinalities, components, seed)


def _augmentation(options: ClientConfig, table: Tensor, stream: Stream) -> Augmentation | None:
    """The random changes of training images; ConfigError if features are no images."""
    if not options.crop and not options.flip:
        return None
    if table.dim() != 4:
        key = "crop" if options.crop else "flip"
        raise ConfigError(
            f"client.{key} is {getattr(options, key)} but a record's features have the shape "
            f"{tuple(table.shape[1:])}; it is for images, [channels, height, width]: leave it out"
        )
    return Augmentation(stream.child("augmentation"), options.crop, options.flip)


def _client_optimizer(
    config: ExperimentConfig, model: Model, rate: float, stream: Stream, steps: int
) -> Optimizer:
    if config.control == "frozen" or config.is_label_free:
        return Frozen()
    method = config.method
    descent = optimizers.made(
        config.client.optimizer,
        rate,
        steps,
        model.parameters,
        smoothing=getattr(method, "smoothing", SMOOTHING),
        forward=isinstance(method, ForwardDifference),
        differentiated=method.first_order_client or method.additive,
        key="client.optimizer",
    )
    if config.control == "random":
        directions = directions_of(model.parameters, "sphere", stream.child("control"))
        return RandomUpdates(descent, lambda step, norm: Along(directions.draw(step), norm))
    return descent


def embedding_noise(config: ExperimentConfig, records: int) -> EmbeddingStatement | None:
    """The noise that every client puts on its embeddings, and its ε; None without noise."""
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


def known_batches(
    config: ExperimentConfig, records: int, public: Stream, client: int
) -> Batches | None:
    """A client's batches, if everybody knows them (codecs.ids implicit); else None.

    Clients share one order in synchronous rounds, and have their own in asynchronous ones.
    """
    if config.codecs.ids == "sent":
        return None
    of = 0 if config.simulation.timing == "synchronous" else client
    return Batches(records, config.batch_size, public.child("batches", of))
