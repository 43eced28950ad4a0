"""VFL-CZOFO: zeroth order at the embedding, first order on either side of it, few bytes between.

1. A client that is ready draws a batch and sends its embeddings ``C(h)`` [batch, d_h]. The q
   directions ``u_j`` [batch, d_h] come from a seed that client and server share: they are not sent.
2. The server evaluates its loss at ``h`` and at ``h + μ u_j`` for every j, all records perturbed
   at once, and answers with the q slopes

   * of the batch's mean loss, ``δ_j = (f(h + μ u_j) − f(h)) / μ`` (``scalars: batch``, as the
     authors' code and their Table 1 have it), or
   * of each record's own loss, [batch, q] (``scalars: record``, the paper's eq. 2),

   and steps by its own gradient at ``h``: ``w_0 ← w_0 − η_0 ∂L/∂w_0``.
3. The client puts ``∂L/∂h ≈ φ/q Σ_j δ_j u_j`` together and back-propagates it through its model.

In the first form a record's slope is told apart from the others' only because the rows of ``u_j``
are independent: the estimate is unbiased, and its variance grows with the batch. There φ = d_h
without a further 1/B, the mean being taken already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from vertizo.core.arrays import graphs, philox
from vertizo.core.names import LawName
from vertizo.core.plugins.lazy_import import torch
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide, Method, Outcome
from vertizo.models.base import Points
from vertizo.models.optimizers import Dense
from vertizo.protocol.messages import Query
from vertizo.zeroth_order.card_directions import card_record_directions
from vertizo.zeroth_order.directions import record_directions
from vertizo.zeroth_order.estimators import forward_difference

if TYPE_CHECKING:
    from torch import Tensor


class Czofo(Method):
    """Zeroth order at the embedding only; the reply is q slopes, a batch or a record."""

    paper: ClassVar[str] = "VFL-CZOFO (compressed zeroth- and first-order VFL)"
    first_order_client: ClassVar[bool] = True
    releases_per_query: ClassVar[int] = 1  # a record's q slopes are clipped together

    name: Literal["czofo"] = "czofo"
    num_directions: int = Field(default=100, gt=0)
    """q, directions of one query."""
    scalars: Literal["batch", "record"] = "batch"
    """q slopes for the whole batch, or for each record."""
    smoothing: float = Field(default=1e-3, gt=0)
    """μ, the length of a perturbation in units of the direction."""
    directions: LawName = "sphere"
    """The law that directions are drawn from."""

    @property
    def evaluations_per_query(self) -> int:
        """One for each direction."""
        return self.num_directions

    @property
    def reply_is_per_record(self) -> bool:
        """Whether each record has slopes of its own."""
        return self.scalars == "record"

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """q numbers, or q for each record."""
        q = self.num_directions
        return (batch, q) if self.scalars == "record" else (q,)

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """Numbers of the embeddings that one slope is of, divided by the q estimates averaged."""
        records = 1 if self.scalars == "record" else batch_size
        return records * embedding_dim / self.num_directions

    def drawn(self, shared: Stream, number: int, embeddings: Tensor) -> tuple[Tensor, float]:
        """The directions ``u_j`` of query ``number`` about embeddings [batch, d_h], and φ."""
        batch, dimension = embeddings.shape
        shape = self.num_directions, batch, dimension
        if embeddings.is_cpu:
            return record_directions(self.directions, *shape, shared.seed(number))
        place = graphs.fed(
            lambda n: philox.signed(shared.seed(n)),
            number,
            device=embeddings.device,
            dtype=torch.int64,
        )
        return card_record_directions(self.directions, *shape, place)

    def ask(self, side: ClientSide, number: int, features: Tensor) -> Tensor:
        """``h``, [1, batch, d_h]."""
        embeddings, pullback = side.differentiable.forward(Points(features))
        side.pending = number, (embeddings, pullback)
        return embeddings.unsqueeze(0)

    def evaluated(self, query: Query, shared: Stream) -> Tensor:
        """``h + μ u_j`` for every j, [q, batch, d_h]."""
        embeddings = query.embeddings[0]
        directions, _ = self.drawn(shared, query.number, embeddings)
        return embeddings + self.smoothing * directions

    def told(self, outcome: Outcome) -> Tensor:
        """``δ_j`` of every record, [batch, q]."""
        return forward_difference(outcome.losses, outcome.plain, self.smoothing).t()

    def tell(self, side: ClientSide, number: int, features: Tensor, values: Tensor) -> None:
        """``w_m ← w_m − η_m (∂h/∂w_m)ᵀ φ/q Σ_j δ_j u_j``."""
        embeddings, pullback = side.taken(number) or side.differentiable.forward(Points(features))
        directions, factor = self.drawn(side.shared, number, embeddings)
        weights = values * (factor / self.num_directions)
        if self.scalars == "batch":
            flat = directions.reshape(len(directions), -1)
            gradient = (weights @ flat).view(embeddings.shape)
        else:
            gradient = (directions * weights.t().unsqueeze(2)).sum(0)
        side.step(Dense(pullback(gradient)))
