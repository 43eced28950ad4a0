"""A client's steps of a method as CUDA graphs (`vertizo.core.arrays.graphs`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vertizo.core import arrays
from vertizo.core.arrays import graphs
from vertizo.core.arrays.graphs import Graph, Graphed
from vertizo.core.arrays.levels import LevelTable
from vertizo.methods.base import ClientPair, ClientSide, Features
from vertizo.models.base import Selected


class GraphedClient:
    """`ask` and `tell` of a client on a card, each captured for a shape of its batches.

    What a method keeps from the one to the other (`Method.keeps`) is in the memory of the graph of
    `ask`. A graph of `tell` that reads it belongs to that one; any other call of `tell` does
    without, and computes it anew. ``check`` is what a reply's values are given to first.
    """

    def __init__(
        self,
        pair: ClientPair,
        side: ClientSide,
        device: torch.device,
        *,
        levels: LevelTable | None = None,
        check: Callable[[Tensor], object],
    ) -> None:
        self._pair, self._side, self._levels, self._check = pair, side, levels, check
        self._table: Tensor | None = None
        """Training records, where graphs read a batch's rows of them, or of ``levels``."""
        self._ask = Graphed[None](self._asked, "a client's query", device, keeps=pair.keeps)
        self._tell = Graphed[Graph | None](self._told, "a client's update", device)

    @property
    def pair(self) -> ClientPair:
        """The steps as a party calls them."""
        return ClientPair(self.ask, self.tell, self.table_of, self.forget, checks=True)

    def table_of(self, features: Tensor) -> Tensor | None:
        """The training records, if they are on the card, perhaps as levels; else batches are
        moved there."""
        self._table = None if features.is_cpu and self._levels is None else features
        return self._table

    def _given(self, features: Features) -> Tensor:
        """What a call is given of its batch: record IDs, or the features themselves."""
        return features.ids if isinstance(features, Selected) else features

    def _features(self, given: Tensor) -> Tensor:
        if self._table is None:
            return given
        return arrays.rows(self._table, given) if self._levels is None else self._levels.rows(given)

    def forget(self) -> None:
        """Drop all graphs, and what they keep for an open query."""
        self._side.pending = None
        self._ask.forget()
        self._tell.forget()

    def ask(self, number: int, features: Features) -> Tensor:
        """See `Method.ask`."""
        side = self._side
        side.pending = None
        (embeddings,) = self._ask(None, (number,), (self._given(features),))
        if (graph := self._ask.used) is not None:
            if side.pending is not None:  # this was the capture
                graph.kept = side.pending[1]
            side.pending = None if graph.kept is None else (number, graph.kept)
        return embeddings

    def _asked(self, _: None, numbers: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Tensor]:
        return (self._pair.ask(numbers[0], self._features(tensors[0])),)

    def tell(self, number: int, features: Features | None, values: Tensor) -> None:
        """See `Method.tell`."""
        side, asked = self._side, self._ask.used
        kept = side.pending is not None and side.pending[0] == number
        given: tuple[Tensor, ...] = (values,)
        if features is not None and self._pair.reads:
            given = self._given(features), values
        if kept and asked is None:  # of a query that was computed eagerly, and serves once
            self._move(number, given)
            return
        # PyTorch lets nobody differentiate through weights that have moved since: capture at once.
        self._tell(asked if kept else None, (number,), given, at_once=kept)
        if kept and self._tell.used is None and self._pair.reads:
            self._ask.is_eager = True  # nobody reads what its graph keeps, and rows cost more anew

    def _told(
        self, asked: Graph | None, numbers: Sequence[int], tensors: Sequence[Tensor]
    ) -> tuple[()]:
        self._side.pending = None
        if asked is not None and graphs.is_capturing():
            self._side.pending = numbers[0], asked.kept
        self._move(numbers[0], tensors)
        return ()

    def _move(self, number: int, tensors: Sequence[Tensor]) -> None:
        *given, values = tensors
        self._check(values)
        self._pair.tell(number, self._features(given[0]) if given else None, values)
