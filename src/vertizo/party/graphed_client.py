"""A client's steps of a method as CUDA graphs (`vertizo.core.arrays.graphs`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vertizo.core.arrays import graphs
from vertizo.core.arrays.graphs import Graph, Graphed
from vertizo.methods.base import ClientPair, ClientSide, Features


class GraphedClient:
    """`ask` and `tell` of a client on a card, each captured for a shape of its batches.

    What a first-order method keeps from the one to the other is in the memory of the graph of
    `ask`. A graph of `tell` that reads it belongs to that one; any other call of `tell` does
    without, and computes it anew.
    """

    def __init__(
        self, pair: ClientPair, side: ClientSide, device: torch.device, *, keeps: bool
    ) -> None:
        self._pair, self._side = pair, side
        self._ask = Graphed[None](self._asked, "a client's query", device, keeps=keeps)
        self._tell = Graphed[Graph | None](self._told, "a client's update", device)

    @property
    def pair(self) -> ClientPair:
        """The steps as a party calls them."""
        return ClientPair(self.ask, self.tell, self._pair.table_of, self.forget)

    def forget(self) -> None:
        """Drop all graphs, and what they keep for an open query."""
        self._side.pending = None
        self._ask.forget()
        self._tell.forget()

    def ask(self, number: int, features: Features) -> Tensor:
        """See `Method.ask`."""
        assert isinstance(features, Tensor), "on a card nothing reads rows of a table in place"
        side = self._side
        side.pending = None
        (embeddings,) = self._ask(None, (number,), (features,))
        if (graph := self._ask.used) is not None:
            if side.pending is not None:  # this was the capture
                graph.kept = side.pending[1]
            side.pending = None if graph.kept is None else (number, graph.kept)
        return embeddings

    def _asked(self, _: None, numbers: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Tensor]:
        return (self._pair.ask(numbers[0], tensors[0]),)

    def tell(self, number: int, features: Features, values: Tensor) -> None:
        """See `Method.tell`."""
        assert isinstance(features, Tensor), "on a card nothing reads rows of a table in place"
        side, asked = self._side, self._ask.used
        kept = side.pending is not None and side.pending[0] == number
        if kept and asked is None:  # of a query that was computed eagerly, and serves once
            self._pair.tell(number, features, values)
            return
        # PyTorch lets nobody differentiate through weights that have moved since: capture at once.
        self._tell(asked if kept else None, (number,), (features, values), at_once=kept)
        if kept and self._tell.used is None:  # then nobody reads what a graph of `ask` keeps
            self._ask.is_eager = True

    def _told(
        self, asked: Graph | None, numbers: Sequence[int], tensors: Sequence[Tensor]
    ) -> tuple[()]:
        self._side.pending = None
        if asked is not None and graphs.is_capturing():
            self._side.pending = numbers[0], asked.kept
        self._pair.tell(numbers[0], *tensors)
        return ()
