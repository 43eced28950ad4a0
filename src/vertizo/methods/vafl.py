"""VAFL: asynchronous vertical federated learning by first-order gradients.

1. A client that is ready draws a batch, sends its embeddings ``h_m`` [batch, d_h], and waits.
2. The server puts them into its table, computes the loss with the other clients' last embeddings,
   answers with ``∂L/∂h_m`` [batch, d_h], and makes one step ``w_0 ← w_0 − η_0 ∂L/∂w_0``.
3. The client back-propagates: ``w_m ← w_m − η_m (∂h_m/∂w_m)ᵀ ∂L/∂h_m``.

Every record's label can be read off that answer: this is the baseline that the zeroth-order methods
are held against. Its private variants are options of the run: noise on the answer
(``privacy.mechanism: gaussian``, each record's gradient clipped before the noise) or on the
embedding (``privacy.mechanism: embedding-noise``).

The steps are in `vertizo.methods.first_order`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from vertizo.methods.first_order import FirstOrder


class Vafl(FirstOrder):
    """First-order clients; the reply is the gradient with respect to the embeddings."""

    paper: ClassVar[str] = "VAFL (asynchronous vertical federated learning, first order)"

    name: Literal["vafl"] = "vafl"
