"""Adversaries: what each of them has, as types. An attack takes one of these and nothing else.

None of them holds a label that it would not have, the seed of the simulation, or a party's private
state beyond what its docstring says. The truth is used for scoring alone, by whoever scores.
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
    """What every member of the federation knows of it: the method, sizes, clip and noise."""

    method: Method
    batch_size: int
    """B, by which replies are divided."""
    records: int
    """D."""
    outputs: int
    """Of the server model: classes."""
    dims: tuple[int, ...]
    """d_h of every client."""
    server_model: ServerModelConfig
    """Which kind of model the server has; not its parameters."""
    join: Join
    embedding_bound: float
    clip: float | None
    """C of noised replies; None where they carry no noise."""
    noise_std: float | None
    """σ, the noise on the sum."""


@dataclass(frozen=True)
class Eavesdropper:
    """Reads every frame and knows nobody's secrets, VFL-CZOFO's shared seed included."""

    public: Public
    exchanges: Sequence[Exchange]


@dataclass(frozen=True)
class CuriousClient:
    """One client: what it holds, what it sent (perhaps what it liked) and what it was told."""

    public: Public
    index: int
    features: Tensor
    """Its own columns of the training records, [D, …]."""
    exchanges: Sequence[Exchange]
    """Its own, queries of its own making included."""
    model: Model
    """Its own, trained."""
    shared: Stream
    """VFL-CZOFO's directions; of no use in other methods."""


@dataclass(frozen=True)
class InformedClient:
    """A client that was told the server model as well, as the published Compressed-VFL does."""

    client: CuriousClient
    server_parameters: Mapping[int, Tensor]
    """Query number → w_0 [d_0] at which the query was answered."""


@dataclass(frozen=True)
class CuriousServer:
    """The server: it follows the protocol and looks at what it is sent."""

    public: Public
    exchanges: Sequence[Exchange]
    """Of all clients."""
    labels: Tensor
    """Of the training records, [D]."""
    known: Mapping[int, Tensor]
    """Client → record IDs [k] whose features at that client are public knowledge."""
    known_features: Mapping[int, Tensor]
    """Client → these features, [k, columns]."""


@dataclass(frozen=True)
class Coalition:
    """A server together with some clients, or none, who pool what they hold."""

    server: CuriousServer
    features: Mapping[int, Tensor]
    """Colluding client → its columns of the training records, [D, columns]."""


@dataclass(frozen=True)
class ReleasedModel:
    """Holds the trained model and can ask it about any record; saw nothing of the training."""

    logits: Callable[[Sequence[Tensor]], Tensor]
    """All parties' features of some records → logits [rows, classes]."""
    population_features: Sequence[Tensor]
    """Records of the same kind that were not trained on, each party's columns: the attacker's."""
    population_labels: Tensor
