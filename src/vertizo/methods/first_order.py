"""The halves that the first-order methods share: embeddings one way, their gradient the other.

`Vafl`, `Split`, `CompressedVfl`, `FedBcd` and `FlexVfl` differ in timing, in codecs and in how many
local steps one exchange serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.methods.base import ClientSide, Method, ServerSide
from vertizo.models.base import Dense, DifferentiableModel, Points, Pullback
from vertizo.protocol.messages import Query, Reply


def differentiable(side: ClientSide, method: str) -> DifferentiableModel:
    """The client's model, if it can be back-propagated through; else ConfigError."""
    if not isinstance(side.model, DifferentiableModel):
        raise ConfigError(
            f"method {method} needs a differentiable client model, not "
            f"{type(side.model).__name__}; dpzv, cascaded and zoo-vfl train any function"
        )
    return side.model


class FirstOrder(Method):
    """Embeddings one way, their gradient the other."""

    first_order_client: ClassVar[bool] = True
    as_pytorch: ClassVar[bool] = True

    @property
    def reply_is_gradient(self) -> bool:
        """It is."""
        return True

    def client(self, side: ClientSide) -> FirstOrderClient:
        """Sends one embedding of each record."""
        return FirstOrderClient(side, self.name, self.steps_of(side.index))

    def server(self, side: ServerSide) -> FirstOrderServer:
        """Answers with a gradient for each record."""
        return FirstOrderServer(side, self.server_steps)

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """A gradient of the embeddings' shape."""
        return (batch, embedding_dim)


class FirstOrderClient:
    """Sends ``h`` [1, batch, d_h]; back-propagates the ``∂L/∂h`` [batch, d_h] that comes back.

    Args:
        side: what it works with.
        method: the method's name, for errors.
        local_steps: Q, steps for one answer; after each the batch is embedded anew, and the
            answer's gradient used again.
    """

    def __init__(self, side: ClientSide, method: str, local_steps: int = 1) -> None:
        self._model = differentiable(side, method)
        self._optimizer = side.optimizer
        self._local_steps = local_steps
        self._pending: tuple[int, Pullback] | None = None

    def ask(self, number: int, features: Tensor) -> Tensor:
        """``h``, [1, batch, d_h]."""
        embeddings, pullback = self._model.forward(Points(features), number * self._local_steps)
        self._pending = number, pullback
        return embeddings.unsqueeze(0)

    def tell(self, number: int, features: Tensor, values: Tensor) -> None:
        """``w_m ← w_m − η_m (∂h/∂w_m)ᵀ ∂L/∂h``, Q times."""
        pullback = None
        if self._pending is not None and self._pending[0] == number:
            pullback = self._pending[1]
        self._pending = None
        first = number * self._local_steps
        for step in range(first, first + self._local_steps):
            if pullback is None:  # a later local step, or a client that was restarted in between
                _, pullback = self._model.forward(Points(features), step)
            self._optimizer.step(self._model.parameters, Dense(pullback(values)))
            self._model.settle()
            pullback = None


class FirstOrderServer:
    """Back-propagates the loss to the embeddings, and trains on them.

    Args:
        side: what it works with.
        local_steps: Q, steps on the embeddings of one round.
    """

    def __init__(self, side: ServerSide, local_steps: int = 1) -> None:
        self._side = side
        self._local_steps = local_steps

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """A gradient for each query, then the server model's steps."""
        side, ids = self._side, queries[0].ids
        for query in queries:
            side.table.store(query.client, ids, query.embeddings[0], round_)
        points = side.points(ids)
        labels = side.labels_of(ids)
        first = round_ * self._local_steps
        evaluation = side.head.evaluate(points, labels, first)
        gradient = evaluation.input_gradient(1.0)
        replies = [
            Reply(
                query.client, query.number, side.plan.each(side.table.part(query.client, gradient))
            )
            for query in queries
        ]
        side.meter.add(evaluation)
        side.update.step(side.head, evaluation, points.rows, labels)
        side.head.settle()
        for step in range(first + 1, first + self._local_steps):
            evaluation = side.head.evaluate(points, labels, step)
            side.update.step(side.head, evaluation, points.rows, labels)
            side.head.settle()
        return replies
