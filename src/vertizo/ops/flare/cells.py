"""Asks as messages of NVIDIA FLARE's cells: one frame up, one frame down.

FLARE's documented call of a Collab object streams every message in acknowledged chunks and logs it,
which takes several times as long. A request of the core cell below it is one frame each way, over
the same authenticated connections. It is internal to FLARE, so that only one version is supported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from threading import Event, Lock, Thread
from typing import Any

from vertizo.core.errors import MalformedError, RunError
from vertizo.network.transport.base import Service

VERSION = "2.9"
"""FLARE's version whose cells are known here."""
CHANNEL, TOPIC = "vertizo", "ask"
"""Channel and topic at which asks arrive at a cell."""
NOT_YET = "vertizo__not_yet"
"""Header of a reply that says: the ask has arrived but has no answer yet, repeat it."""
HOLD = 5.0
"""Seconds until an open ask is answered with `NOT_YET`, so that silence means a fault."""
LOOK = 0.25
"""Seconds between two checks of members and service."""
LOST = 3 * HOLD
"""Seconds after which an ask or its reply counts as lost."""
LONGEST_PAUSE = 2.0
"""Seconds between two asks that fail at once, at most."""
ENDED = "FLARE ended the job: a site of it stopped, or somebody aborted it"


def require_flare() -> None:
    """Raise RunError unless NVIDIA FLARE is installed, in the version that is known here."""
    try:
        version = metadata.version("nvflare")
    except metadata.PackageNotFoundError:
        raise RunError("NVIDIA FLARE is not installed; pip install 'vertizo[flare]'") from None
    if not version.startswith(f"{VERSION}."):
        raise RunError(
            f"NVIDIA FLARE is installed in version {version}, and only {VERSION}.x is supported;"
            " pip install 'vertizo[flare]'"
        )


class CellChannel:
    """A member's way to the service through the cell of its FLARE job (``engine.get_cell()``).

    ``server`` is the full name of the cell of the server's job; ``aborted`` says whether FLARE has
    ended the job. An ask is given up after ``patience`` seconds without any sign of the server.
    """

    def __init__(
        self,
        cell: Any,
        server: str,
        *,
        patience: float = 120.0,
        aborted: Callable[[], bool] = lambda: False,
    ) -> None:
        require_flare()
        self._core = cell.core_cell
        self._server = server
        self._patience = patience
        self._aborted = aborted

    def ask(self, frame: bytes) -> bytes:
        """Send an ask until it is answered; RunError if it is refused, or nobody answers."""
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
        from nvflare.fuel.f3.message import Message

        refused = {ReturnCode.INVALID_REQUEST, ReturnCode.UNAUTHENTICATED, ReturnCode.MSG_TOO_BIG}
        heard, pause = time.monotonic(), 0.05
        while not self._aborted():
            reply = self._core.send_request(
                CHANNEL, TOPIC, self._server, Message({}, frame), timeout=LOST, optional=True
            )
            code = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
            if code == ReturnCode.OK:
                if not reply.get_header(NOT_YET, False):
                    return _bytes_of(reply)
                heard, pause = time.monotonic(), 0.05
                continue
            reason = reply.get_header(MessageHeaderKey.ERROR, "") or code
            if code in refused:
                raise RunError(f"FLARE's server refused an ask of {len(frame):,} bytes: {reason}")
            silent = time.monotonic() - heard
            if silent > self._patience:
                raise RunError(
                    f"FLARE's server gave no answer for {silent:.0f} seconds ({reason});"
                    f" patience is {self._patience:g} seconds"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise RunError(ENDED)

    def close(self) -> None:
        """Do nothing: the cell is FLARE's, and stays open."""


@dataclass(eq=False)
class _Ask:
    """A member's open ask, in one of these states::

        from      to        when
        waiting   held      it gets no answer for `HOLD` seconds: the member hears `NOT_YET`
        held      waiting   the member repeats it
        waiting   done      the service answers: the reply is sent
        held      answered  the service answers: the answer is kept
        answered  done      the member repeats it: the reply is sent

    ``request`` is None while it is held or answered.
    """

    cell: str
    frame: bytes
    request: str | None  # of the cell that waits for the reply; None after a "not yet"
    since: float
    answer: bytes | None = None


class CellService:
    """Passes members' asks, which arrive at the cell of the server's job, to a service.

    FLARE vouches for who asks: its server passes a message on only if it comes from the cell that
    its token was given to, and a client gets its token for its certificate. ``members`` maps the
    full name of each member's cell to the member's name.
    """

    def __init__(self, cell: Any, service: Service, members: Mapping[str, str]) -> None:
        require_flare()
        self._core = cell.core_cell
        self._service = service
        self._members = dict(members)
        self._asks: dict[str, _Ask] = {}
        self._closed = False
        self._lock = Lock()
        self._core.register_request_cb(CHANNEL, TOPIC, self._take)

    def say_not_yet(self) -> None:
        """Send `NOT_YET` to every member that has waited for `HOLD` seconds."""
        waiting = []
        with self._lock:
            late = time.monotonic() - HOLD
            for ask in self._asks.values():
                if ask.request is not None and ask.since <= late:
                    waiting.append((ask.cell, ask.request))
                    ask.request = None
        for cell, request in waiting:
            self._reply(cell, request, b"", not_yet=True)

    def gone(self, member: str) -> None:
        """Forget a member's open ask, and tell the service that it is gone."""
        with self._lock:
            self._asks.pop(member, None)
        self._service.gone(member)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Send `NOT_YET` when it is due, however long the service takes; after, refuse all asks."""
        over = Event()

        def watch() -> None:
            while not over.wait(LOOK):
                self.say_not_yet()

        (thread := Thread(target=watch, name="vertizo-not-yet", daemon=True)).start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with self._lock:
                self._closed = True
                self._asks.clear()

    def _take(self, message: Any) -> Any:
        """Take a message, in a thread of the cell's pool; a returned message is the reply."""
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
        from nvflare.fuel.f3.cellnet.utils import make_reply

        cell = message.get_header(MessageHeaderKey.ORIGIN)
        request = message.get_header(MessageHeaderKey.REQ_ID)
        member, most = self._members.get(cell), self._service.largest_ask
        if member is None:
            return make_reply(ReturnCode.UNAUTHENTICATED, f"{cell} is not of this run")
        try:
            frame = _bytes_of(message)
        except MalformedError as error:
            return make_reply(ReturnCode.INVALID_REQUEST, str(error))
        if len(frame) > most:
            return make_reply(ReturnCode.INVALID_REQUEST, f"an ask has {most:,} bytes at most")
        with self._lock:
            if self._closed:
                return make_reply(ReturnCode.INVALID_REQUEST, "the run is over")
            ask, now = self._asks.get(member), time.monotonic()
            if repeated := ask is not None and ask.frame == frame:
                # The service has it: it is spared a second one, and the first answer serves.
                ask.request, ask.since = request, now
            else:
                ask = self._asks[member] = _Ask(cell, frame, request, now)
        if repeated:
            self._settle(member, ask, ask.answer)
            return None
        try:
            rest = self._service.ask(
                member, frame, lambda answer: self._settle(member, ask, answer)
            )
            if rest is not None:
                rest()
        except BaseException:
            with self._lock:
                if self._asks.get(member) is ask:
                    del self._asks[member]
            raise  # which the cell tells the member, who asks again
        return None  # the reply follows when there is an answer

    def _settle(self, member: str, ask: _Ask, answer: bytes | None) -> None:
        """Send an answer if the member waits for it; else keep it until the ask is repeated."""
        with self._lock:
            if answer is None or self._asks.get(member) is not ask:
                return
            ask.answer = answer
            request = ask.request
            if request is None:
                return
            del self._asks[member]
        self._reply(ask.cell, request, answer)

    def _reply(self, cell: str, request: str, answer: bytes, not_yet: bool = False) -> None:
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
        from nvflare.fuel.f3.message import Message

        headers: dict[str, Any] = {
            MessageHeaderKey.CHANNEL: CHANNEL,
            MessageHeaderKey.TOPIC: TOPIC,
            MessageHeaderKey.RETURN_CODE: ReturnCode.OK,
        }
        if not_yet:
            headers[NOT_YET] = True
        self._core.send_reply(Message(headers, answer), cell, [request], optional=True)


def _bytes_of(message: Any) -> bytes:
    """The bytes that a message carries; MalformedError if FLARE has made an object of them."""
    payload = message.payload
    if payload is None:
        return b""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise MalformedError(f"a message of {type(payload).__name__}, not of bytes")
    return bytes(payload)
