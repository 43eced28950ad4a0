"""VFL-Cascaded: zeroth-order clients under a first-order server.

A client sends ``c = h(w_m)`` and ``ĉ = h(w_m + μu)``; the server answers with the two batch-mean
losses and steps once by its own gradient at ``c``; the client moves by the forward difference
``φ (ĥ − h)/μ · u``. Asynchronous. Both losses are evaluated on the same server weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from vertizo.messages import Query, Reply
from vertizo.methods.base import ClientSide, Method, ServerSide
from vertizo.zeroth_order.directions import Directions, LawName
from vertizo.zeroth_order.estimators import estimate, forward_difference
from vertizo.zeroth_order.perturbation import outputs


class Cascaded(Method):
    """Forward-difference clients; the reply is the two batch-mean losses."""

    points: ClassVar[int] = 2
    evaluations_per_query: ClassVar[int] = 1
    paper: ClassVar[str] = "VFL-Cascaded (asynchronous VFL by cascaded hybrid optimisation)"

    name: Literal["cascaded"] = "cascaded"
    smoothing: float = Field(default=1e-3, gt=0)
    """μ, the length of a perturbation in units of the direction."""
    directions: LawName = "gaussian"

    def client(self, side: ClientSide) -> CascadedClient:
        """Sends two embeddings of each record."""
        return CascadedClient(self, side)

    def server(self, side: ServerSide) -> CascadedServer:
        """Answers with two losses."""
        return CascadedServer(side)

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """Two losses."""
        return (2,)


class CascadedClient:
    """Moves by the difference of two losses along a direction that only it knows."""

    def __init__(self, method: Cascaded, side: ClientSide) -> None:
        self._model = side.model
        self._optimizer = side.optimizer
        self._smoothing = method.smoothing
        dimension = side.model.parameters.numel()
        self._directions = Directions(method.directions, dimension, side.stream)

    def ask(self, number: int, features: Tensor) -> Tensor:
        """``c`` and ``ĉ``, [2, batch, d_h]."""
        direction = self._directions.draw(number)
        return outputs(self._model, features, direction, (0.0, self._smoothing))

    def tell(self, number: int, features: Tensor, values: Tensor) -> None:
        """``w_m ← w_m − η_m φ (ĥ − h)/μ · u``."""
        plain, shifted = values.tolist()
        slope = forward_difference(shifted, plain, self._smoothing)
        direction = self._directions.draw(number)
        self._optimizer.step(self._model.parameters, estimate(direction, slope))


class CascadedServer:
    """Evaluates both embeddings, and trains on the unperturbed one."""

    def __init__(self, side: ServerSide) -> None:
        self._side = side

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """Two mean losses for each query, then one step of the server model."""
        side, ids = self._side, queries[0].ids
        for query in queries:
            side.table.store(query.client, ids, query.embeddings[0], round_)
        points = side.table.points(ids, [(q.client, q.embeddings[1:]) for q in queries])
        labels = side.labels_of(ids)
        evaluation = side.head.evaluate(points, labels)
        *shifted, plain = evaluation.losses.unbind()
        replies = [
            Reply(query.client, query.number, side.plan.total(torch.stack([plain, losses], 1)))
            for query, losses in zip(queries, shifted, strict=True)
        ]
        side.update.step(side.head, evaluation, points.rows, labels)
        side.meter.add(evaluation)
        return replies
