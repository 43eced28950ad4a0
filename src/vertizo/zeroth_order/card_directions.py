"""Random directions for a model that lives on a card: drawn there, not held above a size.

The laws are those of `vertizo.zeroth_order.directions`; the numbers are others, since a card draws
from counters (`vertizo.core.arrays.philox`) and not from a state that is passed on. Normal numbers
are Box-Muller's. Nothing here waits for the card: what a norm or a coefficient is, stays there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vertizo.core import arrays
from vertizo.core.arrays import Scalar, card, graphs, philox
from vertizo.core.names import LawName
from vertizo.core.plugins.lazy_import import torch
from vertizo.core.randomness import Stream
from vertizo.models.optimizers import add
from vertizo.zeroth_order.directions import TINY, Direction, Directions

if TYPE_CHECKING:
    from torch import Tensor


class CardDirection(Direction):
    """A direction that is drawn on a card, where its seed is as well, int64 of no dimension.

    `numbers` are u itself, so that its `scale` is 1.
    """

    __slots__ = ("_factor", "_place")

    def __init__(self, law: LawName, dimension: int, place: Tensor, *, keep: bool) -> None:
        super().__init__(law, dimension, seed=0, keep=keep)  # which is on the card alone
        self._place = place
        self._factor: Tensor | None = None

    @property
    def scale(self) -> float:
        """1: lengths are in units of u."""
        return 1.0

    def _radius(self) -> float | None:
        """Radius of the sphere that u is on; None where it is on none."""
        lengths = {"sphere": 1.0, "scaled-sphere": math.sqrt(self.dimension)}
        return lengths.get(self.law)

    def _drawn_factor(self) -> Scalar:
        """The factor of the drawn numbers, of no dimension."""
        radius = self._radius()
        if radius is None:
            return 1.0
        if self._factor is None:
            squares = card.squares(self._kind, self._place, self.dimension)
            self._factor = radius / squares.sqrt()
        return self._factor

    def _index(self) -> Tensor:
        """The axis of the law coordinate, int64 [1]."""
        first = philox.words(self._place, torch.zeros_like(self._place))[0]
        return (first % self.dimension).reshape(1)

    def numbers(self) -> Tensor:
        """u as one float32 vector [d]; kept if the direction is."""
        if self._numbers is not None:
            return self._numbers
        if self.law == "coordinate":
            one = torch.ones(1, device=self._place.device)
            numbers = one.new_zeros(self.dimension).index_add_(0, self._index(), one)
        else:
            numbers = card.drawn(self._kind, self._place, self.dimension)
            if (radius := self._radius()) is not None:
                numbers /= numbers.norm() / radius
        if self.keep:
            self._numbers = numbers
        return numbers

    def zeros(self) -> Tensor:
        """A vector [d] of zeros where u is."""
        return torch.zeros(self.dimension, device=self._place.device)

    def norm(self) -> Scalar:
        """The Euclidean norm of u."""
        if self.law == "gaussian":
            return card.squares(self._kind, self._place, self.dimension).sqrt()
        return super().norm()

    def held(self, scale: Scalar) -> tuple[Tensor, Scalar] | None:
        """``scale · u`` as numbers in memory and their factor; None where they are not kept."""
        return (self.numbers(), scale) if self.keep and self.law != "coordinate" else None

    def descend(
        self,
        parameters: Tensor,
        velocity: Tensor,
        momentum: float,
        scale: Scalar,
        factor: Scalar,
    ) -> bool:
        """See `OnePass.descend`, of ``scale · u``."""
        if self.law == "coordinate":
            return False
        if self.keep:
            return card.descend(parameters, velocity, momentum, self.numbers(), scale, factor)
        drawn, own = (self._kind, self._place), arrays.times(self._drawn_factor(), scale)
        return card.descend(parameters, velocity, momentum, drawn, own, factor)

    def add_to(self, vector: Tensor, scale: Scalar) -> None:
        """``vector += scale · u``, in place: one pass, and none where u is held."""
        if self.law == "coordinate":
            moved = card.number(scale, vector.device).to(vector.dtype).reshape(1)
            vector.index_add_(0, self._index(), moved)
        elif self.keep:
            add(vector, self.numbers(), scale)
        else:
            factor = arrays.times(self._drawn_factor(), scale)
            card.add_drawn(vector, self._kind, self._place, factor)


class CardDirections(Directions):
    """The directions of one owner whose parameters are on a card; their seeds are there too."""

    def __init__(
        self, law: LawName, dimension: int, stream: Stream, count: int, device: torch.device
    ) -> None:
        super().__init__(law, dimension, stream, count)
        self._device = device

    def of_query(self, number: int) -> list[Direction]:
        """The directions of query ``number``."""
        if self._query == number and not graphs.is_capturing():
            return self._drawn
        shape, dtype = (self._count,), torch.int64
        seeds = graphs.fed(self._seeds, number, device=self._device, shape=shape, dtype=dtype)
        self._drawn = [
            CardDirection(self.law, self.dimension, place, keep=self.are_kept)
            for place in seeds.unbind()
        ]
        self._query = number
        return self._drawn

    def _seeds(self, number: int) -> int | Tensor:
        """The seeds of query ``number``, int64 [K]; a card is given a single one as a number."""
        numbers = range(number * self._count, (number + 1) * self._count)
        seeds = [philox.signed(self._stream.seed(n)) for n in numbers]
        alone = len(seeds) == 1 and arrays.is_card(self._device)
        return seeds[0] if alone else torch.tensor(seeds)


def card_record_directions(
    law: LawName, count: int, batch: int, dimension: int, place: Tensor
) -> tuple[Tensor, float]:
    """See `vertizo.zeroth_order.directions.record_directions`.

    They are drawn where the seed ``place`` is, int64 of no dimension.
    """
    shape, size, device = (count, batch, dimension), count * batch * dimension, place.device
    if law == "coordinate":
        first = philox.words(place, torch.arange(batch, device=device))[0]
        axes = (first + torch.arange(count, device=device).unsqueeze(1)) % dimension
        counters = torch.arange(count * batch, device=device) + batch
        sides = (philox.words(place, counters)[0] >> 31).view(count, batch, 1) * 2 - 1
        units = torch.zeros(shape, device=device)
        return units.scatter_(2, axes.unsqueeze(2), sides.to(torch.float32)), float(dimension)
    drawn = card.drawn("signs" if law == "rademacher" else "normals", place, size).view(shape)
    if law in ("gaussian", "rademacher"):
        return drawn, 1.0
    norms = drawn.norm(dim=2, keepdim=True).clamp_(min=float(TINY))
    if law == "sphere":
        return drawn.div_(norms), float(dimension)
    return drawn.div_(norms / math.sqrt(dimension)), 1.0


def directions_of(parameters: Tensor, law: LawName, stream: Stream, count: int = 1) -> Directions:
    """Directions of a model's parameters [d], drawn where they live."""
    size = parameters.numel()
    if parameters.is_cpu:
        return Directions(law, size, stream, count)
    return CardDirections(law, size, stream, count, parameters.device)
