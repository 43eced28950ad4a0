"""One stream of asks and answers over a gRPC channel, from the side that asks.

gRPC takes asks out of an iterator, in a thread of its own, and hears answers in another. The first
one waits for the answer as well, which the second hands to the caller directly: whoever waits with
gRPC's own means is woken also when an ask has been sent.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Metadata = Sequence[tuple[str, str]]
Said = Callable[[Iterable[tuple[str, str | bytes]]], None]
"""Takes the metadata with which a server took the stream."""
WAIT_SECONDS = 0.2
"""Windows hears Ctrl-C between waits only."""


class BrokenStreamError(Exception):
    """The stream ended, with gRPC's status."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class Stream:
    """Asks and answers in turn, over a channel of gRPC's; it begins with such metadata."""

    def __init__(self, channel: Any, method: str, metadata: Metadata = ()) -> None:
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """As gRPC's thread hears them, in order; None where the stream ended."""
        stream = channel.stream_stream(method, response_deserializer=self._heard)
        self._call = stream(self._asks(), metadata=metadata)
        self._is_taken = False
        if not self._call.add_callback(self._ended):
            self._ended()

    def ask(self, frame: bytes, said: Said) -> bytes:
        """The answer; ``said`` is called once in the life of a stream, and not if it never began.

        BrokenStreamError where the stream ended.
        """
        self._frames.put(frame)
        if not self._is_taken:
            metadata = self._call.initial_metadata()  # returns as well without a connection
            if metadata and self._call.is_active():
                self._is_taken = True
                said(metadata)
        while True:
            try:
                answer = self._answers.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                continue
            if answer is None:
                raise BrokenStreamError(self._call.code(), self._call.details() or "")
            return answer

    def close(self) -> None:
        """End it, from whatever thread; an ask that waits in another one ends."""
        self._frames.put(None)
        self._call.cancel()

    def _asks(self) -> Iterator[bytes]:
        """What gRPC sends; it asks for the next one once the last is sent."""
        import grpc

        while (frame := self._frames.get()) is not None:
            yield frame
            del frame  # which may be long, and so may the wait
            try:
                next(self._call)
            except (grpc.RpcError, StopIteration):
                return

    def _heard(self, answer: bytes) -> bytes:
        self._answers.put(answer)
        return answer

    def _ended(self) -> None:
        self._answers.put(None)
