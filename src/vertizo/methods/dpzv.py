"""DPZV: differentially private zeroth-order vertical federated learning.

Algorithm 1 of the paper, with two corrections: the slope is divided by 2λ, which makes the estimate
unbiased (so that the paper's C = 10 and client rates are C = 5 and twice the rates here), and the
clip bounds both sides. Asynchronous: a client asks when it is ready.

=================  =================================================================
algorithm 1, line  here
=================  =================================================================
4-5, eq. 6         `Dpzv.ask`: ``h± = h(w_m ± λu)``, u from the client's own stream
6, eq. 7           `Dpzv.told`: ``δ_i = (f(w_0, h+_i) − f(w_0, h−_i)) / 2λ``
6, eq. 8           the plan's release: ``Δ = (Σ clip_C(δ_i) + noise) / B``
IV-B               `Method.stored`: ``(h+ + h−)/2``, where the server then trains ``w_0``
9, eq. 9           `Dpzv.tell`: ``w_m ← w_m − η_m φ Δ u``, along the same u
=================  =================================================================

Beyond the paper a query may hold K directions, ``h±`` for each: K scalars come back, and the client
moves by the mean of the K estimates. Each scalar is clipped on its own and is an entry of its own
in the accounting (``clipping: each``), or a record's K slopes are clipped together to norm C and
are one entry (``clipping: jointly``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from vertizo.core.names import LawName
from vertizo.core.plugins.lazy_import import torch
from vertizo.methods.base import ClientSide, Features, Method, Outcome
from vertizo.zeroth_order.estimators import Sum, estimate, outputs, readable_table, two_point

if TYPE_CHECKING:
    from torch import Tensor


class Dpzv(Method):
    """Two-point zeroth-order clients; the reply is one clipped, noised scalar."""

    paper: ClassVar[str] = "DPZV (differentially private zeroth-order VFL), algorithm 1"

    tell_reads: ClassVar[bool] = False

    name: Literal["dpzv"] = "dpzv"
    smoothing: float = Field(default=1e-3, gt=0)
    """λ, the length of a perturbation in units of the direction."""
    directions: LawName = "scaled-sphere"
    """The law that directions are drawn from."""
    num_directions: int = Field(default=1, gt=0)
    """K, directions of one query; their estimates are averaged."""
    clipping: Literal["each", "jointly"] = "each"
    """each: C bounds each of a record's K slopes. jointly: C bounds the norm of them all."""

    @property
    def points(self) -> int:
        """Both sides of every direction."""
        return 2 * self.num_directions

    @property
    def releases_per_query(self) -> int:
        """One for each scalar that is clipped on its own."""
        return self.num_directions if self.clipping == "each" else 1

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """d_m, by the mean of K estimates."""
        return parameters / self.num_directions

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """A scalar for each direction."""
        return (self.num_directions,)

    def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
        """``h+`` and ``h−`` of every direction, [2K, batch, d_h]."""
        offsets = (self.smoothing, -self.smoothing)
        drawn = side.directions(self.directions, self.num_directions).of_query(number)
        if drawn[0].keep:
            side.pending = number, drawn
        if len(drawn) == 1:
            return outputs(side.model, features, drawn[0], offsets)
        return torch.cat([outputs(side.model, features, u, offsets) for u in drawn])

    def told(self, outcome: Outcome) -> Tensor:
        """``δ_i`` of every direction, [batch, K]."""
        plus, minus = outcome.losses[::2], outcome.losses[1::2]
        return two_point(plus, minus, self.smoothing).t()

    def tell(self, side: ClientSide, number: int, features: object, values: Tensor) -> None:
        """``w_m ← w_m − η_m φ/K Σ_k Δ_k u_k``."""
        drawn = side.taken(number)
        if drawn is None:
            drawn = side.directions(self.directions, self.num_directions).of_query(number)
        slopes = values.tolist() if values.is_cpu else values.unbind()
        if len(drawn) == 1:
            side.step(estimate(drawn[0], slopes[0]))
            return
        pairs = zip(drawn, slopes, strict=True)
        side.step(Sum(tuple(estimate(u, slope / len(drawn)) for u, slope in pairs)))

    def keeps(self, side: ClientSide) -> bool:
        """Whether directions are kept until they are used again."""
        return side.directions(self.directions, self.num_directions).are_kept

    def table_of(self, side: ClientSide, features: Tensor) -> Tensor | None:
        """The records as a table, where perturbed models read its rows; else None."""
        drawn = side.directions(self.directions, self.num_directions)
        return readable_table(side.model, drawn, features)
