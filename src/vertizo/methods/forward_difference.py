"""The methods whose clients move by the forward difference of two losses.

1. A client draws a direction u and sends ``c = h(w_m)`` and ``ĉ = h(w_m + μu)``, [2, batch, d_h]:
   when it is ready, on a batch of its own, or when all do, on one that the server names.
2. The server evaluates both with the other clients' last embeddings on the same weights, stores
   ``c``, and answers with the two batch-mean losses ``h`` and ``ĥ`` or the difference between them.
3. It steps at the unperturbed embeddings: by its gradient, ``w_0 ← w_0 − η_0 ∂L/∂w_0``, or by a
   forward difference of its own, ``w_0 ← w_0 − η_0 φ (f(w_0 + μu_0) − f(w_0))/μ · u_0``
   (`vertizo.party.server_model.ZerothOrder`). Syn-ZOO-VFL as published takes the first of these two
   losses at every client's ``ĉ`` and the second at ``c``: the other u are independent of ``u_0``,
   so that the estimate has the same mean and more variance.
4. The client moves likewise: ``w_m ← w_m − η_m φ (ĥ − h)/μ · u``.

`ForwardDifference` has the steps; the methods below it differ in timing and in step 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from vertizo.core.arrays import scalars
from vertizo.core.names import LawName, Timing, UpdateName
from vertizo.core.plugins.lazy_import import torch
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide, Features, Method, Outcome
from vertizo.protocol.messages import Query
from vertizo.zeroth_order.estimators import estimate, forward_difference, outputs, readable_table

if TYPE_CHECKING:
    from torch import Tensor

ReplyForm = Literal["losses", "difference"]


class ForwardDifference(Method):
    """Two embeddings of each record at ``w_m`` and ``w_m + μu``; what is told of their losses."""

    points: ClassVar[int] = 2
    evaluations_per_query: ClassVar[int] = 1  # at ĉ
    releases_per_query: ClassVar[int] = 1  # the slope
    tell_reads: ClassVar[bool] = False

    smoothing: float = Field(default=1e-3, gt=0)
    """μ, the length of a perturbation in units of the direction."""
    directions: LawName = "gaussian"
    """The law that directions are drawn from."""
    reply: ReplyForm = "losses"
    """losses: both batch-mean losses. difference: their difference over μ, which a clip and noise
    need."""

    @property
    def reply_is_losses(self) -> bool:
        """Whether both losses are sent."""
        return self.reply == "losses"

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """Two losses or one slope."""
        return (2,) if self.reply == "losses" else (1,)

    def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
        """``c`` and ``ĉ``, [2, batch, d_h]."""
        direction = side.directions(self.directions).draw(number)
        if direction.keep:
            side.pending = number, direction
        return outputs(side.model, features, direction, (0.0, self.smoothing))

    def stored(self, embeddings: Tensor) -> Tensor:
        """``c``."""
        return embeddings[0]

    def evaluated(self, query: Query, shared: Stream) -> Tensor:
        """``ĉ``."""
        return query.embeddings[1:]

    def told(self, outcome: Outcome) -> Tensor:
        """Each record's losses ``h_i`` and ``ĥ_i``, [batch, 2], or ``(ĥ_i − h_i)/μ``, [batch]."""
        shifted, plain = outcome.losses[0], outcome.plain
        if self.reply == "difference":
            return forward_difference(shifted, plain, self.smoothing)
        if not plain.is_cpu:
            return torch.stack((plain, shifted)).t()
        pair = np.empty((2, plain.numel()), np.float32)
        pair[0], pair[1] = plain.numpy(), shifted.numpy()
        return torch.from_numpy(pair.T)  # sums run along memory

    def tell(self, side: ClientSide, number: int, features: object, values: Tensor) -> None:
        """``w_m ← w_m − η_m φ (ĥ − h)/μ · u``."""
        numbers = scalars(values)
        slope = numbers[0]
        if self.reply == "losses":
            plain, shifted = numbers
            slope = forward_difference(shifted, plain, self.smoothing)
        direction = side.taken(number) or side.directions(self.directions).draw(number)
        side.step(estimate(direction, slope))

    def keeps(self, side: ClientSide) -> bool:
        """Whether the direction is kept until it is used again."""
        return side.directions(self.directions).are_kept

    def table_of(self, side: ClientSide, features: Tensor) -> Tensor | None:
        """The records as a table, where perturbed models read its rows; else None."""
        return readable_table(side.model, side.directions(self.directions), features)


class Cascaded(ForwardDifference):
    """Forward-difference clients, a server by gradients; the reply is two batch-mean losses."""

    paper: ClassVar[str] = "VFL-Cascaded (asynchronous VFL by cascaded hybrid optimisation)"

    name: Literal["cascaded"] = "cascaded"


class _ZerothOrderServer(ForwardDifference):
    """With a server that needs no gradient either."""

    server_update: ClassVar[UpdateName] = "forward-difference"
    server_updates: ClassVar[tuple[UpdateName, ...]] = (
        "forward-difference",
        "zeroth-order",
        "private-zeroth-order",
        "none",
    )


class ZooVfl(_ZerothOrderServer):
    """Forward differences at clients and server, each client at its own pace."""

    paper: ClassVar[str] = "ZOO-VFL (zeroth-order VFL, asynchronous)"

    name: Literal["zoo-vfl"] = "zoo-vfl"


class SynZooVfl(_ZerothOrderServer):
    """Forward differences at clients and server, all clients in step."""

    paper: ClassVar[str] = "Syn-ZOO-VFL (zeroth-order VFL, synchronous)"
    timings: ClassVar[tuple[Timing, ...]] = ("synchronous",)

    name: Literal["syn-zoo-vfl"] = "syn-zoo-vfl"
    reply: ReplyForm = "difference"
    server_embeddings: Literal["unperturbed", "published"] = "unperturbed"
    """Where the server's perturbed loss is taken. unperturbed: at ``c``, as its other loss is.
    published: at every client's ``ĉ``, as algorithm 2 has it; for server.update forward-difference.
    """

    @property
    def server_perturbs_clients(self) -> bool:
        """Whether ``server_embeddings`` is published, as line 9 of algorithm 2 has it."""
        return self.server_embeddings == "published"
