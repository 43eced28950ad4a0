"""One stream of asks and answers over a gRPC channel, from the side that asks.

gRPC's own blocking stream takes three threads: one reads the asks from an iterator, one waits for
events, and the caller waits for that one. With 64 KB up and a scalar down, handing over costs as
much as all the rest of the member's transport. `DirectStream` sends, receives and waits in the
caller's thread, by the calls that gRPC itself makes for its single-threaded streams. They are no
public interface: `open_stream` takes `PublicStream` where they are missing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

Metadata = Sequence[tuple[str, str]]
Said = Callable[[Iterable[tuple[str, str | bytes]]], None]
"""Takes the metadata with which a server took the stream."""


class BrokenStreamError(Exception):
    """The stream ended, with gRPC's status."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class Stream(Protocol):
    """Asks and answers in turn."""

    def ask(self, frame: bytes, said: Said) -> bytes:
        """The answer; ``said`` is called once in the life of a stream, and not if it never began.

        BrokenStreamError where the stream ended.
        """

    def close(self) -> None:
        """End it, from whatever thread; an ask that waits in another one ends."""


def open_stream(channel: Any, method: str, metadata: Metadata = ()) -> Stream:
    """A stream over a channel of gRPC's that begins with such metadata."""
    try:
        return DirectStream(channel, method, metadata)
    except (AttributeError, ImportError, TypeError):  # another version of gRPC
        return PublicStream(channel, method, metadata)


SAID, ENDED, ASKED = range(3)
"""Tags of the batches of operations that gRPC says are over."""


class DirectStream:
    """By the calls below gRPC's public interface, without further threads."""

    def __init__(self, channel: Any, method: str, metadata: Metadata = ()) -> None:
        import grpc
        from grpc._cython import cygrpc

        self._send = cygrpc.SendMessageOperation
        self._receive = cygrpc.ReceiveMessageOperation(0)
        self._codes = {code.value[0]: code for code in grpc.StatusCode}
        begin = cygrpc.SendInitialMetadataOperation(metadata, 0)
        end, begun = (
            cygrpc.ReceiveStatusOnClientOperation(0),
            cygrpc.ReceiveInitialMetadataOperation(0),
        )
        batches = (((begin, end), ENDED), ((begun,), SAID))
        plain = cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS
        self._call = channel._channel.segregated_call(
            plain, method.encode(), None, None, None, None, batches, None
        )
        self._waits_for = {ENDED, SAID}
        self._status: BrokenStreamError | None = None
        self._is_asking = threading.Lock()

    def ask(self, frame: bytes, said: Said) -> bytes:
        """As of a `Stream`."""
        with self._is_asking:
            if ENDED in self._waits_for:
                batch = self._send(frame, 0), self._receive
                if self._call.operate(batch, ASKED):
                    self._waits_for.add(ASKED)
            while self._waits_for:
                tag, operations = self._next()
                if tag == SAID and (metadata := operations[0].initial_metadata()):
                    said(metadata)
                elif tag == ASKED and (answer := operations[1].message()) is not None:
                    return bytes(answer)
            assert self._status is not None, "it ended"
            raise self._status

    def close(self) -> None:
        """As of a `Stream`."""
        if self._status is None:
            self._call.cancel(1, "closed on this side")
        if self._is_asking.acquire(blocking=False):  # else who asks hears that it ended
            try:
                while self._waits_for:
                    self._next()
            finally:
                self._is_asking.release()

    def _next(self) -> tuple[int, Any]:
        """Wait until a batch is over; its tag and its operations."""
        try:
            event = self._call.next_event()
        except BaseException:  # Ctrl-C: gRPC has lost count of what it waits for
            self._waits_for.clear()
            raise
        self._waits_for.discard(event.tag)
        operations = event.batch_operations
        if event.tag == ENDED:
            status = operations[1]
            self._status = BrokenStreamError(self._codes[status.code()], status.details() or "")
        return event.tag, operations


class PublicStream:
    """By gRPC's public interface."""

    def __init__(self, channel: Any, method: str, metadata: Metadata = ()) -> None:
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream = channel.stream_stream(method)
        self._call = stream(iter(self._frames.get, None), metadata=metadata)
        self._is_taken = False

    def ask(self, frame: bytes, said: Said) -> bytes:
        """As of a `Stream`."""
        import grpc

        self._frames.put(frame)
        try:
            if not self._is_taken:
                metadata = self._call.initial_metadata()  # returns as well without a connection
                if metadata and self._call.is_active():
                    self._is_taken = True
                    said(metadata)
            answer: bytes = next(self._call)
        except grpc.RpcError as error:
            raise BrokenStreamError(error.code(), error.details() or "") from None
        return answer

    def close(self) -> None:
        """As of a `Stream`."""
        self._frames.put(None)
        self._call.cancel()
