"""Steps that methods share which query all records along K directions of a client's parameters.

``J_i`` [d_h × d] is the Jacobian of record i's embedding, ``S`` [d × K] the client's directions,
which depend on no label, ``U_i = J_i S`` [d_h × K] the record's tangents.

*Held tangents.* Of a model that is affine in its parameters ``J_i`` never changes. Principal
directions, taken over all records, do not either: the first query brings ``U_i``, the server keeps
them, and later ones bring ``h_i`` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeGuard

import numpy as np
from pydantic import Field, PositiveInt

from vertizo.core import arrays
from vertizo.core.errors import ConfigError
from vertizo.core.names import Timing
from vertizo.core.plugins.lazy_import import torch
from vertizo.methods.base import ClientSide, Features, Method
from vertizo.models.base import DifferentiableModel, Selected, gathered
from vertizo.zeroth_order.tangents import principal

if TYPE_CHECKING:
    from torch import Tensor

    from vertizo.protocol.messages import Query

FLAT = 1e-6
"""Share of the largest variance below which a direction is left out."""


class AlongDirections(Method):
    """Sends each record's embedding and tangents; its K numbers are clipped together."""

    timings: ClassVar[tuple[Timing, ...]] = ("asynchronous",)
    additive: ClassVar[bool] = True
    sends_tangents: ClassVar[bool] = True
    evaluations_per_query: ClassVar[int] = 0  # beside the table's own
    releases_per_query: ClassVar[int] = 1  # a record's K numbers are clipped together

    num_directions: PositiveInt = 16
    """K, directions of one query, clipped and charged together; unset: by ε and the records."""
    directions: Literal["principal", "orthonormal"] = "principal"
    """principal: the directions in which the client's embeddings vary most, which it computes from
    its features; orthonormal: random ones."""
    whitening: float = Field(default=0.5, ge=0, le=1)
    """α: principal directions of variance Λ are scaled by Λ^(−α/2)."""

    @property
    def points(self) -> int:
        """The embedding, and its tangents."""
        return 1 + self.num_directions

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """A number for each direction."""
        return (self.num_directions,)

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """0: slopes are exact."""
        return 0.0

    def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
        """``h`` and ``U``, [1 + K, batch, d_h]; ``h`` alone, [1, batch, d_h], where U is held."""
        chosen = self.chosen(side, number, features)
        side.pending = number, chosen
        rows = gathered(features)
        embedded = side.model(rows).unsqueeze(0)
        if number and _is_whole(features):
            return embedded  # the server holds the tangents
        return torch.cat([embedded, side.model.tangents(chosen, rows)])

    def table_of(self, side: ClientSide, features: Tensor) -> Tensor | None:
        """The records as a table, where one choice of directions serves all queries; else None."""
        return features if self.directions == "principal" and side.model.is_affine else None

    def stored(self, embeddings: Tensor) -> Tensor:
        """The embeddings themselves."""
        return embeddings[0]

    def evaluated(self, query: Query, shared: object) -> None:
        """None: slopes are taken where the table is, or at logits of zero."""

    def asked_along(self, side: ClientSide, number: int, features: Features) -> Tensor:
        """The directions of an open query, ``Sᵀ`` [K, d], made anew after a restart."""
        chosen = side.taken(number)
        return self.chosen(side, number, features) if chosen is None else chosen

    def chosen(self, side: ClientSide, number: int, features: Features) -> Tensor:
        """The directions ``Sᵀ``, [K, d]; rows of zeros where there are fewer parameters."""
        if not _is_whole(features):  # a query says nothing of records that it leaves out
            return self._made(side, number, gathered(features))
        if side.kept is None:
            side.kept = self._made(side, 0, features.table)
        kept: Tensor = side.kept
        return kept

    def _made(self, side: ClientSide, number: int, features: Tensor) -> Tensor:
        size, model = side.model.parameters.numel(), side.model
        count = min(self.num_directions, size)
        chosen = model.parameters.new_zeros(self.num_directions, size)
        stream = side.stream.child("tangents")
        if self.directions == "orthonormal":
            numbers = stream.generator(number).standard_normal((size, count), dtype=np.float32)
            drawn = torch.linalg.qr(arrays.here(torch.from_numpy(numbers), chosen.device)).Q.t()
            chosen[:count] = drawn / count**0.5  # for standardised inputs, length 1 as well
            return chosen
        if not isinstance(model, DifferentiableModel):
            raise ConfigError(
                f"method.directions is 'principal', which needs a differentiable client model, not "
                f"{type(model).__name__}; use 'orthonormal'"
            )
        generator = torch.Generator().manual_seed(stream.seed(number) >> 1)
        values, vectors = principal(model, features, count, generator)
        varies = values > FLAT * values[:1]  # along the others there is nothing but rounding
        scaled = values.clamp(min=1e-30) ** (-self.whitening / 2) * varies
        length = (values * scaled.square()).sum().sqrt()  # a record's tangents then have length 1
        chosen[:count] = (scaled / length).unsqueeze(1) * vectors
        return chosen


def _is_whole(features: Features) -> TypeGuard[Selected]:
    """Whether a query is about all records of a table."""
    return isinstance(features, Selected) and len(features.ids) == len(features.table)
