"""VFL-Cascaded: zeroth-order clients under a first-order server.

1. A client that is ready draws a batch and a direction u, and sends ``c = h(w_m)`` and
   ``ĉ = h(w_m + μu)``, [2, batch, d_h].
2. The server evaluates both with the other clients' last embeddings on the same weights, answers
   with the two batch-mean losses ``h`` and ``ĥ``, stores ``c``, and steps once by its own gradient
   there: ``w_0 ← w_0 − η_0 ∂L/∂w_0``.
3. The client moves by the forward difference ``w_m ← w_m − η_m φ (ĥ − h)/μ · u``.

Asynchronous. The steps are in `vertizo.methods.forward_difference`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from vertizo.methods.forward_difference import ForwardDifference


class Cascaded(ForwardDifference):
    """Forward-difference clients, a server by gradients; the reply is two batch-mean losses."""

    paper: ClassVar[str] = "VFL-Cascaded (asynchronous VFL by cascaded hybrid optimisation)"

    name: Literal["cascaded"] = "cascaded"
