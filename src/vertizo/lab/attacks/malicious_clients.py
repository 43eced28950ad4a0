"""Malicious clients: they send an attacker's chosen queries, in the form of each method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.lab.attacks.adversaries import Public
from vertizo.lab.attacks.estimates import kind
from vertizo.methods.dpzv import Dpzv
from vertizo.party.batches import Batches


class Intruder:
    """A client that sends chosen points, whatever its features are, and never updates.

    Args:
        public: public knowledge, above all the method.
        batches: the records of each query.
        choose: (query number, batch size) → (embeddings, moved embeddings), both [batch, d_h];
            for a method that sends tangents (embeddings, tangents [K, batch, d_h]).
    """

    def __init__(
        self, public: Public, batches: Batches, choose: Callable[[int, int], tuple[Tensor, Tensor]]
    ) -> None:
        self.batches = batches
        self._method, self._choose = public.method, choose

    def ask(self, number: int, features: Any) -> Tensor:
        """Return the chosen points in the form of the method, [points, batch, d_h]."""
        plain, moved = self._choose(number, len(features))
        if self._method.sends_tangents:
            return torch.cat([plain.unsqueeze(0), moved])
        if kind(self._method) != "scalar":
            return plain.unsqueeze(0)
        if isinstance(self._method, Dpzv):  # what is to be compared comes first in each pair
            return torch.stack([moved, plain] * self._method.num_directions)
        return torch.stack([plain, moved])

    def tell(self, number: int, features: Any, values: Tensor) -> None:
        """Ignore the reply; the transcript holds it."""


class ChosenBatches(Batches):
    """Batches of ``count`` records a query, for an intruder; ``size`` stays that of ``order``."""

    def __init__(self, order: Batches, count: int, stream: Stream) -> None:
        super().__init__(order.records, order.size, stream)
        self._chosen = Batches(order.records, min(count, order.size), stream)

    def ids(self, number: int) -> Tensor:
        """Return the record IDs of query ``number``."""
        return self._chosen.ids(number)
