"""Where attacks take place: a federation is trained, and adversaries are made of what they saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from vertizo.attacks.adversaries import (
    CuriousClient,
    CuriousServer,
    Eavesdropper,
    Public,
    ReleasedModel,
)
from vertizo.attacks.transcript import Reader, Transcript
from vertizo.config.schema import ExperimentConfig
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.methods.base import ClientPair
from vertizo.party.batches import Batches
from vertizo.party.client import ClientParty
from vertizo.protocol import wire
from vertizo.protocol.messages import Purpose, Query
from vertizo.run.federation import Federation, build
from vertizo.run.loop import Training
from vertizo.run.simulator import Way

Intruder = Callable[[Public, Batches], tuple[ClientPair, Batches]]
"""From public knowledge and a client's order of records to what the intruder sends, and about
which records (its own choice where clients draw the batches)."""

CURIOUS = 0
"""The client that attacks, where one does."""


@dataclass
class Watched:
    """The server's side of the curious client's queries, by query number."""

    parameters: dict[int, Tensor] = field(default_factory=dict)
    """w_0 [d_0] when the query arrived."""
    rows: dict[int, Tensor] = field(default_factory=dict)
    """The table's rows that it was answered from, [batch, Σ d_h]: for scoring."""

    def forget(self, before: int) -> None:
        """Drop what is older than query ``before``."""
        for kept in (self.parameters, self.rows):
            for number in [n for n in kept if n < before]:
                del kept[number]


@dataclass
class Arena:
    """A trained federation and the frames that were seen."""

    config: ExperimentConfig
    data: VerticalData
    federation: Federation
    transcript: Transcript
    watched: Watched
    """What the server had at the curious client's last queries, if that was asked for."""

    @property
    def label_mu(self) -> float | None:
        """μ of the run's guarantee for labels, exact or simulated; None where there is none."""
        statement = self.federation.statement()
        secret = getattr(statement, "secret_steps", None)  # these have no equivalent μ
        return statement.mu if statement.is_bounded and secret is None else None

    def public(self) -> Public:
        """What everybody knows."""
        return public(self.config, self.data, self.federation.server.side.table.dims)

    def _reader(self) -> Reader:
        return Reader.of(self.config, self.data.records)

    def eavesdropper(self) -> Eavesdropper:
        """Somebody on the wire."""
        return Eavesdropper(self.public(), self._reader().exchanges(self.transcript))

    def client(self, index: int = CURIOUS) -> CuriousClient:
        """One of the clients."""
        return CuriousClient(
            public=self.public(),
            index=index,
            features=self.data.features[index]["train"],
            exchanges=self._reader().exchanges(self.transcript, index),
            model=self.federation.models[index],
            shared=_root(self.config).child("shared", index),
        )

    def server(self, known: Mapping[int, Tensor]) -> CuriousServer:
        """The server, and who knows some records' features at some clients."""
        return CuriousServer(
            public=self.public(),
            exchanges=self._reader().exchanges(self.transcript),
            labels=self.data.labels["train"],
            known=known,
            known_features={m: self.columns(m)[ids] for m, ids in known.items()},
        )

    def columns(self, client: int) -> Tensor:
        """A client's training features as rows of float32, [D, columns]."""
        return self.data.features[client]["train"].flatten(1).to(torch.float32)

    def released(self, population: Tensor) -> ReleasedModel:
        """Whoever is given the trained model, and has some test records ``population`` [rows]."""
        features = [own["test"][population] for own in self.data.features]
        return ReleasedModel(self.logits, features, self.data.labels["test"][population])

    def logits(self, features: Sequence[Tensor]) -> Tensor:
        """The joint model's logits for all parties' features of some records."""
        parts = [m(x) for m, x in zip(self.federation.models, features, strict=True)]
        side = self.federation.server.side
        return side.model.logits(side.table.combine(torch.cat(parts, 1)))

    def features(self, purpose: Purpose) -> list[Tensor]:
        """All parties' features of one partition."""
        return [own[purpose] for own in self.data.features]


def _root(config: ExperimentConfig) -> Stream:
    return Stream.from_seed(config.seed)


def public(config: ExperimentConfig, data: VerticalData, dims: Sequence[int]) -> Public:
    """What everybody knows of a configured federation."""
    noised = config.privacy.mechanism == "gaussian"
    return Public(
        method=config.method,
        batch_size=config.batch_size,
        records=data.records,
        outputs=data.task.outputs,
        dims=tuple(dims),
        server_model=config.server.model,
        join=config.server.join,
        embedding_bound=config.server.embedding_bound,
        clip=config.privacy.clip if noised else None,
        noise_std=config.privacy.noise_std if noised else None,
    )


def train(
    config: ExperimentConfig,
    data: VerticalData,
    *,
    intruder: Intruder | None = None,
    latest: int | None = None,
    watch_server: bool = False,
) -> Arena:
    """Train a federation to the end with every frame recorded.

    Args:
        config: as for `Experiment`; runs in memory.
        data: cut between the parties.
        intruder: takes the place of client `CURIOUS`; None for honest clients only.
        latest: keep the last so many queries of each client; None for all.
        watch_server: also note what the server has at the last queries of client `CURIOUS`.

    Raises:
        ConfigError: the configuration does not fit the data.
        RunError: training diverged.
    """
    torch.set_num_threads(config.threads)
    codecs = config.codecs.model_copy(update={"ids": "sent"})  # no secret either way, and readable
    config = config.model_copy(update={"codecs": codecs})
    whole = None if config.codecs.feedback in ("up", "both") else latest
    transcript = Transcript(whole)
    watched = Watched()
    federation: Federation

    def observe(time: float, way: Way, client: int, frame: bytes) -> None:
        transcript(time, way, client, frame)
        if watch_server and client == CURIOUS:
            _watch(watched, federation, way, config, latest)

    federation = build(config, data, observer=observe)
    if intruder is not None:
        federation.clients[CURIOUS] = _party(config, data, federation, intruder)
    Training(federation).run(resume=False)
    return Arena(config, data, federation, transcript, watched)


def _watch(
    watched: Watched,
    federation: Federation,
    way: Way,
    config: ExperimentConfig,
    latest: int | None,
) -> None:
    """Note what the server has as the curious client's query arrives, and once it is answered."""
    party = federation.clients[CURIOUS]
    side, number = federation.server.side, party.answered
    if way == "up":
        watched.parameters[number] = side.model.parameters.clone()
        if latest is not None:
            watched.forget(number - latest + 1)
    elif number in watched.parameters:  # else it is the announcement of the next round
        message = wire.decode(party.ask(), config.codecs.up)  # the open query, once more
        assert isinstance(message, Query)
        watched.rows[number] = side.table.values[message.ids]


def _party(
    config: ExperimentConfig, data: VerticalData, federation: Federation, intruder: Intruder
) -> ClientParty:
    """A client party that says what an intruder wants it to say."""
    dims = federation.server.side.table.dims
    own = federation.clients[CURIOUS].batches
    pair, batches = intruder(public(config, data, dims), own)
    return ClientParty(
        index=CURIOUS,
        pair=pair,
        features=data.features[CURIOUS],
        embed=federation.models[CURIOUS],
        batches=batches,
        up=config.codecs.up,
        down=config.codecs.down,
        reply_shape=partial(config.method.reply_shape, embedding_dim=dims[CURIOUS]),
    )
