"""The member's side of one gRPC stream of asks and answers.

gRPC takes asks out of an iterator, in a thread of its own, and receives answers in another. The
first thread waits for the answer before the next ask; the second hands the answer to the caller
directly, because a caller that waits by gRPC's own means is also woken when an ask was sent.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Metadata = Sequence[tuple[str, str]]
Said = Callable[[Iterable[tuple[str, str | bytes]]], None]
"""Callback that takes the metadata with which a server accepted the stream."""
WAIT_SECONDS = 0.2
"""Longest wait at a time: Windows handles Ctrl-C only between waits."""


class BrokenStreamError(Exception):
    """The stream ended; carries gRPC's status code and details."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class Stream:
    """A stream over a gRPC channel of its own that sends asks and receives their answers in turn.

    ``metadata`` is sent when the stream opens; ``said`` is called once, when the server accepts it.
    """

    def __init__(self, channel: Any, method: str, metadata: Metadata, said: Said) -> None:
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Answers in order, put here by gRPC's thread; None where the stream ended."""
        stream = channel.stream_stream(method, response_deserializer=self._heard)
        self._call = stream(self._asks(), metadata=metadata)
        self._channel, self._said = channel, said
        self.is_taken = False
        """Whether the server has accepted the stream."""
        if not self._call.add_callback(self._ended):
            self._ended()

    def ask(self, frame: bytes) -> bytes:
        """Send an ask and wait for its answer; BrokenStreamError if the stream ended."""
        self._frames.put(frame)
        if not self.is_taken:
            metadata = self._call.initial_metadata()  # returns as well without a connection
            if metadata and self._call.is_active():
                self._said(metadata)
                self.is_taken = True
        while True:
            try:
                answer = self._answers.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                continue
            if answer is None:
                raise BrokenStreamError(self._call.code(), self._call.details() or "")
            self.is_taken = True  # by a server that says nothing of itself
            return answer

    def close(self) -> None:
        """End stream and channel, from any thread; an ask that waits in another ends too."""
        self._frames.put(None)
        self._call.cancel()
        self._channel.close()

    def _asks(self) -> Iterator[bytes]:
        """Yield the asks for gRPC to send, each after the answer to the last."""
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
