"""All parties in one process, on a virtual clock.

The simulator is one driver of the parties among others: it hands bytes from one to the other in an
order that the links' random draws decide, counts them, and loses some. Given its seed, every
transcript is the same, bit for bit, on one machine.

*Asynchronous*: each client works at its own pace; whenever a query arrives the server answers it
and steps, and the client, told, starts its next. *Synchronous*: the server names a batch, all
clients answer for it, and the step waits for the slowest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from vertizo.config.links import Links
from vertizo.core.randomness import Stream
from vertizo.party.client import ClientParty
from vertizo.party.server import ServerParty
from vertizo.protocol.wire import Frame
from vertizo.run.links import LinkDraws
from vertizo.run.traffic import Traffic, rows_at_once

Way = Literal["up", "down"]
Observer = Callable[[float, Way, int, bytes], None]
"""Called with (virtual time, way, client, frame) for every query, reply and announcement, lost ones
too; uploads are not part of the rounds."""


class Simulator:
    """Clients and server on a virtual clock.

    Args:
        clients: in order of their index.
        server: asynchronous, or with batches of its own for synchronous rounds.
        links: delays and losses.
        stream: randomness of the links.
        queries_per_client: each client stops after so many; None for no end of its own.
        observer: sees every frame.
    """

    def __init__(
        self,
        clients: Sequence[ClientParty],
        server: ServerParty,
        links: Links,
        stream: Stream,
        *,
        synchronous: bool,
        queries_per_client: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.clients = clients
        self.server = server
        self.now = 0.0
        self.traffic = Traffic()
        self.activations = [0] * len(clients)
        """Answered queries of every client."""
        self._synchronous = synchronous
        self._timeout = links.timeout
        self._limit = queries_per_client
        self._observer = observer
        self._links = [LinkDraws(links, client.index, stream) for client in clients]
        self._transmissions = [0] * len(clients)
        self._events: list[tuple[float, int, int]] = []
        self._sequence = 0

    def start(self) -> None:
        """Every client begins its first query; once, at the start of a run."""
        self.server.tend()
        for client in self.clients:
            self._begin(client)

    def step(self) -> bool:
        """Go on until the server has made one more step; False when no client has work left.

        Raises:
            RefusedError: a party refused a message: here that means training diverged.
        """
        before = self.server.round
        while self._events and self.server.round == before:
            self.now, _, index = heapq.heappop(self._events)
            self._deliver(index)
        self.server.tend()
        return self.server.round > before

    def _schedule(self, index: int, delay: float) -> None:
        heapq.heappush(self._events, (self.now + delay, self._sequence, index))
        self._sequence += 1

    def _begin(self, client: ClientParty, after: float = 0.0) -> None:
        """A client makes its next query, which will be at the server after its delay."""
        if self._limit is not None and client.answered >= self._limit:
            return
        announcement = self.server.announce(client.index) if self._synchronous else None
        if announcement is not None:
            self._count("down", client.index, announcement)
        link = self._links[client.index]
        frame = client.ask(announcement)
        taken = link.delay(client.answered) + link.transfer(len(frame))
        self._schedule(client.index, after + taken)

    def _deliver(self, index: int) -> None:
        """The open query of a client reaches the server, or is lost on its way."""
        frame = self.clients[index].ask()
        if not self._send("up", index, frame):
            self._schedule(index, self._timeout)
            return
        for receiver, reply in self.server.receive(frame):
            self._reply(receiver, reply)

    def _reply(self, index: int, frame: Frame) -> None:
        """A reply reaches its client, which starts its next round, or is lost on its way."""
        if not self._send("down", index, frame):
            self._schedule(index, self._timeout)
            return
        client = self.clients[index]
        client.tell(frame)
        self.activations[index] += 1
        self._begin(client, after=self._links[index].transfer(len(frame)))

    def _count(self, way: Way, index: int, frame: Frame) -> None:
        if way == "up":
            self.traffic.up += len(frame)
        else:
            self.traffic.down += len(frame)
        if self._observer is not None:
            self._observer(self.now, way, index, bytes(frame))

    def _send(self, way: Way, index: int, frame: Frame) -> bool:
        """Count a frame; False if it is lost."""
        self._count(way, index, frame)
        lost = self._links[index].lost(self._transmissions[index])
        self._transmissions[index] += 1
        self.traffic.lost += lost
        return not lost

    def upload(self, purpose: Literal["table", "validation", "test"], rows: int) -> None:
        """Every client uploads its embeddings of one partition; the bytes are counted apart."""
        for client in self.clients:
            at_once = rows_at_once(self.server.side.table.dims[client.index])
            for start in range(0, rows, at_once):
                frame = client.upload(purpose, start, min(start + at_once, rows))
                if purpose == "table":
                    self.traffic.table += len(frame)
                else:
                    self.traffic.evaluation += len(frame)
                self.server.receive_upload(frame)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold, beside the parties' own state."""
        return {
            "now": self.now,
            "traffic": vars(self.traffic).copy(),
            "activations": list(self.activations),
            "transmissions": list(self._transmissions),
            "events": [list(event) for event in sorted(self._events)],
            "sequence": self._sequence,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self.now = state["now"]
        self.traffic = Traffic(**state["traffic"])
        self.activations = list(state["activations"])
        self._transmissions = list(state["transmissions"])
        self._events = [(time, sequence, index) for time, sequence, index in state["events"]]
        heapq.heapify(self._events)
        self._sequence = state["sequence"]
