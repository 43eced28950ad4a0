"""The interface of a method: what it stores, evaluates and tells, how a client asks and moves.

The parties run every round alike (`vertizo.party`); a method fills in five steps of it::

    client   embeddings = method.ask(side, number, features)      [points, batch, d_h]
    server   table[ids] ← method.stored(embeddings)               [batch, d_h]
             points     = method.evaluated(query, shared)         [further points, batch, d_h]
             losses     = f(w_0, table rows with each point in the client's place; labels)
             values     = method.told(outcome)                    one row for each record
             reply      = the privacy plan's release of values: clip, sum, noise, divide by B
             w_0        ← the server's update, at the table's own rows
    client   method.tell(side, number, features, reply)           moves w_m

A method opens no socket, reads no clock, names no ε and uses no global random state. One written
outside this package, ``package.module:Class``, takes about fifteen lines (docs/own-method.md). Its
runs carry no privacy guarantee until it declares `Method.releases_per_query`.

Symbols, as in the papers: ``w_m`` client parameters, ``w_0`` server parameters, ``h`` embeddings
[points, batch, d_h], ``f_i`` the loss of record i, ``B`` the nominal batch size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from vertizo.core.errors import ConfigError
from vertizo.core.names import Join, LawName, Timing, UpdateName
from vertizo.core.options import Chosen
from vertizo.core.plugins.lazy_import import torch
from vertizo.core.randomness import Stream
from vertizo.methods.reported import report_steps
from vertizo.models.base import DifferentiableModel, Model, Selected
from vertizo.models.optimizers import Gradient, Optimizer
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Query
from vertizo.zeroth_order.card_directions import directions_of
from vertizo.zeroth_order.directions import Directions

if TYPE_CHECKING:
    from torch import Tensor

Features: TypeAlias = "Tensor | Selected"
"""Features of a batch, [batch, …], or rows of a table that `Method.table_of` gave."""


@dataclass
class ClientSide:
    """A client's model, optimiser and randomness; all of it stays with its owner."""

    model: Model
    optimizer: Optimizer
    stream: Stream
    """The client's own randomness."""
    shared: Stream
    """Randomness that the server knows as well; for VFL-CZOFO, where directions are no secret."""
    index: int = 0
    """The client's number, from 0."""
    pending: tuple[int, Any] | None = None
    """(query number, what a method keeps from `Method.ask` to `Method.tell`); see `taken`."""
    kept: Any = None
    """What a method keeps from query to query; it is made anew after a restart."""
    _directions: Directions | None = None

    def directions(self, law: LawName, count: int = 1) -> Directions:
        """Random directions of the model's parameters, ``count`` a query, which no one else knows.

        One method draws by one law; the first call fixes it.
        """
        if self._directions is None:
            self._directions = directions_of(self.model.parameters, law, self.stream, count)
        return self._directions

    @property
    def differentiable(self) -> DifferentiableModel:
        """The model as a differentiable one, for methods with `Method.first_order_client`."""
        return cast(DifferentiableModel, self.model)  # `Method.client` has looked

    def taken(self, number: int) -> Any:
        """Take what is pending for query ``number``; None where a restart lost it."""
        pending, self.pending = self.pending, None
        return pending[1] if pending is not None and pending[0] == number else None

    def step(self, gradient: Gradient) -> None:
        """One step of the optimiser: ``w_m ← w_m − η_m gradient``."""
        self.optimizer.step(self.model.parameters, gradient)


@dataclass(frozen=True)
class ClientPair:
    """The client half of a method, bound to one client."""

    ask: Callable[[int, Features], Tensor]
    """(query number, features of its batch) → embeddings [points, batch, d_h]."""
    tell: Callable[[int, Features | None, Tensor], None]
    """(query number, the same features, values of the reply): moves the model."""
    table_of: Callable[[Tensor], Tensor | None] = lambda features: None
    """Training records → a table of which both get a `Selected` in place of a batch; None where
    they want the batch."""
    forget: Callable[[], None] = lambda: None
    """Drops what was prepared for tensors that a loaded state may have replaced."""
    checks: bool = False
    """Whether ``tell`` itself checks the bounds of values that are on a card."""
    reads: bool = True
    """Whether ``tell`` reads features, see `Method.tell_reads`."""
    keeps: bool = False
    """Whether ``tell`` uses what ``ask`` computed, see `Method.keeps`."""


class Outcome(NamedTuple):
    """What the server computed for one query, all on the same weights."""

    losses: Tensor
    """Losses of every record at the points of `Method.evaluated`, [points, batch]."""
    plain: Tensor
    """Losses of every record at the table's own embeddings, [batch]."""
    gradient: Callable[[], Tensor]
    """``∂f_i/∂h_m`` of every record there, [batch, d_h]; computed when called."""
    query: Query
    """The query that is answered."""
    resting: Callable[[], Tensor]
    """``∂f_i/∂logits_i`` of every record at logits of zero, [batch, outputs], which depends on its
    label alone; computed when called."""


class Answered(NamedTuple):
    """A reply, made of a release by post-processing, which costs no privacy."""

    values: Tensor
    """Values of the reply."""
    moved: Tensor | None = None
    """Where the client's embeddings are once it has applied it, [batch, d_h]; None if unknown."""


class Method(Chosen):
    """A method's hyperparameters, and its steps of a round.

    Every default is the usual case; a method must say `ask`, `told` and `tell`.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Make errors in the steps of a method from outside this package one line."""
        super().__pydantic_init_subclass__(**options)
        if cls.is_foreign():
            report_steps(cls)

    @classmethod
    def is_foreign(cls) -> bool:
        """Whether it comes from outside this package: what its steps keep is not known then."""
        return not cls.__module__.startswith("vertizo.")

    paper: ClassVar[str] = ""
    """The paper that it comes from, in one line."""
    timings: ClassVar[tuple[Timing, ...]] = ("asynchronous", "synchronous")
    """The timings that its rounds may have; the first is the default."""
    server_update: ClassVar[UpdateName] = "sgd"
    """How its server is trained by default."""
    server_updates: ClassVar[tuple[UpdateName, ...]] = get_args(UpdateName)
    """The server updates that may be chosen."""
    server_join: ClassVar[Join] = "concat"
    """How the server joins embeddings by default."""
    asks: ClassVar[bool] = True
    """Whether clients ask and are told. Else they upload their embeddings once, of models that no
    label moves, and a raw head predicts (`vertizo.run.build.label_free`)."""
    first_order_client: ClassVar[bool] = False
    """Whether the client model must be differentiable."""
    tell_reads: ClassVar[bool] = True
    """Whether `tell` reads features; else it may be given None in their place."""
    as_pytorch: ClassVar[bool] = False
    """Whether modules run in training mode: no losses at several points are compared."""
    reply_is_gradient: ClassVar[bool] = False
    """Whether a reply is a gradient of each record's embedding: a step, of which the sum counts."""
    up: ClassVar[Codec] = NoCompression()
    """The default codec of its queries."""

    sends_tangents: ClassVar[bool] = False
    """Whether a query's further points are derivatives, and not embeddings to compare."""
    additive: ClassVar[bool] = False
    """Whether embeddings are shares of the prediction, so that the server needs only their sum."""

    @property
    def whole_queries(self) -> int | None:
        """Queries of each client if all are about all records; None if they are about batches."""
        return None

    @property
    def points(self) -> int:
        """Embeddings of each record in one query."""
        return 1

    @property
    def evaluations_per_query(self) -> int:
        """Points that `evaluated` gives: by default all that were sent, if they are several."""
        return self.points if self.points > 1 else 0

    @property
    def server_steps(self) -> int:
        """Steps of the server model in one round, all on the round's embeddings."""
        return 1

    @property
    def server_perturbs_clients(self) -> bool:
        """Whether the server's perturbed loss is at perturbed embeddings as well: at the first
        point of `evaluated` of every client that asked, instead of the table's rows."""
        return False

    def steps_of(self, client: int) -> int:
        """Steps that a client's model makes for one answer."""
        return 1

    @property
    def releases_per_query(self) -> int | None:
        """Entries in the privacy accounting of a record for one query that names it.

        1 where a record's values are clipped together; as many as `told` has columns where each is
        clipped and released by itself. None is undeclared: no run has a guarantee then.
        """
        return None

    @property
    def mixes_features(self) -> bool:
        """Whether a client's features of one record reach, without noise, messages about others."""
        return self.first_order_client

    @property
    def fits_features(self) -> bool:
        """Whether `tell` fits a client's model to its own features, without noise.

        Then that client's evaluations depend on them, and no other message does.
        """
        return False

    def fits(self, model: Model) -> bool:
        """Whether `tell` fits that model to its features, and messages about others show it."""
        return False

    @property
    def reply_is_per_record(self) -> bool:
        """Whether a reply holds every record's own values, or else their sum over the batch."""
        return False

    @property
    def reply_is_losses(self) -> bool:
        """Whether a reply holds losses, whose small differences no rounding may swallow."""
        return False

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """Shape of the values in a reply."""
        return (1,)

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """Dimensions that a client's gradient is estimated in (from d_m, d_h, B); 0 if computed."""
        return 0.0 if self.first_order_client else parameters

    def check(self, clients: int) -> None:
        """Raises ConfigError if the method does not fit so many clients."""

    def check_outputs(self, outputs: int, dims: Sequence[int]) -> None:
        """Raises ConfigError if the method does not fit a prediction of so many numbers, one for
        each class and 1 for a regression, or clients of such ``d_h``."""

    def client(self, side: ClientSide) -> ClientPair:
        """Bind `ask`, `tell` and `table_of` to a client; ConfigError where its model has no
        gradient and the method needs one."""
        if self.first_order_client and not isinstance(side.model, DifferentiableModel):
            raise ConfigError(
                f"method {self.name} needs a differentiable client model, not "
                f"{type(side.model).__name__}; dpzv, cascaded and zoo-vfl train any function"
            )
        return ClientPair(
            partial(self.ask, side),
            partial(self.tell, side),
            partial(self.table_of, side),
            reads=self.tell_reads,
            keeps=self.keeps(side),
        )

    @abstractmethod
    def ask(self, side: ClientSide, number: int, features: Any) -> Tensor:
        """Embeddings of a batch, [points, batch, d_h], for query ``number`` of this client, from 0.

        ``features`` are [batch, …], or a `Selected` where `table_of` gave a table.
        """

    def stored(self, embeddings: Tensor) -> Tensor:
        """What the server's table keeps of [points, batch, d_h]: their mean, [batch, d_h]."""
        points = embeddings.shape[0]
        if points == 1:
            return embeddings[0]
        if not embeddings.is_cpu:
            return embeddings.mean(0)
        first, second, *others = embeddings.numpy()
        total = first + second
        for other in others:
            total += other
        total *= np.float32(1 / points)
        return torch.from_numpy(total)

    def evaluated(self, query: Query, shared: Stream) -> Tensor | None:
        """Embeddings at which the server computes losses beside those stored: [points, batch, d_h].

        ``shared`` is the client's `ClientSide.shared`.
        """
        return query.embeddings if query.embeddings.shape[0] > 1 else None

    @abstractmethod
    def told(self, outcome: Outcome) -> Tensor:
        """What each record adds to the reply, [batch] or [batch, columns].

        The privacy plan clips each row, adds them up unless `reply_is_per_record`, adds noise, and
        divides by B.
        """

    def answered(self, query: Query, released: Tensor, noise_std: float) -> Answered:
        """Make the reply from what was released of `told`, and from public values only.

        Args:
            query: as it came.
            released: by the privacy plan.
            noise_std: of each of its numbers, which is public.
        """
        return Answered(released)

    @abstractmethod
    def tell(self, side: ClientSide, number: int, features: Any, values: Tensor) -> None:
        """Move ``side.model`` by the reply to query ``number``, which was about ``features``.

        Works even where `ClientSide.taken` gives nothing, for a client restarted in between.
        """

    def keeps(self, side: ClientSide) -> bool:
        """Whether `ask` leaves something pending for `tell`, which a card then keeps until then."""
        return self.first_order_client

    def table_of(self, side: ClientSide, features: Tensor) -> Tensor | None:
        """The training records as a table [records, …] that `ask` and `tell` read rows of where
        they are, given a `Selected` instead of copies; None where they want copies."""
        return None
