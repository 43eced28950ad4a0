"""Split learning between feature holders and a label holder, in step.

1. The server names a batch; every client sends its embeddings ``h_m`` [batch, d_h] of it.
2. With all of them fresh, the server answers each client with its ``∂L/∂h_m`` [batch, d_h] and
   makes one step ``w_0 ← w_0 − η_0 ∂L/∂w_0``.
3. Every client back-propagates: ``w_m ← w_m − η_m (∂h_m/∂w_m)ᵀ ∂L/∂h_m``.

Together this is one step of stochastic gradient descent on the joined model. The round waits for
the slowest client.

The steps are in `vertizo.methods.first_order`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from vertizo.core.names import Timing
from vertizo.methods.first_order import FirstOrder


class Split(FirstOrder):
    """First-order clients in step; together, gradient descent on the joined model."""

    paper: ClassVar[str] = "Split learning (synchronous, first order)"
    timings: ClassVar[tuple[Timing, ...]] = ("synchronous",)

    name: Literal["split"] = "split"
