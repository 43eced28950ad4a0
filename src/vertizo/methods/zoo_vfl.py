"""ZOO-VFL and Syn-ZOO-VFL: every party trains by the forward difference of losses.

1. A client draws a direction u and sends ``c = h(w_m)`` and ``ĉ = h(w_m + μu)``, [2, batch, d_h]:
   when it is ready, on a batch of its own (ZOO-VFL), or when all do, on one that the server names
   (Syn-ZOO-VFL).
2. The server evaluates them on the same weights and answers with the two batch-mean losses
   (ZOO-VFL) or the difference between them (Syn-ZOO-VFL, one for each client).
3. It moves by a forward difference of its own at the unperturbed embeddings:
   ``w_0 ← w_0 − η_0 φ (f(w_0 + μu_0) − f(w_0))/μ · u_0``.
4. The client does likewise: ``w_m ← w_m − η_m φ (ĥ − h)/μ · u``.

The steps are in `vertizo.methods.forward_difference`; step 3 is
`vertizo.party.server_model.ZerothOrder`. With a first-order server in step 3 it is VFL-Cascaded.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from vertizo.core.names import Timing, UpdateName
from vertizo.methods.forward_difference import ForwardDifference, ReplyForm


class ZooVfl(ForwardDifference):
    """Forward differences at clients and server, each client at its own pace."""

    paper: ClassVar[str] = "ZOO-VFL (zeroth-order VFL, asynchronous)"
    server_update: ClassVar[UpdateName] = "forward-difference"
    server_updates: ClassVar[tuple[UpdateName, ...]] = (
        "forward-difference",
        "zeroth-order",
        "private-zeroth-order",
        "none",
    )

    name: Literal["zoo-vfl"] = "zoo-vfl"


class SynZooVfl(ForwardDifference):
    """Forward differences at clients and server, all clients in step."""

    paper: ClassVar[str] = "Syn-ZOO-VFL (zeroth-order VFL, synchronous)"
    timings: ClassVar[tuple[Timing, ...]] = ("synchronous",)
    server_update: ClassVar[UpdateName] = "forward-difference"
    server_updates: ClassVar[tuple[UpdateName, ...]] = ZooVfl.server_updates

    name: Literal["syn-zoo-vfl"] = "syn-zoo-vfl"
    reply: ReplyForm = "difference"
