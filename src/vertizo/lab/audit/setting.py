"""The setting of the audit's game: a configuration, its data, one record, and two labels for it.

An adversary knows all of it except which of the two labels the record has, and knows the server
model's initial parameters: differential privacy must hold against an adversary who knows that much.
Trials differ only in the seeds of noise, of the server's other draws, and of the clients that
follow the protocol.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.data.vertical import VerticalData
from vertizo.methods.directional_queries import AlongDirections
from vertizo.methods.dpzv import Dpzv
from vertizo.models.losses import MultiLabel, Regression
from vertizo.party.server import ServerParty
from vertizo.party.server_model import ServerSide
from vertizo.privacy.clipping import clip
from vertizo.privacy.statement import Statement
from vertizo.run.build.data_defaults import complete
from vertizo.run.loop.federation import Federation, build
from vertizo.run.loop.simulator import Observer
from vertizo.zeroth_order.estimators import two_point

World = Literal[0, 1]
"""The world, by which of the two labels the record has."""
WORLDS: tuple[World, World] = (0, 1)


class Setting:
    """A federation in two worlds that differ in one label.

    Args:
        config: method dpzv, tangent or label-statistic, asynchronous; its seed decides the server's
            initial parameters. Unset keys are completed from the data.
        data: the federation's data.
        record: ID of the record whose label differs.
        labels: the two labels; None for the record's own and the next class, or, in a regression,
            for the lowest and the highest label.

    Raises:
        ConfigError: the game cannot be played on this configuration.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        data: VerticalData,
        record: int = 0,
        labels: tuple[float, float] | None = None,
    ) -> None:
        if not isinstance(config.method, Dpzv | AlongDirections):
            raise ConfigError(
                f"method is {config.method.name!r}; the audit's game is about replies of 'dpzv', "
                "'tangent' or 'label-statistic'"
            )
        config = complete(config, data)
        choosing = "the audit's clients choose their batches, which takes"
        for key, value, wanted, words in (
            ("simulation.timing", config.simulation.timing, "asynchronous", choosing),
            ("codecs.feedback", config.codecs.feedback, "none", "the audit's game takes"),
            ("codecs.ids", config.codecs.ids, "sent", choosing),
        ):
            if value != wanted:
                raise ConfigError(f"{key} is {value!r}; {words} {wanted!r}")
        if config.privacy.mechanism == "embedding-noise":
            raise ConfigError(
                "privacy.mechanism is 'embedding-noise', which protects no label; the audit's "
                "game takes 'gaussian' or 'none'"
            )
        if not 0 <= record < data.records:
            raise ConfigError(
                f"record is {record}; there are {data.records} training records, from 0"
            )
        self.config = config
        self.data = data
        self.record = record
        self.labels = labels if labels is not None else _two_labels(data, record)
        self._worlds = tuple(_with_label(data, record, label) for label in self.labels)
        self.reference = build(config, self._worlds[0])
        """A federation of world 0 before any query; no trial is played on it."""
        self._made: dict[World, tuple[ServerParty, dict[str, Any]]] = {}
        self._config = _calibrated(config, self.reference.statement())
        self.start = self.reference.server.side.model.parameters.clone()
        """w_0 before the first query, [d_0]."""

    @property
    def side(self) -> ServerSide:
        """The server side of the reference federation: its initial model and its table."""
        return self.reference.server.side

    def federation(
        self, world: World, seed: int, observer: Observer | None = None, *, repeatable: bool = False
    ) -> Federation:
        """Build a new federation of that world, with the same initial w_0 as all others.

        If ``repeatable``, noise follows the seed as well, even if the configuration's does not.
        """
        config = self._config.model_copy(update={"seed": seed})
        if repeatable:
            seeded = config.privacy.model_copy(update={"noise": "seeded"})
            config = config.model_copy(update={"privacy": seeded})
        made = build(config, self._worlds[world], observer=observer)
        made.server.side.model.parameters.copy_(self.start)
        return made

    def server(self, world: World, seed: int) -> ServerParty:
        """Return the server of a `federation`, for callers that play with one at a time.

        If the server model does not train, one server a world is made once, and reset each time.
        """
        if self.config.server.update != "none":
            return self.federation(world, seed).server
        if world not in self._made:
            made = self.federation(world, 0).server
            self._made[world] = made, deepcopy(made.state())
        server, state = self._made[world]
        server.load(state)
        if "made" in (plan := server.side.plan.state()):
            plan["made"] = seed >> 2  # a release's number decides its noise
            server.side.plan.load(plan)
        return server

    def labels_of(self, ids: Tensor, world: World) -> Tensor:
        """Return the labels of those records in that world, [batch]."""
        return self._worlds[world].labels["train"].index_select(0, ids)

    def slopes(
        self, side: ServerSide, client: int, ids: Tensor, points: Tensor, world: World
    ) -> Tensor:
        """Compute each record's unclipped δ for pairs of embeddings, [pairs, batch].

        ``points`` are a client's ``h+`` and ``h−`` in turn, float32 [2 · pairs, batch, d_h].
        """
        inputs = side.table.points(ids, [(client, points)])
        weights = side.weights_of(ids)
        evaluation = side.model.evaluate(inputs, self.labels_of(ids, world), weights=weights)
        losses = evaluation.losses[:-1].cpu()
        assert isinstance(self.config.method, Dpzv)
        return two_point(losses[0::2], losses[1::2], self.config.method.smoothing)

    def clipped(self, slopes: Tensor) -> Tensor:
        """Clip each record's δ as the server does before it sums them, float64."""
        bound = self.config.privacy.clip
        if bound is None:
            return slopes.to(torch.float64)
        return clip(slopes.reshape(-1), bound).view(slopes.shape)

    def expected(
        self, side: ServerSide, client: int, ids: Tensor, points: Tensor, world: World
    ) -> Tensor:
        """Compute the clipped sums of a query's reply before noise, float64 [K]."""
        slopes = self.slopes(side, client, ids, points, world)
        assert isinstance(self.config.method, Dpzv)
        if self.config.method.clipping == "jointly" and self.config.privacy.clip is not None:
            return clip(slopes.t(), self.config.privacy.clip).sum(0)
        return self.clipped(slopes).sum(1)


def _calibrated(config: ExperimentConfig, statement: Statement) -> ExperimentConfig:
    """Replace a configuration's ε by the noise calibrated to it, which takes long to find again."""
    privacy, secret = config.privacy, statement.secret_steps
    if privacy.mechanism != "gaussian" or privacy.epsilon is None or privacy.noise != "seeded":
        return config
    of_server = statement.server_noise_std
    if secret is not None:
        of_server = secret["noise_multiplier"] * config.server.clip
    noise: dict[str, Any] = {"noise_std": statement.noise_std, "server_noise_std": of_server}
    noise |= {"epsilon": None, "accounting": "exact"}
    return config.model_copy(update={"privacy": privacy.model_copy(update=noise)})


def _two_labels(data: VerticalData, record: int) -> tuple[float, float]:
    if isinstance(data.task, MultiLabel):
        raise ConfigError("data.label is a list; the audit exchanges one label: name one of them")
    labels = data.labels["train"]
    if not isinstance(data.task, Regression):
        own = int(labels[record])
        return own, (own + 1) % data.task.outputs
    low, high = float(labels.min()), float(labels.max())
    if low == high:
        raise ConfigError(f"all labels of {data.name} are {low:g}; the game takes two")
    return low, high


def _with_label(data: VerticalData, record: int, label: float) -> VerticalData:
    labels = data.labels["train"].clone()
    labels[record] = label
    return replace(data, labels={**data.labels, "train": labels})
