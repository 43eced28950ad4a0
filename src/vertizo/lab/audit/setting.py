"""What the game is about: a configuration, its data, one record of it, and two labels.

Everybody who plays knows all of it but which of the two labels the record has, and knows the server
model's first parameters: differential privacy must hold against those who know that much. All that
differs from one trial to the next are the seeds of noise and of whatever else the server draws, and
of the clients that follow the protocol.
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
"""Which of the two labels the record has."""
WORLDS: tuple[World, World] = (0, 1)


class Setting:
    """A federation in two worlds that differ in one label.

    Args:
        config: method dpzv, tangent or label-statistic, asynchronous; its seed decides the server's
            first parameters. What it leaves open is chosen by the data.
        data: what the federation trains on.
        record: the record whose label differs.
        labels: the two; None for its own and the next class, or the lowest and the highest.

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
        """A federation of world 0 as it is before any query; nobody plays on it."""
        self._made: dict[World, tuple[ServerParty, dict[str, Any]]] = {}
        self._config = _calibrated(config, self.reference.statement())
        self.start = self.reference.server.side.model.parameters.clone()
        """w_0 before the first query, [d_0]."""

    @property
    def side(self) -> ServerSide:
        """The server's first model, its table and the labels of all records but one."""
        return self.reference.server.side

    def federation(
        self,
        world: World,
        seed: int,
        observer: Observer | None = None,
        *,
        repeatable: bool = False,
    ) -> Federation:
        """A new federation of that world, w_0 as in every other; it draws on nobody's ledger.

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
        """As that of `federation`, for callers that play with one at a time.

        One whose replies alone carry noise is made once for each world, and put back.
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
        """Labels of those records in that world, [batch]."""
        return self._worlds[world].labels["train"].index_select(0, ids)

    def slopes(
        self, side: ServerSide, client: int, ids: Tensor, points: Tensor, world: World
    ) -> Tensor:
        """Each record's δ for pairs of embeddings, were it asked now: unclipped, [pairs, batch].

        ``points`` are a client's ``h+`` and ``h−`` in turn, float32 [2 · pairs, batch, d_h].
        """
        inputs = side.table.points(ids, [(client, points)])
        weights = side.weights_of(ids)
        evaluation = side.model.evaluate(inputs, self.labels_of(ids, world), weights=weights)
        losses = evaluation.losses[:-1]
        assert isinstance(self.config.method, Dpzv)
        return two_point(losses[0::2], losses[1::2], self.config.method.smoothing)

    def clipped(self, slopes: Tensor) -> Tensor:
        """What the server makes of one record's δ on its way into the sum, float64."""
        bound = self.config.privacy.clip
        if bound is None:
            return slopes.to(torch.float64)
        return clip(slopes.reshape(-1), bound).view(slopes.shape)

    def expected(
        self, side: ServerSide, client: int, ids: Tensor, points: Tensor, world: World
    ) -> Tensor:
        """The clipped sums of a query's replies before noise, float64 [K]."""
        slopes = self.slopes(side, client, ids, points, world)
        assert isinstance(self.config.method, Dpzv)
        if self.config.method.clipping == "jointly" and self.config.privacy.clip is not None:
            return clip(slopes.t(), self.config.privacy.clip).sum(0)
        return self.clipped(slopes).sum(1)


def _calibrated(config: ExperimentConfig, statement: Statement) -> ExperimentConfig:
    """The same with its noise in place of its ε, which takes long to calibrate to."""
    privacy, secret = config.privacy, statement.secret_steps
    if privacy.mechanism != "gaussian" or privacy.epsilon is None or privacy.noise != "seeded":
        return config
    noise = {"epsilon": None, "accounting": "exact", "noise_std": statement.noise_std}
    noise["server_noise_std"] = (
        statement.server_noise_std
        if secret is None
        else secret["noise_multiplier"] * config.server.clip
    )
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
