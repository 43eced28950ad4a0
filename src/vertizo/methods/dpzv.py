"""DPZV: differentially private zeroth-order vertical federated learning.

Algorithm 1 of the paper, with two corrections: the slope is divided by 2λ, which makes the estimate
unbiased (so that the paper's C = 10 and client rates are C = 5 and twice the rates here), and the
clip bounds both sides. Asynchronous: a client asks when it is ready.

====================  ==============================================================
line of algorithm 1   here
====================  ==============================================================
4-5, eq. 6            `DpzvClient.ask`: ``h± = h(w_m ± λu)``, u from the client's own stream
6, eq. 7              ``δ_i = (f(w_0, h+_i) − f(w_0, h−_i)) / 2λ``
6, eq. 8              `Plan.total`: ``Δ = (Σ clip_C(δ_i) + noise) / B``, the one scalar that is sent
IV-B                  the server stores ``(h+ + h−)/2`` and trains ``w_0`` there
9, eq. 9              `DpzvClient.tell`: ``w_m ← w_m − η_m φ Δ u``, along the same u
====================  ==============================================================
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
from vertizo.zeroth_order.estimators import estimate, two_point
from vertizo.zeroth_order.perturbation import outputs


class Dpzv(Method):
    """Two-point zeroth-order clients; the reply is one clipped, noised scalar."""

    points: ClassVar[int] = 2
    evaluations_per_query: ClassVar[int] = 2
    paper: ClassVar[str] = "DPZV (differentially private zeroth-order VFL), algorithm 1"

    name: Literal["dpzv"] = "dpzv"
    smoothing: float = Field(default=1e-3, gt=0)
    """λ, the length of a perturbation in units of the direction."""
    directions: LawName = "scaled-sphere"

    def client(self, side: ClientSide) -> DpzvClient:
        """Lines 4-5 and 9."""
        return DpzvClient(self, side)

    def server(self, side: ServerSide) -> DpzvServer:
        """Lines 6-7."""
        return DpzvServer(self, side)

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """One scalar."""
        return (1,)


class DpzvClient:
    """Shifts its parameters to both sides, and later along the same direction."""

    def __init__(self, method: Dpzv, side: ClientSide) -> None:
        self._model = side.model
        self._optimizer = side.optimizer
        self._smoothing = method.smoothing
        dimension = side.model.parameters.numel()
        self._directions = Directions(method.directions, dimension, side.stream)

    def ask(self, number: int, features: Tensor) -> Tensor:
        """``h+`` and ``h−``, [2, batch, d_h]."""
        direction = self._directions.draw(number)
        offsets = (self._smoothing, -self._smoothing)
        return outputs(self._model, features, direction, offsets)

    def tell(self, number: int, features: Tensor, values: Tensor) -> None:
        """``w_m ← w_m − η_m φ Δ u``."""
        direction = self._directions.draw(number)
        self._optimizer.step(self._model.parameters, estimate(direction, values.item()))


class DpzvServer:
    """Turns the losses on both sides of a perturbation into one scalar."""

    def __init__(self, method: Dpzv, side: ServerSide) -> None:
        self._side = side
        self._smoothing = method.smoothing

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """One scalar for each query, then one step of the server model."""
        side, ids = self._side, queries[0].ids
        for query in queries:
            plus, minus = query.embeddings.unbind()
            side.table.store(query.client, ids, torch.lerp(plus, minus, 0.5), round_)
        points = side.table.points(ids, [(q.client, q.embeddings) for q in queries])
        labels = side.labels_of(ids)
        evaluation = side.head.evaluate(points, labels)
        replies = []
        pairs = evaluation.losses[:-1].view(len(queries), 2, -1)
        for query, (plus, minus) in zip(queries, pairs, strict=True):
            slopes = two_point(plus, minus, self._smoothing)
            replies.append(Reply(query.client, query.number, side.plan.total(slopes)))
        side.update.step(side.head, evaluation, points.rows, labels)
        side.meter.add(evaluation)
        return replies
