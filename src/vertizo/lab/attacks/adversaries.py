"""Adversary types: each holds what one adversary knows. An attack takes one and nothing else.

No type holds labels that its adversary would not have, the seed of the simulation, or a party's
private state beyond what its docstring says. The true labels are used for scoring alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from vertizo.config.architectures import ServerModelConfig
from vertizo.core.names import Join
from vertizo.core.randomness import Stream
from vertizo.lab.attacks.transcript import Exchange
from vertizo.methods.base import Method
from vertizo.models.base import Model


@dataclass(frozen=True)
class Public:
    """Public knowledge of every member of the federation: the method, sizes, clip and noise."""

    method: Method
    batch_size: int
    """The batch size B, by which replies are divided."""
    records: int
    """The number of training records, D."""
    outputs: int
    """Number of outputs of the server model: the classes."""
    dims: tuple[int, ...]
    """Embedding size d_h of every client."""
    server_model: ServerModelConfig
    """The kind of the server's model, without its parameters."""
    join: Join
    embedding_bound: float
    clip: float | None
    """The clip C of noised replies; None where replies carry no noise."""
    noise_std: float | None
    """Standard deviation σ of the noise on the sum; None without noise."""


@dataclass(frozen=True)
class Eavesdropper:
    """An adversary that reads every frame and knows no secret, not even VFL-CZOFO's shared seed."""

    public: Public
    exchanges: Sequence[Exchange]


@dataclass(frozen=True)
class CuriousClient:
    """One client: what it holds, what it sent (honest or chosen queries) and what it was told."""

    public: Public
    index: int
    features: Tensor
    """The client's columns of the training records, [D, …]."""
    exchanges: Sequence[Exchange]
    """The client's queries and replies, queries of its own making included."""
    model: Model
    """The client's trained model."""
    shared: Stream
    """The stream of VFL-CZOFO's directions; unused by other methods."""


@dataclass(frozen=True)
class InformedClient:
    """A client that also receives the server model, as in the published Compressed-VFL."""

    client: CuriousClient
    server_parameters: Mapping[int, Tensor]
    """Query number → the server's parameters w_0 [d_0] when it answered."""


@dataclass(frozen=True)
class CuriousServer:
    """An honest but curious server: it follows the protocol and reads what it is sent."""

    public: Public
    exchanges: Sequence[Exchange]
    """Exchanges of all clients."""
    labels: Tensor
    """Labels of the training records, [D]."""
    known: Mapping[int, Tensor]
    """Client → record IDs [k] whose features at that client the server knows."""
    known_features: Mapping[int, Tensor]
    """Client → the features of its known records, [k, columns]."""


@dataclass(frozen=True)
class Coalition:
    """A server and some colluding clients, or none, that pool what they hold."""

    server: CuriousServer
    features: Mapping[int, Tensor]
    """Colluding client → its columns of the training records, [D, columns]."""


@dataclass(frozen=True)
class ReleasedModel:
    """An adversary that can query the trained model about any record, and saw no training."""

    logits: Callable[[Sequence[Tensor]], Tensor]
    """All parties' features of some records → logits [rows, classes]."""
    population_features: Sequence[Tensor]
    """The attacker's own records, which were not trained on: each party's columns."""
    population_labels: Tensor
