"""Adversaries of the audit: colluding clients that guess the label from the replies.

All clients collude, and choose how to train: `Malicious` and `Measuring` send the queries that
tell them most, `Honest` follows the protocol. The malicious ones' queries do not depend on
replies, so they are prepared once and sent in every trial. `SeesRelease` is for private labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.lab.audit.crafting import Crafter, Pair, values
from vertizo.lab.audit.setting import WORLDS, Setting, World
from vertizo.party.server import ServerParty
from vertizo.party.table import EmbeddingTable
from vertizo.privacy.labels.private_labels import Teacher
from vertizo.protocol import wire
from vertizo.protocol.messages import Query, Reply
from vertizo.run.build.labels import PrivateLabels
from vertizo.run.loop.simulator import Way

COMPANIONS = 7
"""Most other records beside the target in a malicious batch; they add exactly 0 to the sum."""
FAR = 1e5
"""Value of the target in the uploads, where other records are at 0."""


class Adversary(Protocol):
    """A player of the audit's game, who plays one trial and returns what it saw."""

    name: str
    statistic: str
    """The number by which it guesses, in words."""

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Play one trial in that world, and return the numbers seen, [numbers]."""


@dataclass(frozen=True)
class _Move:
    """A query that is sent in every trial."""

    frame: bytes
    weights: NDArray[np.float64]
    """Weights of the reply's values in the statistic, [values]."""
    about_target: bool


class Scripted:
    """Base of adversaries that prepare queries once, send them in each trial and sum replies."""

    name: str

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._stream = Stream.from_seed(setting.config.seed).child("audit", self.name)
        self._crafter = Crafter(setting, self._stream)
        self._clients = range(len(setting.data.parties))
        self._numbers = [0 for _ in self._clients]
        self._most = min(setting.config.batch_size - 1, COMPANIONS)
        self._uploads: list[bytes] = []
        self._moves: list[_Move] = []

    def _ask(
        self,
        client: int,
        ids: Tensor,
        middle: Tensor,
        half: Tensor,
        weigh: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        *,
        about_target: bool = False,
    ) -> None:
        """Prepare a query; ``weigh`` maps how far the label moves its reply to the weights."""
        frame = self._crafter.query(client, self._numbers[client], ids, middle, half)
        self._numbers[client] += 1
        weights = weigh(self._crafter.feed(frame))
        self._moves.append(_Move(frame, weights, about_target=about_target))

    def _ask_about_target(self, client: int, pair: Pair, others: Tensor) -> None:
        """Prepare a query about the target; other records in it have h+ = h−, and add nothing."""
        ids = torch.cat([torch.tensor([self._setting.record]), others[: self._most]])
        middle, half = torch.zeros(2, ids.numel(), pair.half.numel())
        middle[0], half[0] = pair.middle, pair.half
        self._ask(client, ids, middle, half, np.ones_like, about_target=True)

    def _others(self, client: int, epoch: int) -> Tensor:
        """Return all records but the target, in the client's order for that epoch."""
        generator = self._stream.child("batches", client).generator(epoch)
        order = generator.permutation(self._setting.data.records)
        return torch.from_numpy(order[order != self._setting.record])

    def _played(
        self, world: World, seed: int, *, repeatable: bool = False
    ) -> tuple[NDArray[np.float64], ServerParty]:
        """Play a trial; return the weighted sums of replies, [2], and the server.

        The first sum is of replies about the target, the second of those about others. The server
        trains as in a run: on what was uploaded before the first query, and after each query.
        """
        server = self._setting.federation(world, seed, repeatable=repeatable).server
        sums, batch_size = np.zeros(2), self._setting.config.batch_size
        for frame in self._uploads:
            server.receive_upload(frame)
        server.train_between_queries()
        for move in self._moves:
            told = values(self._setting, server, move.frame)
            sums[0 if move.about_target else 1] += batch_size * float(told @ move.weights)
        return sums, server


class Malicious(Scripted):
    """Malicious clients: the target's h± are so far apart that its label moves δ from −C to +C.

    All other records have h+ = h−.
    """

    name = "malicious"
    statistic = "sum of the replies about the record"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        moves = setting.config.server.update != "none"
        pairs: dict[int, Pair] = {}
        for epoch in range(setting.config.epochs):
            for client in self._clients:
                if moves or client not in pairs:
                    pairs[client] = self._crafter.target(client)
                self._ask_about_target(client, pairs[client], self._others(client, epoch))

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Play a trial; return the sum of the replies about the target, times B, [1]."""
        return self._played(world, seed)[0][:1]


class Measuring(Scripted):
    """Malicious clients that also ask about records of known labels, to measure how far w_0 moved.

    The target's embeddings lie far out, where a server that trains on its label moves far. Each of
    the at most ``probes`` replies about others is weighted by how much it differed between two
    shadow servers.
    """

    name = "malicious, measuring w_0"
    statistic = "sums of the replies about the record and of those about others"

    def __init__(self, setting: Setting, probes: int = 12) -> None:
        super().__init__(setting)
        epochs, batch_size = setting.config.epochs, setting.config.batch_size
        left = probes
        for epoch in range(epochs):
            spare, middles = [], []
            for client in self._clients:
                others = self._others(client, epoch)
                pair = self._crafter.target(client, far=True)
                self._ask_about_target(client, pair, others)
                spare.append(torch.split(others[self._most :], batch_size))
                middles.append(pair.middle)
            now = min(-(-left // (epochs - epoch)), sum(map(len, spare)))
            left -= now
            for probe in range(now):
                turn, client = divmod(probe, len(self._clients))
                ids = spare[client][turn]
                half = self._crafter.probe(client, ids, middles[client])
                self._ask(client, ids, torch.zeros_like(half), half, lambda signal: signal)

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Play a trial; return the sums about the target and about others, times B, [2]."""
        return self._played(world, seed)[0]


@dataclass
class _Listener:
    """An observer of one trial that adds up the evidence in its queries and replies."""

    setting: Setting
    noise_std: float
    evidence: float = 0.0
    """Log-likelihood ratio of the replies so far, world 1 against world 0."""
    _queries: dict[int, Query] = field(default_factory=dict)
    _answered: set[tuple[int, int]] = field(default_factory=set)

    def __call__(self, now: float, way: Way, client: int, frame: bytes) -> None:
        codecs = self.setting.config.codecs
        message = wire.decode(frame, codecs.up if way == "up" else codecs.down)
        if isinstance(message, Query):
            self._queries[client] = message
        elif isinstance(message, Reply) and (client, message.number) not in self._answered:
            self._answered.add((client, message.number))
            self._learn(self._queries[client], message)

    def _learn(self, query: Query, reply: Reply) -> None:
        setting, side = self.setting, self.setting.side
        side.table.store(query.client, query.ids, query.embeddings.mean(0), 0)
        if not bool((query.ids == setting.record).any()):
            return
        zero, one = (
            setting.expected(side, query.client, query.ids, query.embeddings, world)
            for world in WORLDS
        )
        total = setting.config.batch_size * reply.values.double().ravel()
        ratio = (one - zero) * (total - (zero + one) / 2) / self.noise_std**2
        self.evidence += float(ratio.sum())


class Honest:
    """Clients that follow the protocol, and compute a likelihood ratio from all replies.

    They assume that w_0 does not move; where it does, the ratio is off, and the bound weaker.
    """

    name = "following the protocol"
    statistic = "log-likelihood ratio of all replies, w_0 known"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._noise_std = setting.reference.statement().noise_std or 1.0

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Play a trial; return the log-likelihood ratio of all replies, [1]."""
        listener = _Listener(self._setting, self._noise_std)
        federation = self._setting.federation(world, seed, listener)
        table: EmbeddingTable = self._setting.side.table
        federation.start(upload_table=self._setting.config.simulation.table == "upload")
        table.load(federation.server.side.table.state())  # empty, or what the clients uploaded
        while federation.server.round < federation.total_rounds and federation.simulator.step():
            pass
        return np.array([listener.evidence])


class SeesRelease:
    """An adversary that sees the release behind private labels; training reveals nothing beyond.

    Under randomised response it is the target's own private label. Under a teacher it is each
    class's noised sum; all clients upload the embeddings that reveal the target's label best, which
    put the target far from all others.
    """

    name = "sees the release"
    statistic = "what speaks for one label, less what speaks for the other"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        if setting.reference.server.private_labels is None:
            raise ConfigError("privacy.mechanism makes no labels private; the audit takes one")

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Make the private labels in that world; return the statistic of their release, [1]."""
        setting, first_and_second = self._setting, [int(label) for label in self._setting.labels]
        server = setting.federation(world, seed).server
        source, labels = server.private_labels, server.labels["train"]
        assert isinstance(source, PrivateLabels), "of a run"
        if isinstance(source.maker, Teacher):
            rows = torch.zeros(len(labels), source.maker.width * len(setting.data.parties))
            rows[setting.record, 0] = FAR
            inputs = source.maker.inputs(rows)
            released = source.maker.released(labels, inputs)[:, first_and_second]
            spoken = inputs[setting.record] @ released
        else:
            own = int(source.make(labels, None)[setting.record])
            spoken = torch.tensor([float(own == label) for label in first_and_second])
        return np.array([float(spoken[1] - spoken[0])])
