"""One run among those that are advanced together: its ordinary parties, within reach."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vertizo import wire
from vertizo.batched.clients import Item
from vertizo.config import ExperimentConfig
from vertizo.federation import Federation
from vertizo.messages import largest
from vertizo.methods.base import Method
from vertizo.methods.dpzv import Dpzv, DpzvClient
from vertizo.methods.forward_difference import ForwardDifference, ForwardDifferenceClient
from vertizo.models.linear_stack import LinearStack
from vertizo.privacy.plan import Plan
from vertizo.zeroth_order.directions import Directions

Features = NDArray[np.float32]


@dataclass(frozen=True)
class Due:
    """A round that is next for a run."""

    client: int | None
    """Who asks; None where all do."""
    batch: int
    """Records."""


@dataclass
class Member:
    """A run's parties.

    Args:
        federation: whose clients' and server's models are linear stacks.
        config: of the run.
    """

    federation: Federation
    config: ExperimentConfig
    models: list[LinearStack] = field(init=False)
    """Each client's."""
    features: list[Features] = field(init=False)
    """Each client's training records, [records, numbers]."""
    directions: list[Directions | None] = field(init=False)
    smoothing: float = field(init=False)

    def __post_init__(self) -> None:
        federation = self.federation
        self.models = [model for model in federation.models if isinstance(model, LinearStack)]
        self.features = [
            part["table"].reshape(federation.data.records, -1).numpy()
            for part in federation.data.features
        ]
        self.directions = [
            half.directions if isinstance(half, (DpzvClient, ForwardDifferenceClient)) else None
            for half in (client.half for client in federation.clients)
        ]
        self.smoothing = smoothing_of(self.config.method)

    @property
    def plan(self) -> Plan:
        """What the server's replies pass through."""
        return self.federation.server.side.plan

    def item(self, client: int) -> Item:
        """A client's part of the next round."""
        number = self.federation.clients[client].answered
        return Item(self.models[client], self.directions[client], self.smoothing, number)

    def announced(self) -> Tensor:
        """The records of the next synchronous round, int64 [batch]."""
        server = self.federation.server
        assert server.batches is not None, "rounds are synchronous"
        return server.batches.ids(server.round)

    @property
    def is_synchronous(self) -> bool:
        """Whether all clients ask in every round."""
        return self.federation.server.batches is not None

    def announcement_size(self) -> int:
        """Bytes of the announcement of the next synchronous round."""
        ids = self.announced()
        number = self.federation.server.round
        return wire.announcement_size(number, largest(ids), ids.numel())

    @property
    def going(self) -> bool:
        """Whether rounds are left."""
        return self.federation.server.round < self.federation.total_rounds

    def due(self) -> Due | None:
        """What the next round is about; None if no query is open."""
        federation = self.federation
        client = federation.simulator.due()
        if client is None:
            return None
        if self.is_synchronous:
            return Due(None, len(self.announced()))
        party = federation.clients[client]
        order = party.batches
        position = party.answered % order.per_epoch
        return Due(client, min(order.size, order.records - position * order.size))

    def rest(self) -> None:
        """Leave all that a checkpoint or an evaluation looks at where the run alone would.

        What an asynchronous client is about to ask it makes anew; that of a synchronous one is for
        records that the server named.
        """
        federation = self.federation
        server = federation.server
        server.go_on(server.round, [client.answered for client in federation.clients])
        if not self.is_synchronous or federation.simulator.due() is None:
            return
        for client in federation.clients:
            client.go_on(client.answered)
            client.ask(server.announce(client.index))


def smoothing_of(method: Method) -> float:
    """λ or μ; 1 where there is none."""
    return method.smoothing if isinstance(method, (Dpzv, ForwardDifference)) else 1.0
