"""Compressed-VFL: compressed embeddings, and several local steps for one exchange of them.

1. The server names a batch; every client sends its compressed embeddings ``C(h_m)`` [batch, d_h].
2. The server answers each client with ``∂L/∂h_m`` [batch, d_h] at these embeddings, and makes Q
   steps on them: the embeddings stay those of the round, ``w_0`` moves.
3. Every client makes Q steps ``w_m ← w_m − η_m (∂h_m/∂w_m)ᵀ ∂L/∂h_m``: it embeds the batch anew
   before each, and uses the round's ``∂L/∂h_m`` for all.

The paper's clients get the server model and everybody's embeddings and so recompute ``∂L/∂h_m``
before each local step; here nothing but the gradient leaves the server. With Q = 1 and the 8 bits
of the default codec the bytes are those that the papers report for it.

The steps are in `vertizo.methods.first_order`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from vertizo.core.names import Timing
from vertizo.methods.first_order import FirstOrder
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.uniform import Uniform


class CompressedVfl(FirstOrder):
    """First-order clients in step, compressed embeddings, Q local steps a round."""

    paper: ClassVar[str] = "Compressed-VFL (compressed embeddings, local steps)"
    timings: ClassVar[tuple[Timing, ...]] = ("synchronous",)
    up: ClassVar[Codec] = Uniform(bits=8)

    name: Literal["compressed-vfl"] = "compressed-vfl"
    local_steps: int = Field(default=1, gt=0)
    """Q, steps of every party for one exchange."""

    @property
    def server_steps(self) -> int:
        """Q."""
        return self.local_steps

    def steps_of(self, client: int) -> int:
        """Q."""
        return self.local_steps
