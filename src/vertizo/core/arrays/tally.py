"""Figures of a card's rounds that nobody reads before the next evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vertizo.core.arrays import graphs
from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor


class Tally:
    """Adds arrays up on a card, or takes their maxima: entry by entry, in one operation a round.

    The entries are put together where they are read. ``update`` is `torch.add` or `torch.maximum`.
    """

    def __init__(self, update: Callable[..., Any], dtype: torch.dtype) -> None:
        self._update, self._dtype = update, dtype
        self._held: dict[torch.Size, Tensor] = {}
        """By the arrays' shape."""

    def take(self, found: Tensor) -> None:
        """Take one more array in; one of a new shape makes memory, and so is in no graph."""
        if found.shape not in self._held:
            graphs.eager_only("its running figures are made in this call")
            self._held[found.shape] = torch.zeros_like(found, dtype=self._dtype)
        held = self._held[found.shape]
        self._update(held, found, out=held)

    def read(self) -> list[Tensor]:
        """The entries of each shape since they were last read; they are zeros from now on."""
        found = [held.clone() for held in self._held.values()]
        for held in self._held.values():
            held.zero_()
        return found
