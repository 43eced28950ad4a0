"""Activation: clients that are drawn at random in each round, as in the papers' analyses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate

from vertizo.core.randomness import Stream

CHUNK = 256
"""Draws made at a time, so that a seeded generator is not built for every round."""


class Activation:
    """Client m is active with probability ``q_m``, independently in each round."""

    def __init__(self, probabilities: Sequence[float], stream: Stream) -> None:
        self._probabilities, self._stream = probabilities, stream
        self._chunk: tuple[int, list[float]] = -1, []

    def draw(self, number: int, left: Collection[int]) -> int:
        """Draw the client of round ``number`` among those left, in proportion to their q_m."""
        chunk, place = divmod(number, CHUNK)
        if self._chunk[0] != chunk:
            self._chunk = chunk, self._stream.generator(chunk).random(CHUNK).tolist()
        clients = sorted(left)
        ends = list(accumulate(self._probabilities[client] for client in clients))
        return clients[min(bisect_right(ends, self._chunk[1][place] * ends[-1]), len(ends) - 1)]
