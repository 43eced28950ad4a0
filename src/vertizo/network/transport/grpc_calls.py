"""gRPC streams from the side that answers, all in one thread.

gRPC's asyncio server has a thread that waits for events and wakes the loop's thread through a
socket for each; its other server has a thread for each stream. With 64 KB up and a scalar down
these cost more than the streams themselves. `Calls` waits for events and acts on them in the
thread that runs it, by the calls that gRPC's own servers are made of. They are no public interface:
the lowest gRPC allowed and that of today are both tested, and another one that lacks some of them
is named when the server begins.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from vertizo.core.errors import RunError

log = logging.getLogger("vertizo.network")
Metadata = Sequence[tuple[str, str | bytes]]
NEEDED = (
    "ReceiveCloseOnServerOperation",
    "ReceiveMessageOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendStatusFromServerOperation",
    "auth_context",
)
"""What streams are made of, beside what listening needs."""
LOOK_UP_SECONDS = 0.1
"""The longest wait: past 0.2 s gRPC waits in pieces until a time of day, which may be set back."""


class Handler(Protocol):
    """What happens to streams, told in the thread of `Calls.run`."""

    def opened(self, call: Call) -> None:
        """A party opened a stream, which `Call.accept` or `Call.end` must answer."""

    def heard(self, call: Call, frame: bytes | None) -> None:
        """It said something; None where it has nothing more to say."""

    def closed(self, call: Call) -> None:
        """A stream is over, whoever ended it."""


class Call:
    """One stream. Its methods may be called from any thread, and do nothing once it is over."""

    def __init__(self, cygrpc: Any, call: Any, method: str, metadata: Metadata = ()) -> None:
        self.method, self.metadata = method, metadata
        self._cygrpc, self._call = cygrpc, call
        self._lock = threading.Lock()
        self._receive = cygrpc.ReceiveMessageOperation(0)
        self._is_accepted = self._is_over = False
        self._due = 0
        """Batches of operations that gRPC has not said to be over."""
        self._start("closed", cygrpc.ReceiveCloseOnServerOperation(0))

    def peer(self) -> str:
        """Where the other side is."""
        return str(self._call.peer().decode(errors="replace"))

    def identity(self) -> Mapping[str, Sequence[bytes]]:
        """What its certificate says, by gRPC's names."""
        found = self._cygrpc.auth_context(self._call) or {}
        return {key.decode(): values for key, values in found.items()}

    def accept(self, metadata: Metadata) -> None:
        """Tell the other side that it is connected, and wait for what it says."""
        with self._lock:
            if not self._is_over:
                self._is_accepted = True
                self._start("sent", self._cygrpc.SendInitialMetadataOperation(metadata, 0))
                self._start("heard", self._receive)

    def answer(self, content: bytes) -> None:
        """Send a message, and wait for the next; only after `Handler.heard`, once."""
        with self._lock:
            if not self._is_over:
                self._start("heard", self._cygrpc.SendMessageOperation(content, 0), self._receive)

    def end(self, code: Any, line: str = "") -> None:
        """End the stream with gRPC's status, once what was sent is written."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            status = self._cygrpc.SendStatusFromServerOperation(
                None, code.value[0], line.encode(), 0
            )
            begin = self._cygrpc.SendInitialMetadataOperation((), 0)
            self._start("sent", *(() if self._is_accepted else (begin,)), status)

    def happened(self, what: str) -> bool:
        """Note that a batch is over; whether there is none left and will be none."""
        with self._lock:
            self._due -= 1
            self._is_over |= what == "closed"
            return self._is_over and not self._due

    def said(self) -> bytes | None:
        """The message of the last event that was one."""
        message = self._receive.message()
        return None if message is None else bytes(message)

    def _start(self, name: str, *operations: Any) -> None:
        self._due += 1
        self._call.start_server_batch(operations, (self, name))


class Calls:
    """Listens, and tells a handler of streams, in the thread of `run`.

    ``port`` is 0 where the address cannot be had. RunError where gRPC lacks what this needs.
    """

    def __init__(
        self, handler: Handler, options: Sequence[tuple[str, int]], listen: str, credentials: Any
    ) -> None:
        import grpc

        try:
            from grpc._cython import cygrpc

            for name in NEEDED:
                getattr(cygrpc, name)
            self._cygrpc = cygrpc
            self._queue = cygrpc.CompletionQueue()
            self._server = cygrpc.Server(tuple(options), False)
            self._server.register_completion_queue(self._queue)
            self.port = int(self._server.add_http2_port(listen.encode(), credentials._credentials))
        except (AttributeError, ImportError, TypeError) as error:
            raise RunError(
                f"grpcio {grpc.__version__} lacks calls that this version of vertizo makes "
                f"({error}); install the one that vertizo's constraints.txt names"
            ) from None
        except RuntimeError:  # as newer ones say that they do not listen
            self.port = 0
        self._handler, self._internal = handler, grpc.StatusCode.INTERNAL
        self._in_use = threading.Lock()
        """The server, which another thread must not be calling when it is let go."""
        self._is_waiting = self._is_shutting = self._is_gone = False
        self._later: list[tuple[float, int, Call, Callable[[], None]]] = []
        self._order = itertools.count()
        self._calls: set[Call] = set()
        """Streams of which gRPC has something left to say, without which it must not be let go."""
        self._new, self._shut = object(), object()
        if self.port:
            self._server.start()
            self._wait_for_next()

    def run(self) -> None:
        """Serve until `shut` was called and all streams are over."""
        is_shut = False
        while not is_shut or self._is_waiting or self._calls:
            event = self._queue.poll(self._deadline())
            if event.tag is self._shut:
                is_shut = True
            elif event.tag is self._new:
                self._wait_for_next()
                if event.success:
                    self._begin(event)
            elif event.tag is not None:
                self._act(*event.tag)
            del event  # which holds a stream that may be over
            while self._later and self._later[0][0] <= time.monotonic():
                _, _, call, work = heapq.heappop(self._later)
                self._tell(call, work)
        with self._in_use:  # a thread may not have come back from `shut` yet
            self._server.destroy()
            self._is_gone = True

    def _wait_for_next(self) -> None:
        """Have gRPC say when a stream is opened, unless no more are taken."""
        with self._in_use:
            self._is_waiting = not self._is_shutting
            if self._is_waiting:
                self._server.request_call(self._queue, self._queue, self._new)

    def _begin(self, event: Any) -> None:
        method = event.call_details.method.decode(errors="replace")
        call = Call(self._cygrpc, event.call, method, event.invocation_metadata or ())
        self._calls.add(call)
        self._tell(call, self._handler.opened, call)

    def _act(self, call: Call, what: str) -> None:
        if call.happened(what):
            self._calls.discard(call)
        if what == "heard":
            self._tell(call, self._handler.heard, call, call.said())
        elif what == "closed":
            self._tell(call, self._handler.closed, call)

    def _tell(self, call: Call, handler: Callable[..., None], *what: Any) -> None:
        """Call a handler, whose fault ends this stream alone."""
        try:
            handler(*what)
        except Exception:
            log.exception("a stream of %s ends by a fault of this side", call.peer())
            call.end(self._internal, "the server failed; its log says how")

    def _deadline(self) -> float | None:
        """When to look up, by the time of day, as gRPC wants it; soon, since that may be set."""
        if not self._later:
            return None
        seconds = self._later[0][0] - time.monotonic()
        return time.time() + min(max(0.0, seconds), LOOK_UP_SECONDS)

    def later(self, seconds: float, call: Call, work: Callable[[], None]) -> None:
        """Do something for a stream then; to be called in the thread of `run`."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), call, work))

    def shut(self) -> None:
        """Take no more streams; from any thread, once."""
        with self._in_use:
            self._is_shutting = True
            self._server.shutdown(self._queue, self._shut)

    def cancel(self) -> None:
        """Cut off all streams; from any thread."""
        with self._in_use:
            if not self._is_gone:
                self._server.cancel_all_calls()
