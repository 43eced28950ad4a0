"""Tangent queries: K slopes of every record in one release, answered with a Newton step.

docs/mathematics.md, Tangent queries. ``J_i`` [d_h × d] is the Jacobian of record i's embedding,
``S`` [d × K] the client's directions, which depend on no label.

1. The client sends ``h_i`` and the tangents ``U_i = J_i S`` [d_h × K] of every record of its batch,
   which is the whole table.
2. The server takes ``s_i = U_iᵀ ∂f_i/∂h_i``, clips each record's K numbers jointly to norm C and
   releases their noised mean ``a``: one release, whatever K is.
3. It answers with the damped Newton step ``v = a H / (H² + σ²/τ²)``, where ``H`` is about the
   curvature along each direction, ``mean_i ‖U_i‖² / η`` or public, and σ the noise of ``a``: the
   posterior mean where steps have a normal prior of variance τ². All in it is known or released.
   It moves its own copy of the embeddings by ``U_i v``, so that the next client's slopes know.
4. The client steps ``w_m ← w_m − S v``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from vertizo.core.deferred import torch
from vertizo.core.errors import ConfigError
from vertizo.core.names import Timing
from vertizo.methods.base import Answered, ClientSide, Features, Method, Outcome
from vertizo.models.base import DifferentiableModel, Selected
from vertizo.models.optimizers import Dense
from vertizo.zeroth_order.tangents import principal

if TYPE_CHECKING:
    from torch import Tensor

    from vertizo.protocol.messages import Query


FLAT = 1e-6
"""Share of the largest variance below which a direction is left out."""
LARGEST = float(np.finfo(np.float32).max)


class Tangent(Method):
    """K slopes of every record in one release, answered with a damped Newton step."""

    paper: ClassVar[str] = "tangent queries (docs/mathematics.md); after DP-AggZO"
    timings: ClassVar[tuple[Timing, ...]] = ("asynchronous",)
    additive: ClassVar[bool] = True
    sends_tangents: ClassVar[bool] = True
    evaluations_per_query: ClassVar[int] = 0  # beside the table's own
    releases_per_query: ClassVar[int] = 1  # a record's K numbers are clipped together

    name: Literal["tangent"] = "tangent"
    num_directions: PositiveInt = 16
    """K, directions of one query, clipped and charged together; unset: by ε and the records."""
    directions: Literal["principal", "orthonormal"] = "principal"
    """principal: the directions in which the client's embeddings vary most, which it computes from
    its features; orthonormal: random ones, where features are to stay covered."""
    whitening: float = Field(default=0.5, ge=0, le=1)
    """α: principal directions of variance Λ are scaled by Λ^(−α/2)."""
    sweeps: PositiveInt = 4
    """Queries of each client, each about all records; epochs and batch_size take its place."""
    damping: float = Field(default=5.0, gt=0)
    """η, by which steps are longer than gradient steps of unit curvature."""
    spread: float = Field(default=2.0, gt=0)
    """τ, how large a coefficient of a step is expected to be, where there is noise."""

    @property
    def whole_queries(self) -> int:
        """The sweeps."""
        return self.sweeps

    @property
    def points(self) -> int:
        """The embedding, and its tangents."""
        return 1 + self.num_directions

    @property
    def mixes_features(self) -> bool:
        """Principal directions, and curvatures along them, are of all records together."""
        return self.directions == "principal"

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """A coefficient for each direction."""
        return (self.num_directions,)

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """None: slopes are exact."""
        return 0.0

    def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
        """``h`` and ``U``, [1 + K, batch, d_h]."""
        assert not isinstance(features, Selected)
        chosen = self._chosen(side, number, features)
        side.pending = number, chosen
        return torch.cat([side.model(features).unsqueeze(0), side.model.tangents(chosen, features)])

    def stored(self, embeddings: Tensor) -> Tensor:
        """The embeddings themselves."""
        return embeddings[0]

    def evaluated(self, query: Query, shared: object) -> None:
        """Nothing: slopes are taken where the table is."""

    def told(self, outcome: Outcome) -> Tensor:
        """``s_i``, [batch, K]."""
        return torch.einsum("knd,nd->nk", outcome.query.embeddings[1:], outcome.gradient())

    def answered(self, query: Query, released: Tensor, noise_std: float) -> Answered:
        """The step that the client is to make, and where its embeddings then are."""
        embedded, along = query.embeddings[0], query.embeddings[1:].double()
        if self.directions == "principal":
            curvature = along.square().sum(2).mean(1) / self.damping
        else:  # what a row of length 1 has on average, so that no record's features are in it
            curvature = torch.full((len(along),), 1 / (len(along) * self.damping)).double()
        divisor = curvature.square() + (noise_std / self.spread) ** 2
        step = torch.where(divisor > 0, released * curvature / divisor, 0.0)
        step = step.nan_to_num(0.0).clamp(-LARGEST, LARGEST)  # tangents may be of any size
        moved = embedded - torch.einsum("knd,k->nd", along, step)
        return Answered(step.float(), moved.clamp(-LARGEST, LARGEST).float())

    def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
        """``w_m ← w_m − S v``."""
        assert not isinstance(features, Selected)
        chosen = side.taken(number)
        if chosen is None:
            chosen = self._chosen(side, number, features)
        side.step(Dense(values @ chosen))

    def _chosen(self, side: ClientSide, number: int, features: Tensor) -> Tensor:
        """``Sᵀ``, [K, d]; rows of zeros where there are fewer parameters."""
        size, model = side.model.parameters.numel(), side.model
        count = min(self.num_directions, size)
        chosen = torch.zeros(self.num_directions, size)
        generator = torch.Generator().manual_seed(side.stream.child("tangents").seed(number) >> 1)
        if self.directions == "orthonormal":
            drawn = torch.linalg.qr(torch.randn(size, count, generator=generator)).Q.t()
            chosen[:count] = drawn / count**0.5  # for standardised inputs, length 1 as well
            return chosen
        if not isinstance(model, DifferentiableModel):
            raise ConfigError(
                f"method.directions is 'principal', which needs a differentiable client model, not "
                f"{type(model).__name__}; use 'orthonormal'"
            )
        values, vectors = principal(model, features, count, generator)
        varies = values > FLAT * values[:1]  # along the others there is nothing but rounding
        scaled = values.clamp(min=1e-30) ** (-self.whitening / 2) * varies
        length = (values * scaled.square()).sum().sqrt()  # a record's tangents then have length 1
        chosen[:count] = (scaled / length).unsqueeze(1) * vectors
        return chosen
