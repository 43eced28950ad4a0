"""What a method is: two halves that exchange arrays, and nothing else.

A method file opens no socket, reads no clock and uses no global random state. Its client half turns
features into embeddings (`ClientHalf.ask`) and the server's answer into an update
(`ClientHalf.tell`); its server half turns embeddings into answers (`ServerHalf.answer`). What is
around them, records, batches, bytes, retries, privacy accounting, is the parties' business.

Symbols, as in the papers: ``w_m`` client parameters, ``w_0`` server parameters, ``h`` embeddings
[points, batch, d_h], ``f_i`` the loss of record i, ``B`` the nominal batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from vertizo.messages import Query, Reply
from vertizo.models.base import Model
from vertizo.models.optimizers import Optimizer
from vertizo.options import Options
from vertizo.privacy.plan import Plan
from vertizo.randomness import Stream
from vertizo.server.head import Evaluation, Head
from vertizo.server.table import EmbeddingTable
from vertizo.server.updates import ServerUpdate


@dataclass
class ClientSide:
    """What a client half works with; all of it stays with its owner."""

    model: Model
    optimizer: Optimizer
    stream: Stream
    """The client's own randomness."""


@dataclass
class TrainingMeter:
    """Running sums over rounds, for the server's owner; nothing of it is ever sent."""

    records: int = 0
    loss: float = 0.0
    correct: int = 0

    def add(self, evaluation: Evaluation) -> None:
        """Count the batch at the last point, which is the one the server trains at."""
        self.records += evaluation.losses.shape[1]
        self.loss += float(evaluation.losses[-1].numpy().sum())
        self.correct += evaluation.correct()

    def reset(self) -> None:
        """Start new sums."""
        self.records, self.loss, self.correct = 0, 0.0, 0


@dataclass
class ServerSide:
    """What a server half works with."""

    head: Head
    table: EmbeddingTable
    labels: Tensor
    """Labels of all training records, [records]."""
    plan: Plan
    update: ServerUpdate
    meter: TrainingMeter = field(default_factory=TrainingMeter)

    def labels_of(self, ids: Tensor) -> Tensor:
        """Labels of those records, [batch]."""
        return torch.from_numpy(self.labels.numpy().take(ids.numpy()))


class ClientHalf(Protocol):
    """The client's side of a method."""

    def ask(self, number: int, features: Tensor) -> Tensor:
        """Embeddings of a batch, [points, batch, d_h], as query ``number``."""

    def tell(self, number: int, features: Tensor, values: Tensor) -> None:
        """Update by the answer to query ``number``, which was about ``features``.

        Works from its arguments alone: a client that was restarted in between goes on.
        """


class ServerHalf(Protocol):
    """The server's side of a method."""

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """Answer one query (asynchronous), or one of every client on one batch (synchronous)."""


class Method(Options):
    """A method's hyperparameters, and its two halves."""

    points: ClassVar[int]
    """Embeddings of each record in one query."""
    evaluations_per_query: ClassVar[int]
    """Points that the server evaluates beside the table's own."""
    first_order_client: ClassVar[bool] = False
    """Whether the client model must be differentiable."""
    first_order_reply: ClassVar[bool] = False
    """Whether the server model must be differentiable for the reply itself."""
    paper: ClassVar[str]
    """Where it comes from, in one line."""

    name: Any

    def client(self, side: ClientSide) -> ClientHalf:
        """The client half."""
        raise NotImplementedError  # abstract

    def server(self, side: ServerSide) -> ServerHalf:
        """The server half."""
        raise NotImplementedError  # abstract

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """Shape of the values in a reply."""
        raise NotImplementedError  # abstract
