"""The member's side of the gRPC transport: one stream, opened again whenever it breaks."""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from vertizo.core.errors import ConfigError, RunError
from vertizo.core.system import open_files
from vertizo.core.text.messages import Alarm
from vertizo.network.transport import versions
from vertizo.network.transport.addresses import is_loopback, parsed, proxy_trouble
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc_stream import BrokenStreamError, Stream
from vertizo.network.transport.job_id import JobId

METHOD = "/vertizo.Parties/Ask"
LARGEST_ANSWER = 1 << 30
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.75
"""Seconds between tries, short enough that a server which comes back is asked within a second."""
CONNECT_SECONDS = 5.0
HANDSHAKE_SECONDS = CONNECT_SECONDS
"""Seconds in which a caller must complete TLS's and HTTP/2's handshakes. Until then it occupies a
connection; more time would help no member, whose own try has ended by then."""
STEADY_SECONDS = 10.0
"""Seconds after which a connection counts as stable: its loss begins a new outage."""
REFUSALS = 8
"""Connections closed right after the handshake, in a row, that mean a refused certificate; or
failures to reach a proxy, before any answer, that mean a wrong one."""
OF_A_LABEL_HOLDER = ("PERMISSION_DENIED", "FAILED_PRECONDITION", "UNAUTHENTICATED", "ABORTED")
"""gRPC status codes with which a label holder's process refuses a member."""
FAILURES = 5
"""Number of server failures at one ask after which the channel gives up."""


def grpc_module() -> Any:
    """Import gRPC, and keep it from writing each failed connection to standard error."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    return grpc


def address(what: str, text: str, *, reached: bool = False) -> tuple[str, int]:
    """Parse an address as `parsed` does; raise a `ConfigError` if it is not host:port."""
    try:
        return parsed(text, reached=reached)
    except ValueError as error:
        raise ConfigError(f"{what} {error}") from None


def why_not_listening(listen: str) -> str:
    """Find out why an address cannot be listened on, which gRPC does not say."""
    host, port = address("listen", listen)
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(place)
                trial.listen()
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        return f"port {port} is in use" if in_use else str(error.strerror or error)
    return "the address was refused"


def bounded() -> list[tuple[str, int]]:
    """Return gRPC options that limit connections to a quarter of the files that may be open.

    A connection that is no gRPC, or does not complete the handshake in time, is cut.
    """
    return [
        ("grpc.max_allowed_incoming_connections", open_files() // 4),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_SECONDS)),
    ]


def aged(idle: float) -> list[tuple[str, int]]:
    """Return gRPC options that cut a connection after ``idle`` seconds without calls.

    A connection that is ten minutes old is cut as well. Calls that are open then have ten more
    seconds; callers' libraries reconnect by themselves.
    """
    return [
        ("grpc.max_connection_idle_ms", round(1000 * idle)),
        ("grpc.max_connection_age_ms", 600_000),
        ("grpc.max_connection_age_grace_ms", 10_000),
    ]


def keepalive(seconds: float) -> list[tuple[str, int]]:
    """Return gRPC options that ask for a sign of life after so much silence, even between asks.

    TCP notices a machine that is gone within three times as long; a silent one is noticed a little
    later, since its answer may wait behind much data on a slow line.
    """
    silence = round(1000 * seconds)
    return [
        ("grpc.keepalive_time_ms", silence),
        ("grpc.keepalive_timeout_ms", 2 * silence),  # which becomes TCP's own limit
        ("grpc.http2.ping_timeout_ms", 3 * silence),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


class GrpcChannel:
    """A member's connection to the label holder, a `Channel` over gRPC.

    An ask waits as long as its answer takes while the connection is alive; without a connection it
    is repeated for ``patience`` seconds.

    Args:
        server: host and port.
        credentials: the member's credentials, with the authority that vouches for the server.
        patience: seconds that the server may be unreachable.
        server_name: the host name in the server's certificate, if it differs from the address.
        on_trouble: called with a line when the connection is lost, and when it is back.
        largest_answer: largest size of an answer in bytes.
        latest: called for the credentials of each new connection; default: ``credentials``.
        keepalive_seconds: silence after which the server is asked for a sign of life.
        job: called for the job that a new connection names. With a job of agents the channel waits
            while anything else answers at the address: ports are used again.
    """

    def __init__(
        self,
        server: str,
        credentials: Credentials,
        *,
        patience: float = 3600.0,
        server_name: str | None = None,
        on_trouble: Callable[[str], None] = lambda line: None,
        largest_answer: int = LARGEST_ANSWER,
        latest: Callable[[], Credentials] | None = None,
        keepalive_seconds: float = 10.0,
        job: Callable[[], JobId] = JobId,
    ) -> None:
        credentials.check_use(serving=False)
        host, _ = address("server", server, reached=True)
        self._server = server
        self._latest = latest or (lambda: credentials)
        self._patience = patience
        self._job = job
        self._tell = on_trouble
        self._options: list[tuple[str, int | str]] = [
            *keepalive(keepalive_seconds),
            ("grpc.max_receive_message_length", largest_answer),
            ("grpc.max_send_message_length", -1),
            ("grpc.min_reconnect_backoff_ms", round(1000 * CONNECT_SECONDS)),
            ("grpc.use_local_subchannel_pool", 1),  # or tries would share gRPC's own pauses
            ("grpc.enable_retries", 0),
            ("grpc.service_config_disable_resolution", 1),
        ]
        if is_loopback(host):
            self._options.append(("grpc.enable_http_proxy", 0))
        if server_name is not None:
            self._options.append(("grpc.ssl_target_name_override", server_name))
        self._stream: Stream | None = None
        self._trouble: _Trouble | None = None
        self._proxied = 0
        """Count of failures to reach a proxy."""
        self._answered = False
        self._closed = threading.Event()
        self._heard = time.monotonic()

    def ask(self, frame: bytes) -> bytes:
        """See `Channel.ask`; RunError as well once `close` was called."""
        grpc = grpc_module()
        failures = 0
        while not self._closed.is_set():
            try:
                if self._stream is None:
                    self._stream = self._open()
                answer = self._stream.ask(frame)
            except BrokenStreamError as error:
                self._drop()
                if self._closed.is_set():
                    break
                code, details = error.code, error.details
                failures += code is grpc.StatusCode.INTERNAL and details.startswith("the server")
                if failures >= FAILURES:
                    raise RunError(f"{self._server}: {details}") from None
                self._pause(code, details)
            except BaseException:  # Ctrl-C: the answer to come belongs to no later ask
                self._drop()
                raise
            else:
                self._trouble, self._heard, self._answered = None, time.monotonic(), True
                return answer
        raise RunError(f"the connection to {self._server} was closed on this side")

    @property
    def credentials(self) -> Credentials:
        """The credentials that the next connection uses."""
        return self._latest()

    @property
    def is_connected(self) -> bool:
        """Whether the server has accepted the stream that is open."""
        stream = self._stream
        return stream is not None and stream.is_taken

    @property
    def silence(self) -> float:
        """Seconds since the last answer."""
        return time.monotonic() - self._heard

    def close(self) -> None:
        """Close the connection; an ask that waits in another thread raises a `RunError`."""
        self._closed.set()
        self._drop()

    def _open(self) -> Stream:
        """Open a connection, and its stream."""
        grpc, shown = grpc_module(), self.credentials
        tls = grpc.ssl_channel_credentials(shown.authority, shown.key, shown.certificate)
        channel = grpc.secure_channel(self._server, tls, options=self._options)
        return Stream(channel, METHOD, self._job().metadata(), self._taken)

    def _taken(self, said: Iterable[tuple[str, str | bytes]]) -> None:
        """Check what the server says of its version; report an outage's end."""
        if problem := versions.problem(f"the label holder at {self._server}", said):
            raise RunError(problem)
        if self._trouble is not None:
            self._trouble.connected()

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _pause(self, code: Any, details: str) -> None:
        """Wait until the next try, or raise a `RunError` if another try cannot help."""
        final, reason = explain(code.name, details)
        by_proxy = None if final else proxy_trouble(details, reason, self._server)
        if by_proxy is not None:
            kind, reason = by_proxy
            self._proxied += kind == "dead"
            final = kind == "denied" or (not self._answered and self._proxied >= REFUSALS)
        waits = bool(self._job().job) and code.name not in OF_A_LABEL_HOLDER
        if final and not waits:
            raise RunError(f"{self._server}: {reason}")
        trouble = self._trouble
        if trouble is None or trouble.is_over:
            trouble = self._trouble = _Trouble(self._server, self._tell)
        trouble.lost(reason)
        closed = "failed to connect" in details and "Socket closed" in details
        if closed and "Handshake" not in details:  # before its end, a tunnel found nobody behind it
            trouble.refusals += 1
            if trouble.refusals >= REFUSALS and not waits:
                raise RunError(
                    f"{self._server} closes the connection right after the handshake; most likely "
                    f"it does not accept the certificate of {self.credentials.name!r}: of another "
                    f"authority, no member's, or expired by its clock"
                )
        else:
            trouble.refusals = 0
        if time.monotonic() - trouble.began > self._patience:
            raise RunError(
                f"{self._server} could not be reached for {self._patience:.0f} seconds: {reason}"
            )
        self._closed.wait(trouble.next_pause())


class _Trouble:
    """An outage, from the first failure to the next answer; reports its loss and its end once."""

    def __init__(self, server: str, tell: Callable[[str], None]) -> None:
        self.began = time.monotonic()
        self.refusals = 0
        self._server = server
        self._tell = tell
        self._tries = 0
        self._told = 0
        """1 once the loss was reported, 2 once its end was."""
        self._connected: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the last connection held for more than `STEADY_SECONDS`."""
        return self._connected is not None and time.monotonic() - self._connected > STEADY_SECONDS

    def lost(self, reason: str) -> None:
        """Record that a connection, or a try to make one, failed."""
        self._connected = None
        if self._told < 1:
            self._told = 1
            self._tell(Alarm(f"no connection to {self._server}: {reason}; trying again"))

    def connected(self) -> None:
        """Record that the connection is back."""
        self._connected = time.monotonic()
        if self._told < 2:
            self._told = 2
            self._tell(f"connected to {self._server} after {self._connected - self.began:.1f} s")

    def next_pause(self) -> float:
        """Return the seconds until the next try: longer each time, and randomised."""
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**self._tries)
        self._tries = min(self._tries + 1, 30)
        return longest * random.uniform(0.5, 1.0)


def explain(code: str, details: str) -> tuple[bool, str]:
    """Say whether a failure is permanent, and describe it in words."""
    text = " ".join(details.split())
    for mark, reason in LASTING.items():
        if mark in text:
            return True, reason
    if code in OF_A_LABEL_HOLDER:
        return True, text
    if code == "UNIMPLEMENTED":
        return True, "what answers there is no server of vertizo"
    if code == "RESOURCE_EXHAUSTED" and "larger than max" in text:
        return True, f"a message is longer than allowed: {text}"
    return False, next((why for mark, why in PASSING.items() if mark in text), text or code)


CLOCK = "or this machine's clock is wrong"
OTHER_HOST = (
    "the server's certificate is for another host name; if that is right, give its name as "
    "server_name"
)
LASTING = {
    "certificate has expired": f"the server's certificate has expired, {CLOCK}",
    "certificate is not yet valid": f"the server's certificate is not valid yet, {CLOCK}",
    "unsupported certificate purpose": "the certificate shown there is a member's; it cannot be a "
    "server's",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate was not signed by the authority that "
    "this member trusts",
    "Hostname Verification Check failed": OTHER_HOST,
    "is not in peer certificate": OTHER_HOST,  # gRPC 1.70
    "WRONG_VERSION_NUMBER": "what answers there does not speak TLS; is it the right port?",
    "ALPN": "what answers there speaks TLS but not gRPC; is it the right port?",
}
"""Text in gRPC's error → description of a permanent failure."""
PASSING = {
    "Connection refused": "nobody listens there",
    "Socket closed": "the connection was closed",
    "Connection reset": "the connection was closed",
    "errors resolving": "the host name is not known",
    "Endpoint closing": "the connection could not be made in time",
    "ping timeout": "the server gives no sign of life",
}
