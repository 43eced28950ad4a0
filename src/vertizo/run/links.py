"""The draws of a simulated link: delays, transfers, losses."""

from __future__ import annotations

from vertizo.config.links import Links
from vertizo.core.randomness import Stream

CHUNK = 256
"""Draws made at a time, so that a seeded generator is not built for every round."""


class LinkDraws:
    """The draws of one client's link, by number: nothing but counters needs to be saved."""

    def __init__(self, links: Links, client: int, stream: Stream) -> None:
        self._links = links
        self._slowdown = links.stragglers.get(client, 1.0)
        self._delays = stream.child("delay", client)
        self._losses = stream.child("loss", client)
        self._delay_chunk: tuple[int, list[float]] = (-1, [])
        self._loss_chunk: tuple[int, list[float]] = (-1, [])

    def delay(self, number: int) -> float:
        """Seconds that round ``number`` of this client takes."""
        chunk, index = divmod(number, CHUNK)
        if self._delay_chunk[0] != chunk:
            drawn = self._links.delay.draw(self._delays.generator(chunk), CHUNK)
            self._delay_chunk = chunk, drawn
        return self._delay_chunk[1][index] * self._slowdown

    def transfer(self, size: int) -> float:
        """Seconds that ``size`` bytes take."""
        return size / self._links.bandwidth if self._links.bandwidth else 0.0

    def lost(self, transmission: int) -> bool:
        """Whether transmission number ``transmission`` on this link, up or down, is lost."""
        if not self._links.drop:
            return False
        chunk, index = divmod(transmission, CHUNK)
        if self._loss_chunk[0] != chunk:
            self._loss_chunk = chunk, self._losses.generator(chunk).random(CHUNK).tolist()
        return self._loss_chunk[1][index] < self._links.drop
