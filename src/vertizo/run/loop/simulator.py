"""The simulator: all parties in one process, on a virtual clock.

It is one driver of the parties among others: it hands frames from one party to another in an order
that the links' random draws decide, counts their bytes, and loses some. Given its seed, every
transcript is the same, bit for bit, on one machine.

*Asynchronous*: each client works at its own pace. Whenever a query arrives the server answers it
and steps; the client applies the reply and starts its next query. With activation probabilities,
the client whose query arrives is drawn for each round. *Synchronous*: the server names a batch, all
clients query it, and the step waits for the slowest.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from vertizo.config.schema import SimulationConfig
from vertizo.config.sections.links import Links
from vertizo.core.randomness import Stream
from vertizo.core.state import Stateful
from vertizo.party.client import ClientParty
from vertizo.party.server import ServerParty
from vertizo.protocol.messages import Purpose
from vertizo.protocol.wire import Frame
from vertizo.run.loop.traffic import Traffic, rows_at_once

Way = Literal["up", "down"]
Observer = Callable[[float, Way, int, bytes], None]
"""Called with (virtual time, way, client, frame) for every query, reply and announcement, lost ones
too; uploads are not part of the rounds."""


CHUNK = 256
"""Draws made at a time, so that a seeded generator is not built for every round."""
Drawn = Callable[[int], list[float]]


class Activation:
    """Client m is active with probability ``q_m``, independently in each round."""

    def __init__(self, probabilities: Sequence[float], stream: Stream) -> None:
        self._probabilities = probabilities
        once = lru_cache(maxsize=1)  # the chunk that is used up
        self._draws: Drawn = once(lambda chunk: stream.generator(chunk).random(CHUNK).tolist())

    def draw(self, number: int, left: Collection[int]) -> int:
        """Draw the client of round ``number`` among those left, in proportion to their q_m."""
        chunk, place = divmod(number, CHUNK)
        clients = sorted(left)
        ends = list(accumulate(self._probabilities[client] for client in clients))
        drawn = self._draws(chunk)[place] * ends[-1]
        return clients[min(bisect_right(ends, drawn), len(ends) - 1)]


class LinkDraws:
    """Random delays and losses of one client's link, by number, so that only counters are saved."""

    def __init__(self, links: Links, client: int, stream: Stream) -> None:
        self._drop, self._slowdown = links.drop, links.stragglers.get(client, 1.0)
        delays, losses = stream.child("delay", client), stream.child("loss", client)
        once = lru_cache(maxsize=1)  # the chunk that is used up
        self._delays: Drawn = once(lambda chunk: links.delay.draw(delays.generator(chunk), CHUNK))
        self._losses: Drawn = once(lambda chunk: losses.generator(chunk).random(CHUNK).tolist())

    def delay(self, number: int) -> float:
        """Seconds that round ``number`` of this client takes."""
        chunk, index = divmod(number, CHUNK)
        return self._delays(chunk)[index] * self._slowdown

    def lost(self, transmission: int) -> bool:
        """Whether transmission number ``transmission`` on this link, up or down, is lost."""
        chunk, index = divmod(transmission, CHUNK)
        return self._losses(chunk)[index] < self._drop


class Simulator(Stateful):
    """Clients, in order of their index, and server on a virtual clock.

    The stream is the randomness of the links; each client stops after ``queries_per_client``.
    Its state lacks the parties' own.
    """

    STATE = ("now", "traffic", "activations", "_transmissions", "_events", "_sequence")

    def __init__(
        self,
        clients: list[ClientParty],
        server: ServerParty,
        links: SimulationConfig,
        stream: Stream,
        *,
        queries_per_client: int,
        observer: Observer | None = None,
    ) -> None:
        self.clients = clients
        self.server = server
        self.now = 0.0
        self.traffic = Traffic()
        self.activations = [0] * len(clients)
        """Answered queries of every client."""
        self._synchronous = links.timing == "synchronous"
        self._links = links
        self._limit = queries_per_client
        self._observer = observer
        self._activation = None
        if links.activation is not None:
            self._activation = Activation(links.activation, stream.child("activation"))
        self._draws = [LinkDraws(links, client.index, stream) for client in clients]
        self._transmissions = [0] * len(clients)
        self._asked: dict[int, Frame] = {}
        """Each client's open query."""
        self._events: list[tuple[float, int, int]] = []
        """Heap of (time, sequence number, client whose query arrives)."""
        self._sequence = 0

    def start(self) -> None:
        """Let every client begin its first query; called once, at the start of a run."""
        self.server.train_between_queries()
        for index in range(len(self.clients)):
            self._begin(index)

    def step(self) -> bool:
        """Run until the server has made one more step; False when no client has work left.

        Raises RefusedError if a party refuses a message, which in a simulation means that training
        diverged.
        """
        before = self.server.round
        while self._events and self.server.round == before:
            if self._activation is None:
                self.now, _, index = heapq.heappop(self._events)  # the earliest
            else:
                index = self._drawn(self._activation)
            frame = self._asked[index]
            self._count("up", index, frame)
            if self._links.drop and self._is_lost(index):
                continue
            for receiver, reply in self.server.receive(frame):
                self._count("down", receiver, reply)
                if self._links.drop and self._is_lost(receiver):
                    continue
                self.clients[receiver].tell(reply)
                self.activations[receiver] += 1
                bandwidth = self._links.bandwidth
                self._begin(receiver, after=len(reply) / bandwidth if bandwidth else 0.0)
        self.server.train_between_queries()
        return self.server.round > before

    def _drawn(self, activation: Activation) -> int:
        """Draw the client whose query arrives next, and move the clock to that time."""
        waiting = {index: event for event in self._events for index in event[2:]}
        index = activation.draw(sum(self.activations), waiting)
        self._events.remove(waiting[index])
        self.now += waiting[index][0]
        return index

    def _begin(self, index: int, after: float = 0.0) -> None:
        """Let a client make its next query, and schedule its arrival at the server."""
        client = self.clients[index]
        if client.answered >= self._limit:
            return
        announcement = self.server.announce(index) if self._synchronous else None
        if announcement is not None:
            self._count("down", index, announcement)
        self._asked[index] = frame = client.ask(announcement)
        taken = self._draws[index].delay(client.answered)
        if self._links.bandwidth:
            taken += len(frame) / self._links.bandwidth
        self._schedule(index, after + taken)

    def _is_lost(self, index: int) -> bool:
        """Whether a client's next frame, up or down, is lost; then schedule a repeated query."""
        number = self._transmissions[index]
        self._transmissions[index] = number + 1
        if not self._draws[index].lost(number):
            return False
        self.traffic.lost += 1
        self._schedule(index, self._links.timeout)
        return True

    def _count(self, way: Way, index: int, frame: Frame) -> None:
        if way == "up":
            self.traffic.up += len(frame)
        else:
            self.traffic.down += len(frame)
        if self._observer is not None:
            self._observer(self.now, way, index, bytes(frame))

    def _schedule(self, index: int, delay: float) -> None:
        when = delay if self._activation else self.now + delay  # begins when it is drawn
        heapq.heappush(self._events, (when, self._sequence, index))
        self._sequence += 1

    def upload(self, purpose: Purpose, rows: int) -> None:
        """Let every client upload its embeddings of one partition; the bytes are counted apart.

        NonFiniteError if a number on a card has left its bounds since the last look.
        """
        for watch in (*(client.watch for client in self.clients), self.server.watch):
            watch.look()
        for client in self.clients:
            at_once = rows_at_once(self.server.side.table.dims[client.index])
            for start in range(0, rows, at_once):
                frame = client.upload(purpose, start, min(start + at_once, rows))
                if purpose in ("train", "teacher") and not self.server.round:
                    self.traffic.table += len(frame)
                else:
                    self.traffic.evaluation += len(frame)
                self.server.receive_upload(frame)

    def restored(self) -> None:
        """Let every client with an open query make it again, after a checkpoint was loaded."""
        self._events = [(when, sequence, index) for when, sequence, index in self._events]
        heapq.heapify(self._events)
        self._asked = {index: self.clients[index].ask() for _, _, index in self._events}
