"""Building the label holder's party from the configuration, labels and sizes of embeddings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vertizo.config.ineffective_keys import heads_of
from vertizo.config.schema import ExperimentConfig
from vertizo.core import kernels, system
from vertizo.core.errors import ConfigError
from vertizo.core.names import HeadName
from vertizo.core.randomness import Stream
from vertizo.data import weights
from vertizo.data.vertical import VerticalData, of_classes
from vertizo.models.base import PROCESSOR, DifferentiableModel, Model
from vertizo.models.losses import Classification, ClassWeighted, MultiLabel, Regression, Task
from vertizo.party.batches import Batches
from vertizo.party.final_head import Chosen, FinalHead, Fitted, Refitted, Served
from vertizo.party.server import ServerParty
from vertizo.party.server_model import ServerModel, ServerSide
from vertizo.party.table import EmbeddingTable
from vertizo.privacy.accounting import forecast
from vertizo.privacy.noise.discrete_gaussian import RandomBytes
from vertizo.protocol import wire
from vertizo.protocol.codecs.feedback import Feedback, Received
from vertizo.protocol.messages import Purpose
from vertizo.run.build import models, placement
from vertizo.run.build.client import known_batches
from vertizo.run.build.privacy import Charge, Protection
from vertizo.run.build.record_identity import check_persons
from vertizo.run.build.schedule import batch_sizes

SUM_ALONE = (
    "server.model 'sum' adds up the clients' numbers alone: the label holder's columns enter the "
    "raw head (server.final_head), not the private one"
)


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
    """Make the label holder's party; of ``data``, clients' features are not read.

    ``dims`` are d_h of every client. ``stream`` is its own randomness, ``shared`` has that which it
    shares with each client, and ``public`` is everybody's. Secure noise and secret samples come
    from ``random_bytes``. Without a ``charge`` the run has a ledger of its own; without a
    ``label_file`` private labels are made anew.

    Raises:
        ConfigError: parts of the configuration do not fit each other or the data.
    """
    options = config.server
    config.method.check_outputs(data.task.outputs, dims)
    check_persons(config, data)
    _check_sums(config, data.task.outputs, dims)
    _check_goal(config, data)
    own, encoded = _own_columns(config, data)
    notes = (SUM_ALONE,) if own and not options.reads_own else ()
    joined = own.get("train") if options.reads_own else None
    placement.check_device("server.device", options.device)
    where, device = placement.where(options), torch.device(options.device)
    table = EmbeddingTable(data.records, dims, options.join, joined, device)
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
        where=where,
        apart=models.keeps_apart(config),
    )
    model = made(training=stream.child("training") if why is None else None)
    if options.reads_own and not models.keeps_apart(config):
        _check_own(model, table.width, own)
    if why is None:
        with models.named("server.model"):
            row = torch.zeros(1, table.width)
            models.check_last_batch(model, row, data.records, config.batch_size)
    synchronous = config.simulation.timing == "synchronous"
    orders = [known_batches(config, data.records, public, client) for client in range(len(dims))]
    known = [order for order in orders if order is not None]
    order = next(iter(known), Batches(data.records, config.batch_size, stream.child("batches")))
    classes, task = of_classes(config.data, data), data.task
    protection = Protection(config, data, model, dims, stream, charge, random_bytes, label_file)
    private, plan = protection.labels, protection.plan()
    if private is not None:
        task = private.task
    elif classes is not None and isinstance(task, Classification):
        task = ClassWeighted(classes, task.positive)
    if plan.releases is not None:
        shares, size = (config.data.class_shares or {}).values(), model.parameters.numel()
        rarest = min(shares) if len(shares) == 2 else None
        about = plan.releases, data.records, config.batch_size, size, rarest
        notes = (*notes, *forecast.notes(*about))
    side = ServerSide(
        method=config.method,
        model=ServerModel(model, task),
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
        head=_final_head(config, data.task, side.model, partial(made, where=PROCESSOR)),
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


def _check_goal(config: ExperimentConfig, data: VerticalData) -> None:
    """Raise ConfigError if early stopping waits for an accuracy in a regression."""
    goal = config.early_stopping.accuracy
    if goal is not None and isinstance(data.task, Regression):
        raise ConfigError(
            f"early_stopping.accuracy is {goal} but {data.name} is a regression, which has none; "
            "use early_stopping.patience"
        )


def _own_columns(
    config: ExperimentConfig, data: VerticalData
) -> tuple[dict[Purpose, Tensor], models.OwnFeatures | None]:
    """The label holder's own columns by partition, and the features that its encoder reads.

    Raises ConfigError if it has columns that nothing would use.
    """
    if data.own is None:
        return {}, None
    options, features = config.server, data.own.values["train"]
    own = {purpose: rows.flatten(1).float() for purpose, rows in data.own.values.items()}
    if options.reads_own:
        return own, models.OwnFeatures(options.encoder, features, data.own.cardinalities)
    if options.final_head == "private":
        additive, name = config.method.additive, config.method.name
        who = f"method {name!r}" if additive else "server.model 'sum'"
        raise ConfigError(
            f"{who} adds up the clients' numbers alone, but the label holder has columns of its "
            f"own ({data.own.name}), which nothing would use; set server.final_head to 'logistic' "
            f"or 'boosting', or {'take another method' if additive else 'server.model to mlp'}"
        )
    return own, None


def _final_head(
    config: ExperimentConfig,
    task: Task,
    served: ServerModel,
    model: Callable[[], DifferentiableModel],
) -> FinalHead | None:
    """The raw head that the configuration names, or several to choose from; None for none.

    ``served`` is the server's model; ``model`` makes an untrained copy of it.
    """

    def made(kind: HeadName) -> FinalHead:
        if kind == "private":
            return Served(served)
        if kind == "refit":
            return Refitted(ServerModel(model(), task))
        assert kind != "auto"
        assert not isinstance(task, MultiLabel), "a configuration with several labels has no such"
        return Fitted(kind, task)

    kind = config.server.final_head
    if kind == "private":
        return None
    return Chosen({each: made(each) for each in heads_of(config)}) if kind == "auto" else made(kind)


def _check_sums(config: ExperimentConfig, labels: int, dims: Sequence[int]) -> None:
    """Raise ConfigError if a server sums embeddings that are no logits of several labels."""
    if config.server.reads_own or not config.data.has_several_labels:
        return
    for client, dim in enumerate(dims):
        if dim != labels:
            raise ConfigError(
                f"server.model is 'sum', which adds up logits of {labels} labels, but client.model "
                f"gives embeddings of {dim} numbers at client {client}; set client.model.outputs "
                f"to {labels}, or server.model to 'mlp'"
            )


def _check_own(model: Model, width: int, own: Mapping[Purpose, Tensor]) -> None:
    """Raise ConfigError for own features that the encoder refuses, since no query may fail later.

    It may refuse tokens only, which are too large or negative. Under noise it takes all of them:
    nothing that depends on the label holder's columns may end a run.
    """
    for purpose, rows in own.items():
        for place in {int(rows.amax(1).argmax()), int(rows.amin(1).argmin())} if len(rows) else ():
            try:
                model(torch.cat([torch.zeros(1, width), rows[place : place + 1]], 1))
            except ConfigError as error:
                raise ConfigError(f"server.encoder, for {purpose} records: {error}") from None
