"""The steps that `Cascaded`, `ZooVfl` and `SynZooVfl` share: the forward difference of two losses.

The three differ in how their server is trained and in timing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from vertizo.core.deferred import torch
from vertizo.core.names import LawName
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide, Features, Method, Outcome
from vertizo.protocol.messages import Query
from vertizo.zeroth_order.estimators import estimate, forward_difference, outputs, readable_table

if TYPE_CHECKING:
    from torch import Tensor

ReplyForm = Literal["losses", "difference"]


class ForwardDifference(Method):
    """Two embeddings of each record at ``w_m`` and ``w_m + μu``; what is told of their losses."""

    smoothing: float = Field(default=1e-3, gt=0)
    """μ, the length of a perturbation in units of the direction."""
    directions: LawName = "gaussian"
    """The law that directions are drawn from."""
    reply: ReplyForm = "losses"
    """losses: both batch-mean losses. difference: their difference over μ, which a clip and noise
    need."""

    @property
    def points(self) -> int:
        """``c`` and ``ĉ``."""
        return 2

    @property
    def evaluations_per_query(self) -> int:
        """At ``ĉ``."""
        return 1

    @property
    def releases_per_query(self) -> int:
        """The slope."""
        return 1

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
        pair = np.empty((2, plain.numel()), np.float32)
        pair[0], pair[1] = plain, shifted
        return torch.from_numpy(pair.T)  # sums run along memory

    def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
        """``w_m ← w_m − η_m φ (ĥ − h)/μ · u``."""
        numbers = values.tolist()
        slope = numbers[0]
        if self.reply == "losses":
            plain, shifted = numbers
            slope = forward_difference(shifted, plain, self.smoothing)
        side.step(estimate(side.directions(self.directions).draw(number), slope))

    def table_of(self, side: ClientSide, features: Tensor) -> Tensor | None:
        """The records, where perturbed models read them."""
        return readable_table(side.model, side.directions(self.directions), features)
