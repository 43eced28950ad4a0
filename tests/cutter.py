"""A way to a port that breaks, for tests: connections are cut in the middle of messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self


class Cutter:
    """A way to a port that breaks: each connection is cut after so many bytes, in either direction.

    Args:
        port: to lead to, on this machine.
        budgets: bytes of the first connections, in turn; those that follow are left alone.
    """

    def __init__(self, port: int, budgets: Sequence[int]) -> None:
        self._to = port
        self._budgets = list(budgets)
        self.cuts = 0
        self.flows = threading.Event()
        """Unset, nothing comes through any more, though connections stay open."""
        self.flows.set()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self.port: int = self._listener.getsockname()[1]
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self.flows.set()
        self._listener.close()
        self._threads[0].join(120)  # whose last connection may just have come
        with self._lock:
            for one in self._open:
                shut(one)
        for thread in self._threads:
            thread.join(120)

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                ours, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            try:
                theirs = socket.create_connection(("127.0.0.1", self._to), 10)
            except OSError:
                ours.close()
                continue
            ours.settimeout(None)
            theirs.settimeout(None)
            budget = [self._budgets.pop(0)] if self._budgets else None
            with self._lock:
                self._open += [ours, theirs]
            for source, sink in ((ours, theirs), (theirs, ours)):
                thread = threading.Thread(
                    target=self._carry, args=(source, sink, budget), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket, budget: list[int] | None) -> None:
        try:
            while piece := source.recv(65536):
                self.flows.wait(60)
                if budget is not None:
                    with self._lock:
                        had, budget[0] = budget[0], budget[0] - len(piece)
                        first = had > 0 >= budget[0]
                        self.cuts += first
                    sink.sendall(piece[: max(had, 0)])
                    if had <= len(piece):
                        return
                else:
                    sink.sendall(piece)
        except OSError:
            return
        finally:
            shut(source)
            shut(sink)


def shut(one: socket.socket) -> None:
    """End a connection at once, whoever waits on it."""
    with suppress(OSError):  # it was at its end
        one.shutdown(socket.SHUT_RDWR)
    one.close()
