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

Beyond the paper a query may hold K directions, ``h±`` for each: K scalars come back, and the client
moves by the mean of the K estimates. Each scalar is clipped on its own and is an entry of its own
in the accounting (``clipping: each``), or a record's K slopes are clipped together to norm C and
are one entry (``clipping: jointly``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vertizo.core.names import LawName
from vertizo.methods.base import ClientSide, Method, ServerSide
from vertizo.models.base import Selected
from vertizo.protocol.messages import Query, Reply
from vertizo.zeroth_order.directions import Direction, Directions
from vertizo.zeroth_order.estimators import Sum, estimate, two_point
from vertizo.zeroth_order.perturbation import outputs, readable_table


class Dpzv(Method):
    """Two-point zeroth-order clients; the reply is one clipped, noised scalar."""

    paper: ClassVar[str] = "DPZV (differentially private zeroth-order VFL), algorithm 1"

    name: Literal["dpzv"] = "dpzv"
    smoothing: float = Field(default=1e-3, gt=0)
    """λ, the length of a perturbation in units of the direction."""
    directions: LawName = "scaled-sphere"
    """The law that directions are drawn from."""
    num_directions: int = Field(default=1, gt=0)
    """K, directions of one query; their estimates are averaged."""
    clipping: Literal["each", "jointly"] = "each"
    """Whether each of a record's K slopes is bounded by C, or the norm of them all."""

    @property
    def points(self) -> int:
        """Both sides of every direction."""
        return 2 * self.num_directions

    @property
    def evaluations_per_query(self) -> int:
        """At each of them."""
        return self.points

    @property
    def releases_per_query(self) -> int:
        """One for each scalar that is clipped on its own."""
        return self.num_directions if self.clipping == "each" else 1

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """d_m, by the mean of K estimates."""
        return parameters / self.num_directions

    def client(self, side: ClientSide) -> DpzvClient:
        """Lines 4-5 and 9."""
        return DpzvClient(self, side)

    def server(self, side: ServerSide) -> DpzvServer:
        """Lines 6-7."""
        return DpzvServer(self, side)

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """A scalar for each direction."""
        return (self.num_directions,)


class DpzvClient:
    """Shifts its parameters to both sides, and later along the same direction."""

    def __init__(self, method: Dpzv, side: ClientSide) -> None:
        self._model = side.model
        self._optimizer = side.optimizer
        self._smoothing = method.smoothing
        self._count = method.num_directions
        dimension = side.model.parameters.numel()
        self.directions = Directions(method.directions, dimension, side.stream, self._count)

    def _drawn(self, number: int) -> list[Direction]:
        """The directions of query ``number``."""
        first = number * self._count
        return [self.directions.draw(first + k) for k in range(self._count)]

    def table_of(self, features: Tensor) -> Tensor | None:
        """As of a `RowReader`."""
        return readable_table(self._model, self.directions, features)

    def ask(self, number: int, features: Tensor | Selected) -> Tensor:
        """``h+`` and ``h−`` of every direction, [2K, batch, d_h]."""
        offsets = (self._smoothing, -self._smoothing)
        pairs = [outputs(self._model, features, u, offsets) for u in self._drawn(number)]
        return pairs[0] if len(pairs) == 1 else torch.cat(pairs)

    def tell(self, number: int, features: Tensor | Selected, values: Tensor) -> None:
        """``w_m ← w_m − η_m φ/K Σ_k Δ_k u_k``."""
        estimates = [
            estimate(u, slope / self._count)
            for u, slope in zip(self._drawn(number), values.tolist(), strict=True)
        ]
        gradient = estimates[0] if len(estimates) == 1 else Sum(tuple(estimates))
        self._optimizer.step(self._model.parameters, gradient)


class DpzvServer:
    """Turns the losses on both sides of a perturbation into one scalar."""

    def __init__(self, method: Dpzv, side: ServerSide) -> None:
        self._side = side
        self._smoothing = method.smoothing
        self._count = method.num_directions
        self._jointly = method.clipping == "jointly"

    def answer(self, queries: Sequence[Query], round_: int) -> list[Reply]:
        """K scalars for each query, then one step of the server model."""
        side, ids = self._side, queries[0].ids
        for query in queries:
            side.table.store(query.client, ids, midpoint(query.embeddings), round_)
        points = side.points(ids, [(q.client, q.embeddings) for q in queries])
        labels = side.labels_of(ids)
        evaluation = side.head.evaluate(points, labels)
        replies = []
        pairs = evaluation.losses[:-1].view(len(queries), self._count, 2, -1)
        for query, losses in zip(queries, pairs, strict=True):
            slopes = two_point(losses[:, 0], losses[:, 1], self._smoothing)  # [K, batch]
            replies.append(Reply(query.client, query.number, self._released(slopes)))
        side.update.step(side.head, evaluation, points.rows, labels)
        side.meter.add(evaluation)
        return replies

    def _released(self, slopes: Tensor) -> Tensor:
        if self._jointly:
            return self._side.plan.total(slopes.t())
        scalars = [self._side.plan.total(each) for each in slopes]
        return scalars[0] if len(scalars) == 1 else torch.cat(scalars)


def midpoint(points: Tensor) -> Tensor:
    """The mean of all points, the first axis: where no perturbation was, up to O(λ²)."""
    total = np.add.reduce(points.numpy(), 0)
    total *= np.float32(1 / len(points))
    return torch.from_numpy(total)
