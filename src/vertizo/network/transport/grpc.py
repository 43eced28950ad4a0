"""The network between organisations: gRPC streams under mutual TLS.

A member opens one stream to the label holder and keeps it. One message up is one ask, one message
down its answer, as they are: there is no other encoding. The name in the member's certificate says
who asks. When a stream breaks, the member opens another and asks the same again; so
`GrpcChannel` sees to it on its side, and `GrpcServer` ends the stream that was left behind.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from cryptography.x509 import load_pem_x509_certificate

from vertizo.core.errors import RunError, VertizoError
from vertizo.network.transport import versions
from vertizo.network.transport.base import Service
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc_calls import Call, Calls
from vertizo.network.transport.grpc_channel import (
    METHOD,
    GrpcChannel,
    address,
    bounded,
    grpc_module,
    keepalive,
    why_not_listening,
)
from vertizo.network.transport.job_id import JobId

__all__ = ["GrpcChannel", "GrpcServer"]

CLOSING_SECONDS = 2.0
"""For answers that are being written when the server closes."""
CLOSING = "the server is closing"
LARGEST = 2**31 - 1
"""Bytes of a message of gRPC."""
log = logging.getLogger("vertizo.network")


class GrpcServer:
    """Answers members' asks out of a service, in a thread of its own, while it is entered.

    Args:
        service: whose ``ask`` is called in the server's thread.
        listen: host and port; port 0 is any free one.
        credentials: the label holder's.
        rate: asks of one member in a second, on average, with a burst of a second's; without it,
            as many as are answered. Members above it wait.
        latest: what is shown to those who connect from then on; default: ``credentials``, always.
        keepalive_seconds: of silence after which the other side is asked for a sign of life, which
            may take two or three times as long. More, where lines are slow and asks are long.
        job: what is served; streams of another job are not taken in.
    """

    def __init__(
        self,
        service: Service,
        *,
        listen: str,
        credentials: Credentials,
        rate: float | None = None,
        latest: Callable[[], Credentials] | None = None,
        keepalive_seconds: float = 10.0,
        job: JobId | None = None,
    ) -> None:
        credentials.check_use(serving=True)
        address("listen", listen)
        self._service = service
        self._members = frozenset(service.members)
        self._listen, self._job = listen, job or JobId()
        self._latest = latest or (lambda: credentials)
        self.seen: dict[str, datetime] = {}
        """When the certificates expire that members showed last."""
        self.strangers = 0
        """Connections that were refused, of parties that are no members."""
        self._rate, self._keepalive_seconds = rate, keepalive_seconds
        self._calls: Calls | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._streams: dict[str, Call] = {}
        """The newest of each member."""
        self._names: dict[Call, str] = {}
        self._paces: dict[str, _Pace] = {}
        self.port = 0

    def __enter__(self) -> GrpcServer:
        """Listen; RunError where the address cannot be had, or the port is in use."""
        grpc, shown = grpc_module(), self.credentials
        credentials = grpc.dynamic_ssl_server_credentials(
            _configured(shown), self._renewed(shown), require_client_authentication=True
        )
        self._calls = Calls(self, self._options(), self._listen, credentials)
        self.port = self._calls.port
        if not self.port:
            raise RunError(f"cannot listen on {self._listen}: {why_not_listening(self._listen)}")
        self._thread = threading.Thread(target=self._calls.run, name="vertizo-network", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all streams, once what was answered is written, and give the port back."""
        if self._thread is None or not self._thread.is_alive():
            return
        assert self._calls is not None
        self._is_closing = True
        for call in list(self._names):
            call.end(grpc_module().StatusCode.UNAVAILABLE, CLOSING)
        self._calls.shut()
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            self._calls.cancel()
            self._thread.join()

    @property
    def credentials(self) -> Credentials:
        """What is shown to whoever connects now."""
        return self._latest()

    def _renewed(self, shown: Credentials) -> Callable[[], Any]:
        """For gRPC to ask at each handshake: what is shown from here on, None for no change."""

        def fetch() -> Any:
            nonlocal shown
            before, shown = shown, self.credentials
            return None if shown == before else _configured(shown)

        return fetch

    def _options(self) -> list[tuple[str, int]]:
        return [
            *keepalive(self._keepalive_seconds),
            ("grpc.so_reuseport", 0),  # or a second server would take every other connection
            ("grpc.max_receive_message_length", min(self._service.largest_ask, LARGEST)),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", 2),  # of one connection; a member needs one
            ("grpc.http2.max_ping_strikes", 0),  # members choose how often to ask for life
            *bounded(),
        ]

    # What `Calls` tells of.

    def opened(self, call: Call) -> None:
        """As of a `Handler`: who is a member is let in, in place of an earlier stream of its."""
        code = grpc_module().StatusCode
        if call.method != METHOD:
            call.end(code.UNIMPLEMENTED, "no such method")
            return
        if (refusal := self._job.refusal(JobId.of(call.metadata))) is not None:
            may_pass, words = refusal
            call.end(code.UNAVAILABLE if may_pass else code.FAILED_PRECONDITION, words)
            return
        identity = call.identity()
        names = identity.get("x509_common_name", [])
        member = names[0].decode(errors="replace") if len(names) == 1 else ""
        if member not in self._members:
            self.strangers += 1
            log.warning("refused %s, who calls itself %r", call.peer(), member)
            call.end(code.PERMISSION_DENIED, f"{member!r} is no member of this federation")
            return
        shown = identity.get("x509_pem_cert", [b""])[0]
        self.seen[member] = load_pem_x509_certificate(shown).not_valid_after_utc
        before, self._streams[member] = self._streams.get(member), call
        self._names[call] = member
        if before is not None:
            # as a rule the connection was cut, and only this side has not noticed yet
            before.end(code.ABORTED, f"another connection of {member!r} took its place")
        if self._is_closing:
            call.end(code.UNAVAILABLE, CLOSING)
        call.accept(versions.METADATA)

    def heard(self, call: Call, frame: bytes | None) -> None:
        """As of a `Handler`: an ask, unless it is too early for it."""
        if frame is None:
            call.end(grpc_module().StatusCode.OK)
            return
        if (member := self._names.get(call)) is None:
            return  # gRPC may say first that the stream is over
        pace = self._paces.setdefault(member, _Pace(self._rate))
        if wait := pace.wait():
            assert self._calls is not None
            self._calls.later(wait, call, partial(self._asked, call, frame))
        else:
            self._asked(call, frame)

    def _asked(self, call: Call, frame: bytes) -> None:
        member = self._names.get(call)
        if member is None or self._streams.get(member) is not call:
            return  # it is over
        try:
            rest = self._service.ask(member, frame, _Once(call))
        except VertizoError as error:
            call.end(grpc_module().StatusCode.FAILED_PRECONDITION, str(error)[:500])
        except Exception as error:
            log.error("an ask of %s failed: %s: %s", member, type(error).__name__, error)
            line = "the server failed at this ask; its log says how"
            call.end(grpc_module().StatusCode.INTERNAL, line)
        else:
            if rest is not None:
                rest()

    def closed(self, call: Call) -> None:
        """As of a `Handler`."""
        member = self._names.pop(call, None)
        if member is None or self._streams.get(member) is not call:
            return
        del self._streams[member]
        try:
            self._service.gone(member)
        except Exception as error:
            log.error("%s left, and: %s: %s", member, type(error).__name__, error)


def _configured(shown: Credentials) -> Any:
    """Credentials as gRPC takes them."""
    pair = (shown.key, shown.certificate)
    return grpc_module().ssl_server_certificate_configuration([pair], shown.authority)


class _Once:
    """Takes the answer to one ask, from whatever thread; of several the first."""

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call

    def __call__(self, content: bytes) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.answer(content)


class _Pace:
    """A member's rate, with a burst of a second's asks."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = 0.0
        """When the asks so far would have been taken in at that rate."""

    def wait(self) -> float:
        """Seconds until the next ask may be taken in."""
        if self._rate is None:
            return 0.0
        now, each = time.monotonic(), 1 / self._rate
        self._due = max(self._due, now) + each
        return max(0.0, self._due - now - max(1.0, each))
