"""VAFL: asynchronous vertical federated learning by first-order gradients.

A client sends its embeddings; the server answers with the gradient of the batch loss with respect
to them, ``∂L/∂h_m`` [batch, d_h], and steps by its own; the client back-propagates. Every record's
label can be read off that answer: this is the baseline that the zeroth-order methods are held
against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor

from vertizo.errors import ConfigError
from vertizo.messages import Query, Reply
from vertizo.methods.base import ClientSide, Method, ServerSide
from vertizo.models.base import Dense, DifferentiableModel, Points, Pullback


class Vafl(Method):
    """First-order clients; the reply is the gradient with respect to the embeddings."""

    points: ClassVar[int] = 1
    evaluations_per_query: ClassVar[int] = 0
    first_order_client: ClassVar[bool] = True
    first_order_reply: ClassVar[bool] = True
    paper: ClassVar[str] = "VAFL (asynchronous vertical federated learning, first order)"

    name: Literal["vafl"] = "vafl"

    def client(self, side: ClientSide) -> VaflClient:
        """Sends one embedding of each record."""
        return VaflClient(side)

    def server(self, side: ServerSide) -> VaflServer:
        """Answers with a gradient for each record."""
        return VaflServer(side)

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """A gradient of the embeddings' shape."""
        return (batch, embedding_dim)


class VaflClient:
    """Back-propagates what the server sends."""

    def __init__(self, side: ClientSide) -> None:
        if not isinstance(side.model, DifferentiableModel):
            raise ConfigError(
                f"method vafl needs a differentiable client model, not {type(side.model).__name__};"
                " dpzv and cascaded train any function"
            )
        self._model = side.model
        self._optimizer = side.optimizer
        self._pending: tuple[int, Pullback] | None = None

    def ask(self, number: int, features: Tensor) -> Tensor:
        """``h``, [1, batch, d_h]."""
        embeddings, pullback = self._model.forward(Points(features))
        self._pending = number, pullback
        return embeddings.unsqueeze(0)

    def tell(self, number: int, features: Tensor, values: Tensor) -> None:
        """``w_m ← w_m − η_m (∂h/∂w_m)ᵀ ∂L/∂h``."""
        if self._pending is None or self._pending[0] != number:
            self.ask(number, features)  # restarted in between: the same parameters, the same graph
        assert self._pending is not None
        _, pullback = self._pending
        self._pending = None
        self._optimizer.step(self._model.parameters, Dense(pullback(values)))


class VaflServer:
    """Back-propagates the loss to the embeddings."""

    def __init__(self, side: ServerSide) -> None:
        self._side = side

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """A gradient for each query, then one step of the server model."""
        side, ids = self._side, queries[0].ids
        for query in queries:
            side.table.store(query.client, ids, query.embeddings[0], round_)
        points = side.table.points(ids)
        labels = side.labels_of(ids)
        evaluation = side.head.evaluate(points, labels)
        gradient = evaluation.input_gradient(1.0)
        replies = [
            Reply(
                query.client, query.number, side.plan.each(side.table.part(query.client, gradient))
            )
            for query in queries
        ]
        side.update.step(side.head, evaluation, points.rows, labels)
        side.meter.add(evaluation)
        return replies
