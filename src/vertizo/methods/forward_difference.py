"""The halves that `Cascaded`, `ZooVfl` and `SynZooVfl` share: the forward difference of two losses.

The three differ in how their server is trained and in timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vertizo.core.names import LawName
from vertizo.methods.base import ClientSide, Method, ServerSide
from vertizo.models.base import Selected
from vertizo.protocol.messages import Query, Reply
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import estimate, forward_difference
from vertizo.zeroth_order.perturbation import outputs, readable_table

ReplyForm = Literal["losses", "difference"]


class ForwardDifference(Method):
    """Two embeddings of each record at ``w_m`` and ``w_m + μu``; what is told of their losses."""

    smoothing: float = Field(default=1e-3, gt=0)
    """μ, the length of a perturbation in units of the direction."""
    directions: LawName = "gaussian"
    """The law that directions are drawn from."""
    reply: ReplyForm = "losses"
    """Both batch-mean losses, or their difference over μ: what a clip and noise are made for."""

    @property
    def points(self) -> int:
        """``c`` and ``ĉ``."""
        return 2

    @property
    def evaluations_per_query(self) -> int:
        """At ``ĉ``."""
        return 1

    @property
    def reply_is_losses(self) -> bool:
        """Whether both losses are sent."""
        return self.reply == "losses"

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """d_m."""
        return parameters

    def client(self, side: ClientSide) -> ForwardDifferenceClient:
        """Sends two embeddings of each record."""
        return ForwardDifferenceClient(self, side)

    def server(self, side: ServerSide) -> ForwardDifferenceServer:
        """Answers with two losses, or their difference."""
        return ForwardDifferenceServer(self, side)

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """Two losses or one slope."""
        return (2,) if self.reply == "losses" else (1,)


class ForwardDifferenceClient:
    """Moves by the difference of two losses along a direction that only it knows."""

    def __init__(self, method: ForwardDifference, side: ClientSide) -> None:
        self._model = side.model
        self._optimizer = side.optimizer
        self._smoothing = method.smoothing
        dimension = side.model.parameters.numel()
        self.directions = Directions(method.directions, dimension, side.stream)

    def table_of(self, features: Tensor) -> Tensor | None:
        """As of a `RowReader`."""
        return readable_table(self._model, self.directions, features)

    def ask(self, number: int, features: Tensor | Selected) -> Tensor:
        """``c`` and ``ĉ``, [2, batch, d_h]."""
        direction = self.directions.draw(number)
        return outputs(self._model, features, direction, (0.0, self._smoothing))

    def tell(self, number: int, features: Tensor | Selected, values: Tensor) -> None:
        """``w_m ← w_m − η_m φ (ĥ − h)/μ · u``."""
        numbers = values.tolist()
        if len(numbers) == 2:
            plain, shifted = numbers
            slope = forward_difference(shifted, plain, self._smoothing)
        else:
            (slope,) = numbers
        direction = self.directions.draw(number)
        self._optimizer.step(self._model.parameters, estimate(direction, slope))


class ForwardDifferenceServer:
    """Evaluates both embeddings on the same weights, and trains on the unperturbed one."""

    def __init__(self, method: ForwardDifference, side: ServerSide) -> None:
        self._side = side
        self._reply = method.reply
        self._smoothing = method.smoothing

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """Two mean losses, or their slope, for each query; then one step of the server model."""
        side, ids = self._side, queries[0].ids
        asked = [(query.client, query.embeddings.numpy()) for query in queries]
        for client, embeddings in asked:
            side.table.store(client, ids, embeddings[0], round_)
        points = side.points(ids, [(client, embeddings[1:]) for client, embeddings in asked])
        labels = side.labels_of(ids)
        evaluation = side.head.evaluate(points, labels)
        *shifted, plain = evaluation.losses.numpy()
        replies = []
        for query, losses in zip(queries, shifted, strict=True):
            if self._reply == "losses":
                pair = np.empty((2, losses.size), np.float32)
                pair[0], pair[1] = plain, losses
                told = pair.T  # sums run along memory
            else:
                told = forward_difference(losses, plain, self._smoothing)
            released = side.plan.total(torch.from_numpy(told))
            replies.append(Reply(query.client, query.number, released))
        side.update.step(side.head, evaluation, points.rows, labels)
        side.meter.add(evaluation)
        return replies
