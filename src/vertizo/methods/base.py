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
from typing import ClassVar, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from vertizo.core.names import Timing, UpdateName
from vertizo.core.options import Chosen
from vertizo.core.randomness import Stream
from vertizo.models.base import Model, Points
from vertizo.models.optimizers import Optimizer
from vertizo.party.server_model import Evaluation, Head
from vertizo.party.table import Array, EmbeddingTable
from vertizo.party.updates import ServerUpdate
from vertizo.privacy.plan import Plan
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Query, Reply


@dataclass
class ClientSide:
    """What a client half works with; all of it stays with its owner."""

    model: Model
    optimizer: Optimizer
    stream: Stream
    """The client's own randomness."""
    shared: Stream
    """Randomness that the server knows as well; for VFL-CZOFO, where directions are no secret."""
    index: int = 0
    """Which client it is."""


@dataclass
class TrainingMeter:
    """Running sums over rounds, for the server's owner; nothing of it is ever sent."""

    records: int = 0
    loss: float = 0.0
    correct: int = 0

    def add(self, evaluation: Evaluation) -> None:
        """Count the batch at the last point, which is the one the server trains at."""
        self.records += evaluation.losses.shape[1]
        self.loss += float(np.add.reduce(evaluation.losses.numpy()[-1]))
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
    shared: Sequence[Stream] = ()
    """Each client's `ClientSide.shared`."""
    own: Tensor | None = None
    """The label holder's own features of all training records, [records, columns]."""
    learning_rate: float | None = None
    """η_0, given or chosen."""
    notes: tuple[str, ...] = ()
    """What people should know of the server's model."""
    meter: TrainingMeter = field(default_factory=TrainingMeter)

    def points(
        self, ids: Tensor, replacements: Sequence[tuple[int, Tensor | Array]] = ()
    ) -> Points:
        """The server model's inputs: `EmbeddingTable.points`, own features behind each row."""
        points = self.table.points(ids, replacements)
        if self.own is None:
            return points
        own = torch.from_numpy(self.own.numpy().take(ids.numpy(), 0))
        return Points(torch.cat([points.rows, own], 1), points.shifts)

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


@runtime_checkable
class RowReader(Protocol):
    """A client half that reads records where they are, instead of copies of them."""

    def table_of(self, features: Tensor) -> Tensor | None:
        """The training records as a table [records, …], of which ``ask`` and ``tell`` are then
        given a `Selected` in place of the batch; None where they want the batch."""


class ServerHalf(Protocol):
    """The server's side of a method."""

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """Answer one query (asynchronous), or one of every client on one batch (synchronous)."""


class Method(Chosen):
    """A method's hyperparameters, and its two halves."""

    paper: ClassVar[str]
    """Where it comes from, in one line."""
    timings: ClassVar[tuple[Timing, ...]] = ("asynchronous", "synchronous")
    """How its rounds may be timed; the first is its own."""
    server_update: ClassVar[UpdateName] = "sgd"
    """How its server is trained, unless another way is chosen."""
    server_updates: ClassVar[tuple[UpdateName, ...]] = get_args(UpdateName)
    """The ways that may be chosen."""
    first_order_client: ClassVar[bool] = False
    """Whether the client model must be differentiable."""
    as_pytorch: ClassVar[bool] = False
    """Whether modules train in training mode: no losses at several points are compared."""
    up: ClassVar[Codec] = NoCompression()
    """How its queries are coded, unless another codec is chosen."""

    @property
    def points(self) -> int:
        """Embeddings of each record in one query."""
        return 1

    @property
    def evaluations_per_query(self) -> int:
        """Points that the server evaluates for a query, beside the table's own."""
        return 0

    @property
    def server_steps(self) -> int:
        """Steps of the server model in one round."""
        return 1

    def steps_of(self, client: int) -> int:
        """Steps of a client's model for one answer."""
        return 1

    @property
    def releases_per_query(self) -> int:
        """Entries in the privacy accounting of a record for one query that names it."""
        return 1

    @property
    def reply_is_gradient(self) -> bool:
        """Whether a reply is a gradient of each record's embedding, of which steps add up."""
        return False

    @property
    def reply_is_losses(self) -> bool:
        """Whether a reply holds losses that differ by little, and no rounding may swallow it."""
        return False

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """Dimensions that a client's gradient is estimated in; 0 where it is computed.

        Args:
            parameters: d_m.
            embedding_dim: d_h.
            batch_size: B.
        """
        return 0.0

    def check(self, clients: int) -> None:
        """Raises ConfigError if the method does not fit so many clients."""

    def client(self, side: ClientSide) -> ClientHalf:
        """The client half."""
        raise NotImplementedError  # abstract

    def server(self, side: ServerSide) -> ServerHalf:
        """The server half."""
        raise NotImplementedError  # abstract

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """Shape of the values in a reply."""
        raise NotImplementedError  # abstract
