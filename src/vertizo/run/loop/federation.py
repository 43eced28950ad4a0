"""A simulated federation: all parties in one process, made from a configuration and data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.core.state import Stateful
from vertizo.core.text.suggestions import nearest
from vertizo.data.vertical import VerticalData
from vertizo.party.server import ServerParty
from vertizo.privacy.accounting import guarantee
from vertizo.privacy.accounting.events import Releases
from vertizo.privacy.noise.embedding import EmbeddingStatement
from vertizo.privacy.statement import Statement
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.run.build.client import MadeClient, embedding_noise, make_client
from vertizo.run.build.coverage import statement_of
from vertizo.run.build.data_defaults import complete
from vertizo.run.build.label_free import controlled
from vertizo.run.build.placement import placed
from vertizo.run.build.privacy import Charge, record_choice
from vertizo.run.build.schedule import check_sizes, planned_rounds, steps_of_client
from vertizo.run.build.server import make_server
from vertizo.run.loop.simulator import Observer, Simulator


@dataclass
class Federation(Stateful):
    """The parties, the simulator that runs them, and what a checkpoint needs of both."""

    STATE = ("parameters", "optimizers", "clients", "server", "simulator")

    config: ExperimentConfig
    """The complete configuration."""
    data: VerticalData
    made: list[MadeClient]
    server: ServerParty
    simulator: Simulator
    embedding_noise: EmbeddingStatement | None
    """The guarantee of noise on the clients' embeddings; None without such noise."""

    def __post_init__(self) -> None:
        self.clients = self.simulator.clients
        self.models = [client.model for client in self.made]
        self.optimizers = [client.optimizer for client in self.made]
        self.learning_rates = [client.learning_rate for client in self.made]
        self.total_rounds = planned_rounds(self.config, self.data)
        notes = [note for client in self.made for note in client.notes]
        self.notes = tuple(dict.fromkeys([*notes, *self.server.side.notes]))
        """Notes for users on the models, a line each."""

    @property
    def releases(self) -> Releases | None:
        """Releases that may depend on one record; None if replies carry no noise."""
        return self.server.side.plan.releases

    def start(self, *, upload_table: bool) -> None:
        """Begin a new run: upload what is needed, then let every client ask."""
        self.upload(table=upload_table)
        self.simulator.start()

    def upload(self, *, table: bool) -> None:
        """Upload what is needed before the first query, and make private labels."""
        if self.server.wants_teaching:
            self.simulator.upload("teacher", self.data.records)
        self.server.make_labels()
        if table:
            self.simulator.upload("train", self.data.records)

    def statement(self) -> Statement:
        """The privacy statement of the whole run."""
        mix, noise = any(client.mixes_records for client in self.made), self.embedding_noise
        return statement_of(self.config, self.data, self.server, noise, models_mix=mix)

    def spent(self, statement: Statement) -> dict[str, Any]:
        """The clip fraction and the ε spent so far, where the run has them.

        ``statement`` is that of the whole run.
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
        """The section ``privacy`` of ``summary.json``: the statement, and noise on embeddings."""
        noise = self.embedding_noise
        return self.statement().as_dict() | {"embedding_noise": noise and noise.as_dict()}

    @property
    def parameters(self) -> dict[str, Any]:
        """The states of all models: parameters, and what else belongs to a model; not copies.

        Assigning loads them; KeyError, TypeError or ValueError if they are of other models.
        """
        return {
            "clients": [model.state() for model in self.models],
            "server": self.server.side.model.state(),
        }

    @parameters.setter
    def parameters(self, state: Mapping[str, Any]) -> None:
        for model, values in zip(self.models, state["clients"], strict=True):
            model.load(values)
        self.server.side.model.load(state["server"])


def build(
    config: ExperimentConfig,
    data: VerticalData,
    *,
    observer: Observer | None = None,
    charge: Charge | None = None,
) -> Federation:
    """Make all parties of one experiment; the observer sees every frame on the wire.

    Without a ``charge`` the run has a ledger of its own.

    Raises:
        ConfigError: parts of the configuration do not fit each other or the data.
    """
    config = placed(controlled(complete(config, data)))
    root = Stream.from_seed(config.seed)
    parties = len(data.parties)
    check_sizes(config, data.records)
    for straggler in config.simulation.stragglers:
        if not 0 <= straggler < parties:
            raise ConfigError(
                f"simulation.stragglers names client {straggler}; clients are 0 to {parties - 1}"
            )
    shares = config.simulation.activation
    if shares is not None and len(shares) != parties:
        raise ConfigError(
            f"simulation.activation has {len(shares)} probabilities; there are {parties} clients"
        )
    config.method.check(parties)
    cardinalities = data.cardinalities or ((),) * parties
    shared = [root.child("shared", m) for m in range(parties)]
    public = record_choice(config)
    if (noise := embedding_noise(config, data.records)) is not None:
        noise = replace(noise, simulated=True)  # of one seed, as all of this federation
    # Messages pass as they are where bytes would say the same; nothing is known of a codec but that
    # float32 numbers come back exactly without one.
    exact = all(
        isinstance(codec, NoCompression) and codec.dtype == "float32"
        for codec in (config.codecs.up, config.codecs.down)
    )
    encode = wire.InProcessFrame if exact and observer is None else wire.encode
    for name in config.client.models:
        if name not in (*data.parties, *config.data.exclude_parties):
            hint = nearest(name, data.parties) or f"; they are {', '.join(data.parties)}"
            raise ConfigError(f"client.models names {name!r}, which is none of the clients{hint}")
    made = []
    for m, name in enumerate(data.parties):
        with _as_of(name, config):
            client = make_client(
                config.of_party(name),
                m,
                data.features[m],
                root,
                clients=parties,
                cardinalities=cardinalities[m],
                shared=shared[m],
                public=public,
                noise=noise,
                digest=None if noise is None else config.digest,
                encode=encode,
            )
        made.append(client)
    dims = [client.embedding_dim for client in made]
    server = make_server(
        config,
        data,
        dims,
        root.child("server"),
        shared,
        public,
        charge=charge,
        label_file=config.privacy.ledger,
        encode=encode,
    )
    simulator = Simulator(
        [client.party for client in made],
        server,
        config.simulation,
        root.child("links"),
        queries_per_client=steps_of_client(config, data.records),
        observer=observer,
    )
    return Federation(config, data, made, server, simulator, noise)


@contextmanager
def _as_of(name: str, config: ExperimentConfig) -> Iterator[None]:
    """Make ConfigErrors about a party's own model name its key, ``client.models.NAME``."""
    try:
        yield
    except ConfigError as error:
        if name not in config.client.models:
            raise
        words = str(error).replace("client.model", f"client.models.{name}", 1)
        raise ConfigError(words) from None
