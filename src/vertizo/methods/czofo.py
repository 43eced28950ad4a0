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

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from vertizo.core.names import LawName
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide, Method, ServerSide
from vertizo.methods.first_order import differentiable
from vertizo.models.base import Dense, Points, Pullback
from vertizo.protocol.messages import Query, Reply
from vertizo.zeroth_order.estimators import forward_difference
from vertizo.zeroth_order.record_directions import record_directions


class Czofo(Method):
    """Zeroth order at the embedding only; the reply is q slopes, a batch or a record."""

    paper: ClassVar[str] = "VFL-CZOFO (compressed zeroth- and first-order VFL)"
    first_order_client: ClassVar[bool] = True

    name: Literal["czofo"] = "czofo"
    num_directions: int = Field(default=100, gt=0)
    """q."""
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

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """Those of the embeddings that one slope is of, by the mean of q estimates."""
        records = 1 if self.scalars == "record" else batch_size
        return records * embedding_dim / self.num_directions

    def client(self, side: ClientSide) -> CzofoClient:
        """Steps 1 and 3."""
        return CzofoClient(self, side)

    def server(self, side: ServerSide) -> CzofoServer:
        """Step 2."""
        return CzofoServer(self, side)

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """q numbers, or q for each record."""
        q = self.num_directions
        return (batch, q) if self.scalars == "record" else (q,)

    def drawn(self, shared: Stream, number: int, embeddings: Tensor) -> tuple[Tensor, float]:
        """The directions of query ``number`` about embeddings [batch, d_h], and φ."""
        batch, dimension = embeddings.shape
        seed = shared.seed(number)
        return record_directions(self.directions, self.num_directions, batch, dimension, seed)


class CzofoClient:
    """Puts the gradient of its embeddings together from slopes, and back-propagates it."""

    def __init__(self, method: Czofo, side: ClientSide) -> None:
        self._method = method
        self._model = differentiable(side, method.name)
        self._optimizer = side.optimizer
        self._shared = side.shared
        self._pending: tuple[int, Tensor, Pullback] | None = None

    def ask(self, number: int, features: Tensor) -> Tensor:
        """``h``, [1, batch, d_h]."""
        embeddings, pullback = self._model.forward(Points(features))
        self._pending = number, embeddings, pullback
        return embeddings.unsqueeze(0)

    def tell(self, number: int, features: Tensor, values: Tensor) -> None:
        """``w_m ← w_m − η_m (∂h/∂w_m)ᵀ φ/q Σ_j δ_j u_j``."""
        if self._pending is None or self._pending[0] != number:
            self.ask(number, features)  # restarted in between: the same parameters, the same graph
        assert self._pending is not None
        _, embeddings, pullback = self._pending
        self._pending = None
        directions, factor = self._method.drawn(self._shared, number, embeddings)
        weights = values * (factor / self._method.num_directions)
        if self._method.scalars == "batch":
            flat = directions.reshape(len(directions), -1)
            gradient = (weights @ flat).view(embeddings.shape)
        else:
            gradient = (directions * weights.t().unsqueeze(2)).sum(0)
        self._optimizer.step(self._model.parameters, Dense(pullback(gradient)))


class CzofoServer:
    """Perturbs the embeddings it was sent, and tells by how much the loss rises."""

    def __init__(self, method: Czofo, side: ServerSide) -> None:
        self._method = method
        self._side = side

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """q slopes for each query, or for each of its records; then one step of the server."""
        side, method, ids = self._side, self._method, queries[0].ids
        moved = []
        for query in queries:
            embeddings = query.embeddings[0]
            side.table.store(query.client, ids, embeddings, round_)
            u, _ = method.drawn(side.shared[query.client], query.number, embeddings)
            moved.append((query.client, embeddings + method.smoothing * u))
        points = side.points(ids, moved)
        labels = side.labels_of(ids)
        evaluation = side.head.evaluate(points, labels)
        *_, plain = evaluation.losses
        shifted = evaluation.losses[:-1].view(len(queries), method.num_directions, -1)
        replies = []
        for query, losses in zip(queries, shifted, strict=True):
            slopes = forward_difference(losses, plain, method.smoothing).t()  # [batch, q]
            release = side.plan.each if method.scalars == "record" else side.plan.total
            replies.append(Reply(query.client, query.number, release(slopes)))
        side.update.step(side.head, evaluation, points.rows, labels)
        side.meter.add(evaluation)
        return replies
