"""A gRPC transport between organisations: one stream for each member, under mutual TLS.

A member opens one stream to the label holder and keeps it. One message up is one ask, one message
down its answer, as they are: there is no other encoding. The name in the member's certificate says
who asks. When a stream breaks, `GrpcChannel` opens another and repeats the ask, and `GrpcServer`
ends the stream that was left behind.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from typing import Any

from cryptography.x509 import load_pem_x509_certificate

from vertizo.core.errors import RunError, VertizoError
from vertizo.network.transport import versions
from vertizo.network.transport.base import Answer, Service
from vertizo.network.transport.certificates import Credentials
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
"""Seconds that the server gives answers which are being written when it closes."""
CLOSING = "the server is closing"
LARGEST = 2**31 - 1
"""Largest size of a gRPC message in bytes."""
log = logging.getLogger("vertizo.network")
Ended = tuple[Any, str]
"""The gRPC status code with which a stream ends, and a line that explains it."""


class GrpcServer:
    """A gRPC server that passes members' asks to a service; a context manager with its own thread.

    Args:
        service: the service; its ``ask`` is called in the server's thread.
        listen: host and port; port 0 is any free one.
        credentials: the label holder's credentials.
        rate: asks a second that one member may make on average, with a burst of one second's
            asks; members above it wait. None for no limit.
        latest: called for the credentials to show to new connections; default: ``credentials``.
        keepalive_seconds: silence after which the member is asked for a sign of life; noticing its
            loss may take two or three times as long. Raise it where lines are slow, asks long.
        job: the job that is served; streams of another job are refused.
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
        """Member → when the certificate that it showed last expires."""
        self.strangers = 0
        """Count of connections that were refused because the party is no member."""
        self._rate, self._keepalive_seconds = rate, keepalive_seconds
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._streams: dict[str, _Stream] = {}
        """Each member's newest stream."""
        self._paces: dict[str, _Pace] = {}
        self.port = 0

    def __enter__(self) -> GrpcServer:
        """Start to listen; raise a `RunError` if the address cannot be bound."""
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="vertizo-network", daemon=True
        )
        self._thread.start()
        self.port = started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the answers that are due, end all streams and free the port."""
        if self._thread is None or not self._thread.is_alive():
            return
        assert self._loop is not None
        with suppress(RuntimeError):  # it is closed by another thread meanwhile
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self, started: Future[int]) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: Future[int]) -> None:
        """Serve until `close` is called and all streams ended; ``started`` receives the port."""
        grpc, self._shown = grpc_module(), self.credentials
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server(options=self._options())
        package, method = METHOD.strip("/").split("/")
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        generic = grpc.method_handlers_generic_handler(package, {method: handler})
        server.add_generic_rpc_handlers((generic,))
        credentials = grpc.dynamic_ssl_server_credentials(
            _configured(self._shown), self._renewed, require_client_authentication=True
        )
        try:
            port = server.add_secure_port(self._listen, credentials)
            await server.start()
        except RuntimeError:
            why = why_not_listening(self._listen)
            raise RunError(f"cannot listen on {self._listen}: {why}") from None
        started.set_result(port)
        await self._closing.wait()
        for stream in list(self._streams.values()):
            stream.end(grpc.StatusCode.UNAVAILABLE, CLOSING)
        await server.stop(CLOSING_SECONDS)
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left, timeout=CLOSING_SECONDS)  # for what gRPC still tells them

    @property
    def credentials(self) -> Credentials:
        """The credentials that a new connection is shown."""
        return self._latest()

    def _renewed(self) -> Any:
        """The credentials for gRPC's next handshake if they are new; None if unchanged."""
        before, self._shown = self._shown, self.credentials
        return None if self._shown == before else _configured(self._shown)

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

    async def _stream(self, _: AsyncIterator[bytes], context: Any) -> None:
        """Serve one stream, from its opening to its end."""
        grpc = grpc_module()
        try:
            ended = self._refusal(context) or await self._taken(context)
        except grpc.aio.BaseError:  # its connection was lost
            return
        except Exception:
            log.exception("a stream of %s ends by a fault of this side", context.peer())
            ended = grpc.StatusCode.INTERNAL, "the server failed; its log says how"
        if ended is not None:
            await context.abort(*ended)

    def _refusal(self, context: Any) -> Ended | None:
        """Say why a stream is refused; None if it comes from a member, for this job."""
        code = grpc_module().StatusCode
        if (refusal := self._job.refusal(JobId.of(context.invocation_metadata()))) is not None:
            may_pass, words = refusal
            return code.UNAVAILABLE if may_pass else code.FAILED_PRECONDITION, words
        member = _member(context)
        if member not in self._members:
            self.strangers += 1
            log.warning("refused %s, who calls itself %r", context.peer(), member)
            return code.PERMISSION_DENIED, f"{member!r} is no member of this federation"
        return (code.UNAVAILABLE, CLOSING) if self._closing.is_set() else None

    async def _taken(self, context: Any) -> Ended | None:
        """Serve a member's stream in place of its earlier one; return why the server ended it."""
        code, member = grpc_module().StatusCode, _member(context)
        shown = context.auth_context().get("x509_pem_cert", [b""])[0]
        self.seen[member] = load_pem_x509_certificate(shown).not_valid_after_utc
        stream = _Stream()
        before, self._streams[member] = self._streams.get(member), stream
        if before is not None:
            # as a rule the connection was cut, and only this side has not noticed yet
            before.end(code.ABORTED, f"another connection of {member!r} took its place")
        try:
            await self._converse(member, stream, context)
        except asyncio.CancelledError:
            if stream.ended is None:  # by the member, or its connection was lost
                raise
        finally:
            if self._streams.get(member) is stream:
                del self._streams[member]
                self._left(member)
        return stream.ended

    async def _converse(self, member: str, stream: _Stream, context: Any) -> None:
        """Read asks and write their answers in turn, until either side ends the stream."""
        grpc, loop = grpc_module(), asyncio.get_running_loop()
        pace = self._paces.setdefault(member, _Pace(self._rate))
        await context.send_initial_metadata(versions.METADATA)  # so a member knows it is connected
        while stream.ended is None:
            frame = await context.read()
            if frame is grpc.aio.EOF:
                return
            if wait := pace.wait():
                await asyncio.sleep(wait)
            answer = stream.answer = loop.create_future()
            try:
                rest = self._service.ask(member, frame, _answering(loop, answer))
            except VertizoError as error:
                stream.ended = grpc.StatusCode.FAILED_PRECONDITION, str(error)[:500]
                return
            except Exception as error:
                log.error("an ask of %s failed: %s: %s", member, type(error).__name__, error)
                line = "the server failed at this ask; its log says how"
                stream.ended = grpc.StatusCode.INTERNAL, line
                return
            del frame  # which may be long, and so may the wait
            if rest is not None and not answer.done():
                await asyncio.sleep(0)  # the other streams begin to write what they were answered
                rest()
                rest = None
            await context.write(await answer)
            stream.answer = None
            if rest is not None:
                rest()

    def _left(self, member: str) -> None:
        try:
            self._service.gone(member)
        except Exception as error:
            log.error("%s left, and: %s: %s", member, type(error).__name__, error)


def _configured(shown: Credentials) -> Any:
    """Convert credentials to gRPC's server configuration."""
    pair = (shown.key, shown.certificate)
    return grpc_module().ssl_server_certificate_configuration([pair], shown.authority)


def _member(context: Any) -> str:
    """Return the common name in the member's certificate; empty unless there is exactly one."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode(errors="replace") if len(names) == 1 else ""


class _Stream:
    """A member's stream, served by the asyncio task that creates this object."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] | None = None
        """The answer to the open ask; None without one."""
        self.ended: Ended | None = None
        self._task = asyncio.current_task()

    def end(self, code: Any, line: str) -> None:
        """End the stream with a gRPC status: now, or after an answer that is ready is written."""
        if self.ended is None:
            self.ended = code, line
            if self._task is not None and (self.answer is None or not self.answer.done()):
                self._task.cancel()


def _answering(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[bytes]) -> Answer:
    """Make a callback that takes the answer to one ask, from any thread; only the first counts."""
    home = threading.get_ident()

    def settle(content: bytes) -> None:
        if not answer.done():
            answer.set_result(content)

    def take(content: bytes) -> None:
        if threading.get_ident() == home:
            settle(content)
            return
        try:
            loop.call_soon_threadsafe(settle, content)
        except RuntimeError:
            log.debug("an answer came after the server had closed")

    return take


class _Pace:
    """A rate limit for one member, with a burst of one second's asks."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = 0.0
        """Time at which the asks so far would have been accepted at that rate."""

    def wait(self) -> float:
        """Return the seconds until the next ask may be accepted, and count that ask."""
        if self._rate is None:
            return 0.0
        now, each = time.monotonic(), 1 / self._rate
        self._due = max(self._due, now) + each
        return max(0.0, self._due - now - max(1.0, each))
