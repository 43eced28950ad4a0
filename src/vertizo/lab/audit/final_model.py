"""Adversary of the audit that receives the server's final model, and seeks to move it."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.lab.audit.adversaries import Scripted
from vertizo.lab.audit.setting import WORLDS, Setting, World
from vertizo.models.base import Points
from vertizo.party.private_updates import SecretSgd
from vertizo.party.server import ServerParty
from vertizo.protocol import wire
from vertizo.protocol.messages import Upload
from vertizo.testing.hard_rows import Rows

TRIES = 200
"""Number of rows of embeddings that are tried for the record."""
STAGES = 3
"""Number of models at which each row is tried: the initial one, and others moved by noise."""
SHADOWS = 8
"""Number of pairs of shadows whose mean gives the direction in which the label moves the model."""


class FinalModel(Scripted):
    """Malicious clients that send embeddings at which the label moves w_0 furthest, and read w_0.

    A search over rows that are hard on a clip finds the embeddings for which one step of the real
    update takes the two labels' models furthest apart. An upload, where the federation begins with
    one, and queries about that record alone put them into the record's row of the table.
    ConfigError if the server is not trained, or no embeddings were found that move it by the label.
    """

    name = "malicious, given the final model"
    statistic = "how far w_0 ended along the direction in which the label moves it"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.config.server.update == "none":
            raise ConfigError("server.update is 'none'; there is no trained model to be given")
        config, record = setting.config, setting.record
        parts = torch.split(self._furthest(), list(setting.side.table.dims))
        if config.simulation.table == "upload":
            for client, part in enumerate(parts):  # zeros for all other records
                rows = torch.zeros(1, setting.data.records, len(part))
                rows[0, record] = part
                upload = Upload(client, "train", torch.arange(rows.shape[1]), rows)
                self._uploads.append(wire.encode(upload, config.codecs.up))
        steps_follow = config.server.update == "poisson-dp-sgd" and (
            config.server.secret.every <= setting.reference.total_rounds
        )
        for epoch in range(config.epochs):
            for client, part in enumerate(parts):
                self._store(client, torch.tensor([record]), part)
            for client, part in enumerate(parts) if steps_follow else ():
                for ids in torch.split(self._others(client, epoch), config.batch_size):
                    self._store(client, ids, torch.zeros_like(part))
        self._along = self._direction()

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Play a trial; return how far w_0 moved along the label's direction, [1]."""
        return np.array([float(self._moved(self._played(world, seed)[1]) @ self._along)])

    def _store(self, client: int, ids: Tensor, part: Tensor) -> None:
        """Prepare a query with h+ = h−, which fills those records' rows; its reply tells nothing.

        Their middle is then the chosen row to the last bit, on which the search depends.
        """
        middle = part.expand(ids.numel(), -1)
        self._ask(client, ids, middle, torch.zeros_like(middle), np.zeros_like)

    def _furthest(self) -> Tensor:
        """Search the record's joined embeddings at which the label moves w_0 furthest, [Σ d_h]."""
        setting = self._setting
        width = sum(setting.side.table.dims)
        generator = self._stream.child("rows").generator()
        rows = Rows(generator, width, setting.config.server.embedding_bound)
        servers = [self._on_the_way(turn) for turn in range(STAGES)]
        best, found = 0.0, rows.fresh()
        for turn in range(TRIES):
            row = rows.varied(found) if turn % 2 and best else rows.fresh()
            apart = float(np.mean([self._apart(server, row) for server in servers]))
            if apart > best:
                best, found = apart, row
        if not best:
            raise ConfigError(
                "no embeddings were found with which the label moves the server model"
            )
        return found

    def _on_the_way(self, queries: int) -> ServerParty:
        """Make a server that ``queries`` noisy updates without the record have moved."""
        seed = self._stream.child("on the way").seed(queries)
        server = self._setting.federation(0, seed, repeatable=True).server
        if queries:
            server.train_between_queries()
        for number in range(min(queries, self._setting.config.epochs)):  # its share of the budget
            others = self._others(0, 0)[: self._setting.config.batch_size]
            nothing = torch.zeros(len(others), self._setting.side.table.dims[0])
            server.receive(self._crafter.query(0, number, others, nothing, nothing))
        return server

    def _apart(self, server: ServerParty, row: Tensor) -> float:
        """Return the distance between the two labels' w_0 after one step; its noise cancels."""
        return float((self._stepped(server, row, 1) - self._stepped(server, row, 0)).norm())

    def _stepped(self, server: ServerParty, row: Tensor, world: World) -> Tensor:
        """Compute how one step on the record moves w_0, float64 [d_0]; then restore the server.

        The record is alone in its batch, or in a secret sample of others that are zeros.
        """
        side, update, size = server.side, server.side.update, 1
        if isinstance(update, SecretSgd):
            size = len(update.sample(0, self._setting.data.records)[0])
        ids = torch.full((size,), self._setting.record)
        joined = side.table.points(ids).rows.clone()
        joined[:, : len(row)] = 0
        joined[0, : len(row)] = row
        labels = self._setting.labels_of(ids, world)
        labels[1:], weights = 0, side.weights_of(ids)
        state = deepcopy(update.state())
        start = side.model.parameters.clone()
        with np.errstate(all="ignore"):
            if isinstance(update, SecretSgd):
                update.between(0, side.model, joined, labels, size, size, weights)
            else:
                evaluation = side.model.evaluate(Points(joined), labels, weights=weights)
                update.step(side.model, evaluation, joined, labels)
        moved = side.model.parameters.double() - start.double()
        side.model.parameters.copy_(start)
        update.load(state)
        return moved

    def _direction(self) -> Tensor:
        """Return the unit vector along which the label moves w_0, [d_0]: the mean over shadows."""
        apart = []
        for place in range(SHADOWS):
            seed = self._stream.child("shadows").seed(place)
            ends = (self._played(world, seed, repeatable=True)[1] for world in WORLDS)
            zero, one = map(self._moved, ends)
            apart.append(one - zero)
        return torch.nn.functional.normalize(torch.stack(apart).mean(0), dim=0)

    def _moved(self, server: ServerParty) -> Tensor:
        return server.side.model.parameters.double() - self._setting.start.double()
