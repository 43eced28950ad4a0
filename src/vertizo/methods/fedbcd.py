"""FedBCD: block coordinate descent, several local steps for one exchange.

FedBCD-p of Liu et al. (2022), all parties in parallel:

1. The server names a batch; every client sends its embeddings ``h_m`` [batch, d_h].
2. The server answers each client with ``∂L/∂h_m`` [batch, d_h] and makes Q steps of its own on the
   round's embeddings.
3. Every client makes Q steps ``w_m ← w_m − η_m (∂h_m/∂w_m)ᵀ ∂L/∂h_m`` with what it was told: its
   own embeddings move in between, what it knows of the others does not.

The steps are in `vertizo.methods.first_order`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from vertizo.core.names import Timing
from vertizo.methods.first_order import FirstOrder


class FedBcd(FirstOrder):
    """First-order clients in step; every party makes Q local steps a round."""

    paper: ClassVar[str] = "FedBCD (federated block coordinate descent, in parallel)"
    timings: ClassVar[tuple[Timing, ...]] = ("synchronous",)

    name: Literal["fedbcd"] = "fedbcd"
    local_steps: int = Field(default=5, gt=0)
    """Q, steps of every party for one exchange."""

    @property
    def server_steps(self) -> int:
        """Q."""
        return self.local_steps

    def steps_of(self, client: int) -> int:
        """Q."""
        return self.local_steps
