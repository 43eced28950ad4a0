"""From a configuration and data to the parties of one simulated federation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.models.base import Model
from vertizo.models.optimizers import Optimizer
from vertizo.party.client import ClientParty
from vertizo.party.server import ServerParty
from vertizo.privacy import guarantee
from vertizo.privacy.embedding_noise import EmbeddingStatement
from vertizo.privacy.events import Releases
from vertizo.privacy.statement import Statement
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.run.build_parties import (
    check_sizes,
    embedding_noise,
    make_client,
    make_server,
    statement_of,
)
from vertizo.run.build_privacy import Charge, record_choice
from vertizo.run.coverage import assumptions, covers
from vertizo.run.data_defaults import complete
from vertizo.run.lengths import planned_rounds
from vertizo.run.simulator import Observer, Simulator


@dataclass
class Federation:
    """The parties, the simulator that runs them, and what a checkpoint needs of both."""

    data: VerticalData
    models: list[Model]
    """Each client's."""
    optimizers: list[Optimizer]
    learning_rates: list[float]
    """Each client's, given or chosen."""
    server: ServerParty
    clients: list[ClientParty]
    simulator: Simulator
    total_rounds: int
    covers: tuple[str, ...] = ("labels",)
    """What of a training record reaches clients through the server's noise alone."""
    assumptions: tuple[str, ...] = ()
    """What a guarantee rests on that was tried and not proved."""
    releases: Releases | None = None
    """All that may depend on one record, where replies carry noise."""
    embedding_noise: EmbeddingStatement | None = None
    """What noise on the clients' embeddings comes to, where there is some."""
    notes: tuple[str, ...] = ()
    """What people should know of the models."""

    def start(self, *, upload_table: bool) -> None:
        """Begin a new run."""
        if upload_table:
            self.simulator.upload("train", self.data.records)
        self.simulator.start()

    def statement(self) -> Statement:
        """What the run guarantees."""
        statement = statement_of(self.server, self.data, self.covers, self.embedding_noise)
        return statement.assuming(self.assumptions)

    def spent(self, statement: Statement) -> dict[str, Any]:
        """How much was clipped so far, and the ε of what was answered, where these mean something.

        Args:
            statement: what the whole run guarantees.
        """
        server, plan = self.server, self.server.side.plan
        figures: dict[str, Any] = {}
        if plan.clip_fraction is not None:
            figures["clip_fraction"] = plan.clip_fraction
        if statement.epsilon is not None and self.releases is not None:
            assert statement.delta is not None, "which comes with ε"
            # Simulated clients name every record once an epoch, so that this counts the most.
            per_epoch = self.clients[0].batches.per_epoch
            answered = [server.next_number(client) for client in range(server.clients)]
            named = sum(math.ceil(number / per_epoch) for number in answered)
            epsilon = guarantee.epsilon_so_far(
                self.releases, statement.delta, named=named, steps=plan.steps
            )
            figures["epsilon"] = min(epsilon, statement.epsilon)
        return figures

    def privacy(self) -> dict[str, Any]:
        """The statement, and what noise on embeddings comes to, for ``summary.json``."""
        noise = self.embedding_noise
        return {
            **self.statement().as_dict(),
            "embedding_noise": noise.as_dict() if noise is not None else None,
        }

    def parameters(self) -> dict[str, Any]:
        """The models alone: all parameters, and what else belongs to a model; live."""
        return {
            "clients": [model.state() for model in self.models],
            "server": self.server.side.model.state(),
        }

    def load_parameters(self, state: Mapping[str, Any]) -> None:
        """Put the models' states in place.

        Raises:
            KeyError, TypeError, ValueError: they are those of other models.
        """
        for model, values in zip(self.models, state["clients"], strict=True):
            model.load(values)
        self.server.side.model.load(state["server"])

    def state(self) -> dict[str, Any]:
        """Everything a run needs to go on as if it had never stopped."""
        return {
            "parameters": self.parameters(),
            "optimizers": [optimizer.state() for optimizer in self.optimizers],
            "clients": [client.state() for client in self.clients],
            "server": self.server.state(),
            "simulator": self.simulator.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self.load_parameters(state["parameters"])
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load(values)
        for client, values in zip(self.clients, state["clients"], strict=True):
            client.load(values)
        self.server.load(state["server"])
        self.simulator.load(state["simulator"])


def build(
    config: ExperimentConfig,
    data: VerticalData,
    *,
    observer: Observer | None = None,
    charge: Charge | None = None,
) -> Federation:
    """All parties of one experiment, in one process.

    Args:
        config: of the run.
        data: its records.
        observer: sees every frame on the wire.
        charge: what the run is charged to; None for a ledger of its own.

    Raises:
        ConfigError: parts of the configuration do not fit each other or the data.
    """
    config = complete(config, data)
    root = Stream.from_seed(config.seed)
    parties = len(data.parties)
    check_sizes(config, data.records)
    for straggler in config.simulation.stragglers:
        if not 0 <= straggler < parties:
            raise ConfigError(
                f"simulation.stragglers names client {straggler}; clients are 0 to {parties - 1}"
            )
    config.method.check(parties)
    cardinalities = data.cardinalities or ((),) * parties
    shared = [root.child("shared", m) for m in range(parties)]
    public = record_choice(config)
    noise = embedding_noise(config, data.records)
    encode = _giving(config, observed=observer is not None)
    made = [
        make_client(
            config,
            m,
            data.features[m],
            root,
            clients=parties,
            cardinalities=cardinalities[m],
            shared=shared[m],
            public=public,
            noise=noise,
            encode=encode,
        )
        for m in range(parties)
    ]
    dims = [client.embedding_dim for client in made]
    server = make_server(
        config, data, dims, root.child("server"), shared, public, charge=charge, encode=encode
    )
    clients = [client.party for client in made]
    simulator = Simulator(
        clients,
        server,
        config.simulation,
        root.child("links"),
        synchronous=config.simulation.timing == "synchronous",
        queries_per_client=config.epochs * clients[0].batches.per_epoch,
        observer=observer,
    )
    covered = covers(config, data, models_mix=any(client.mixes_records for client in made))
    return Federation(
        data=data,
        models=[client.model for client in made],
        optimizers=[client.optimizer for client in made],
        learning_rates=[client.learning_rate for client in made],
        server=server,
        clients=clients,
        simulator=simulator,
        total_rounds=planned_rounds(config, data),
        covers=covered,
        assumptions=assumptions(config, data, covered),
        releases=server.side.plan.releases,
        embedding_noise=noise,
        notes=tuple(
            dict.fromkeys([*(n for client in made for n in client.notes), *server.side.notes])
        ),
    )


def _giving(config: ExperimentConfig, *, observed: bool) -> wire.Encode:
    """How messages pass within this process: as they are, where bytes would say the same.

    Nothing is known of a codec but that float32 numbers come back exactly without one.
    """
    codecs = config.codecs
    exact = all(
        isinstance(codec, NoCompression) and codec.dtype == "float32"
        for codec in (codecs.up, codecs.down)
    )
    return wire.InProcessFrame if exact and not observed else wire.encode
