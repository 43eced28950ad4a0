"""Adversaries of the audit: colluding clients that guess the label from the replies.

All clients collude, and choose how to train: `Malicious` and `Measuring` send the queries that
tell them most, `Honest` follows the protocol, `FinalModel` is given the server's model in the end.
The malicious ones' queries do not depend on replies, so they are prepared once and sent in every
trial. `CraftedTangents` and `SeesRelease` play other methods, and private labels.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.config.architectures import SumConfig
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.lab.audit.crafting import Crafter, Pair, values
from vertizo.lab.audit.setting import WORLDS, Setting, World
from vertizo.methods.base import Answered
from vertizo.methods.directional_queries import AlongDirections
from vertizo.models.base import Points
from vertizo.models.losses import Regression
from vertizo.party.checks import mended
from vertizo.party.private_updates import SecretSgd
from vertizo.party.server import ServerParty
from vertizo.party.table import EmbeddingTable
from vertizo.privacy.labels.private_labels import Teacher
from vertizo.protocol import wire
from vertizo.protocol.messages import Query, Reply, Upload
from vertizo.run.build.labels import PrivateLabels
from vertizo.run.loop.simulator import Way
from vertizo.testing.hard_rows import Rows

COMPANIONS = 7
"""Most other records beside the target in a malicious batch; they add exactly 0 to the sum."""
FAR = 1e5
"""Value of the target in the uploads of `SeesRelease`, where other records are at 0."""
SIZE = 1e4
"""Length of a tangent: far beyond any clip, and short enough that steps along it can be undone."""
TRIES = 200
"""Number of rows of embeddings that are tried for the record by `FinalModel`."""
STAGES = 3
"""Number of models at which each row is tried: the initial one, and others moved by noise."""
SHADOWS = 8
"""Number of pairs of shadows whose mean gives the direction in which the label moves the model."""


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


class CraftedTangents:
    """Malicious clients with crafted tangents, for methods that ask along directions.

    The target's tangents are so long that its label moves its K numbers from norm C on one side of
    0 to norm C on the other; all other records have none, and add exactly nothing. The reply is
    linear in the release, number by number, with factors that everybody knows: they are divided
    out. Where the server moves its copy of the embeddings by its step, the next client, who knows
    the step, moves them back.

    ``size`` is the length of the target's tangents; any float, which the server may mend.
    ConfigError unless the setting's method asks along directions, and its server sums.
    """

    name = "malicious"
    statistic = "sum of what was released, along the direction in which the label moves it"

    def __init__(self, setting: Setting, size: float = SIZE) -> None:
        config, method = setting.config, setting.config.method
        model = config.server.model
        if not (isinstance(method, AlongDirections) and isinstance(model, SumConfig)):
            raise ConfigError(
                f"method is {method.name!r} and server.model {model.name!r}; tangents are crafted "
                "for 'tangent' or 'label-statistic', and 'sum'"
            )
        self._setting, self._method, self._size = setting, method, size
        others = torch.arange(setting.data.records)
        others = others[others != setting.record][: config.batch_size - 1]
        self._ids = torch.cat([torch.tensor([setting.record]), others])
        self._dims = setting.side.table.dims
        self._prepared = {dim: self._prepare(dim) for dim in set(self._dims)}

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Play all queries of all clients; return the sum of the releases, times B, [1]."""
        setting, server = self._setting, self._setting.server(world, seed)
        rows = [torch.zeros(dim) for dim in self._dims]  # of the target, where the server has them
        found = 0.0
        for number in range(setting.config.epochs):
            for client, dim in enumerate(self._dims):
                sent, along, factors = self._prepared[dim]
                rows[client] = torch.zeros(dim)
                rows[client] = self._middle - torch.stack(rows).sum(0)
                sent[0, 0] = rows[client]
                query = Query(client, number, self._ids, sent)
                frame = wire.encode(query, setting.config.codecs.up)
                told = torch.from_numpy(values(setting, server, frame)[: len(along)])
                released = (told / factors).nan_to_num(0.0, 0.0, 0.0)
                found += float(along @ released)
                moved = self._answered(sent, released.float()).moved
                if moved is not None:
                    rows[client] = moved[0]
        return np.array([found * setting.config.batch_size])

    def _prepare(self, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """Prepare the queries of a client with embeddings of size ``dim``.

        Returns embeddings and tangents, but for the target's embedding, [1 + K, batch, d_h]; the
        unit vector along which the label moves the release, [K]; and the factor of each of its
        numbers in the reply, [K].
        """
        count, contrast = self._method.num_directions, self._contrast(dim)
        shares = torch.linspace(1, 2, count)  # not alike, as those of honest clients
        sent = torch.zeros(1 + count, len(self._ids), dim)
        sent[1:, 0] = self._size * torch.outer(shares / shares.norm(), contrast)
        arrived = mended(sent, self._setting.config.server.embedding_bound)
        along = (arrived[1:, 0] @ contrast).double()
        factors = self._answered(sent, torch.ones(count)).values[:count].double()
        return sent, along / along.norm().clamp(min=1e-300), factors

    def _answered(self, sent: Tensor, released: Tensor) -> Answered:
        """Compute the method's reply to a query, and its step, from a release."""
        arrived = mended(sent, self._setting.config.server.embedding_bound)
        query = Query(0, 0, self._ids, arrived)
        return self._method.answered(query, released, self._setting.side.plan.noise_std)

    def _contrast(self, dim: int) -> Tensor:
        """Return the direction along which the label moves a slope from above 0 to below, [d_h]."""
        if dim == 1:
            return torch.ones(1)
        contrast = torch.zeros(dim)
        for sign, label in zip((-1.0, 1.0), self._setting.labels, strict=True):
            contrast[int(label)] = sign
        return contrast

    @property
    def _middle(self) -> float:
        """The sum of embeddings at which the two labels' slopes are opposite numbers."""
        is_regression = isinstance(self._setting.data.task, Regression)
        return sum(self._setting.labels) / 2 if is_regression else 0.0


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
