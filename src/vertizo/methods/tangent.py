"""Tangent queries: K slopes of every record in one release, answered with a Newton step.

docs/mathematics.md, Tangent queries; ``J_i``, ``S`` and ``U_i`` are as in
`vertizo.methods.directional_queries`.

1. The client sends ``h_i`` and the tangents ``U_i = J_i S`` [d_h × K] of every record of its batch,
   which is the whole table.
2. The server takes ``s_i = U_iᵀ ∂f_i/∂h_i``, clips each record's K numbers jointly to norm C and
   releases their noised mean ``a``: one release, whatever K is.
3. It answers with the damped Newton step ``v = a H / (H² + σ²/τ²)``, where ``H`` is about the
   curvature along each direction, ``mean_i ‖U_i‖² / η`` or public, and σ the noise of ``a``: the
   posterior mean where steps have a normal prior of variance τ². All in it is known or released.
   It moves its own copy of the embeddings by ``U_i v``, so that the next client's slopes know.
4. The client steps ``w_m ← w_m − S v``. Where its model is not affine in w, that would miss by the
   curvature: it goes to where its embeddings are nearest to the promised ``h_i − U_i v`` instead,
   by its own features alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from vertizo.core.plugins.lazy_import import torch
from vertizo.methods.base import Answered, ClientSide, Features, Outcome
from vertizo.methods.directional_queries import AlongDirections
from vertizo.models.base import DifferentiableModel, Model, gathered
from vertizo.models.optimizers import Dense
from vertizo.zeroth_order.tangents import reached

if TYPE_CHECKING:
    from torch import Tensor

    from vertizo.protocol.messages import Query


LARGEST = float(np.finfo(np.float32).max)


class Tangent(AlongDirections):
    """K slopes of every record in one release, answered with a damped Newton step."""

    paper: ClassVar[str] = "tangent queries (docs/mathematics.md); after DP-AggZO"

    name: Literal["tangent"] = "tangent"
    sweeps: PositiveInt = 4
    """Queries of each client, each about all records; epochs and batch_size take its place."""
    damping: float = Field(default=5.0, gt=0)
    """η, by which steps are longer than gradient steps of unit curvature."""
    spread: float = Field(default=2.0, gt=0)
    """τ, how large a coefficient of a step is expected to be, where there is noise."""

    @property
    def whole_queries(self) -> int:
        """The sweeps: each is about all records."""
        return self.sweeps

    @property
    def mixes_features(self) -> bool:
        """Whether directions are principal: they, and curvatures along them, are of all records."""
        return self.directions == "principal"

    def fits(self, model: Model) -> bool:
        """Whether it is not affine: then it is fitted to the promised embeddings of all records."""
        return isinstance(model, DifferentiableModel) and not model.is_affine

    def told(self, outcome: Outcome) -> Tensor:
        """``s_i``, [batch, K]."""
        return torch.einsum("knd,nd->nk", outcome.query.embeddings[1:], outcome.gradient())

    def answered(self, query: Query, released: Tensor, noise_std: float) -> Answered:
        """The step that the client is to make, and where its embeddings are after it."""
        embedded, along = query.embeddings[0], query.embeddings[1:].double()
        if self.directions == "principal":
            curvature = along.square().sum(2).mean(1) / self.damping
        else:  # what a row of length 1 has on average, so that no record's features are in it
            curvature = along.new_full((len(along),), 1 / (len(along) * self.damping)).double()
        divisor = curvature.square() + (noise_std / self.spread) ** 2
        step = torch.where(divisor > 0, released * curvature / divisor, 0.0)
        step = step.nan_to_num(0.0).clamp(-LARGEST, LARGEST)  # tangents may be of any size
        moved = embedded - torch.einsum("knd,k->nd", along, step)
        return Answered(step.float(), moved.clamp(-LARGEST, LARGEST).float())

    def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
        """``w_m ← w_m − S v``, or to where the embeddings are nearest to what that promises."""
        move, model = values @ self.asked_along(side, number, features), side.model
        if isinstance(model, DifferentiableModel) and self.fits(model):
            move = reached(model, gathered(features), move)
        side.step(Dense(move))
