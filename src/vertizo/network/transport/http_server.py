"""An HTTP server that slow, broken or many callers cannot hold up.

uvicorn reads requests and answers them. This module adds limits that uvicorn has no option for:

* headers and body must each be complete within a time limit, however slowly they arrive;
* the number of connections is limited, far below the files that the process may open. To accept one
  more, the server cuts the connection that made no progress for the longest time; never one that
  the application holds, so that a caller who sends its request at once is answered;
* if no file descriptor is left, the server waits for a second before it accepts again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vertizo.core.errors import ConfigError, RunError
from vertizo.core.system import open_files
from vertizo.network.transport.grpc_channel import address, why_not_listening

CLOSING_SECONDS = 5
"""Seconds that the server gives requests which are being answered when it closes."""
PAUSE_SECONDS = 1.0
"""Seconds until the next try after a connection could not be accepted."""
BACKLOG = 1024
"""Largest number of connections that wait to be accepted."""
log = logging.getLogger("vertizo.network")


@dataclass(frozen=True)
class Limits:
    """Limits on callers: connections, and seconds for each whole step of a request."""

    connections: int
    headers: float = 10.0
    """Time for the headers, from the opening of a connection, with TLS's handshake."""
    body: float = 10.0
    """Time for the body, from the end of the headers."""
    idle: float = 60.0
    """Time without a request after an answer; the answer must be read within it too."""

    @classmethod
    def of_files(cls, most: int) -> Limits:
        """Allow ``most`` connections, but at most a quarter of the files that may be open."""
        return cls(min(most, open_files() // 4))


class Connections:
    """The open connections; used in the event loop's thread only."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: dict[Connection, None] = {}
        """Connections that may be cut; first the one whose last progress is oldest."""
        self.held: set[Connection] = set()

    def make_room(self) -> None:
        """Cut connections until there is room for one more."""
        while self.waiting and len(self.waiting) + len(self.held) >= self.limits.connections:
            next(iter(self.waiting)).cut()


class Connection:
    """One open connection; the application sees it as ``request.state.connection``."""

    def __init__(self, all_of_them: Connections, accepted: socket.socket) -> None:
        self._all, self._accepted = all_of_them, accepted
        self._transport: asyncio.Transport | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._is_over = False
        self.got_on(all_of_them.limits.headers)

    def hold(self) -> bool:
        """Protect the connection from being cut; False if three quarters of them are held."""
        connections = self._all
        if self._is_over or len(connections.held) >= 3 * connections.limits.connections // 4:
            return False  # so that there is always one to cut
        connections.waiting.pop(self, None)
        connections.held.add(self)
        return True

    def got_on(self, seconds: float | None) -> None:
        """Record progress, and allow ``seconds`` for the next step; None for no limit."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if self._is_over:
            return
        if seconds is not None:
            self._clock = asyncio.get_running_loop().call_later(seconds, self.cut)
        if self not in self._all.held:
            self._all.waiting.pop(self, None)
            self._all.waiting[self] = None

    def let_go(self) -> None:
        """End the protection of `hold` after an answer, and wait for another request."""
        self._all.held.discard(self)
        self.got_on(self._all.limits.idle + self._all.limits.headers)

    def opened(self, transport: asyncio.Transport) -> None:
        """Record the connection's transport, after TLS's handshake."""
        self._transport = transport
        if self._is_over:
            transport.abort()

    def cut(self) -> None:
        """End the connection at once."""
        self.closed()
        if self._transport is not None:
            self._transport.abort()
        else:  # in the handshake, which this ends
            with suppress(OSError):
                self._accepted.shutdown(socket.SHUT_RDWR)

    def closed(self) -> None:
        """Remove the connection from the lists of open ones, and stop its clock."""
        self._is_over = True
        self._all.waiting.pop(self, None)
        self._all.held.discard(self)
        self.got_on(None)


class _Protocol(H11Protocol):
    """uvicorn's protocol, which tells a `Connection` when it opens and when it closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.app_state["connection"].opened(transport)
        super().connection_made(transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self.app_state["connection"].closed()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to bytes that are no HTTP; cut the connection if an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()


class _Server(uvicorn.Server):
    """uvicorn's server, which does not wait for incomplete requests when it stops."""

    def __init__(self, configured: uvicorn.Config, connections: Connections) -> None:
        super().__init__(configured)
        self._open_ones = connections

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self._open_ones.waiting):
            connection.cut()
        await super().shutdown(sockets)


class _Timed:
    """An ASGI application whose requests must be complete in time."""

    def __init__(self, app: Any, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        connection: Connection = scope["state"]["connection"]

        async def received() -> Any:
            message = await receive()
            if not message.get("more_body"):
                connection.got_on(None)
            return message

        connection.got_on(self._limits.body)
        try:
            await self._app(scope, received, send)
        finally:
            connection.let_go()


@contextmanager
def http_at(
    key: str,
    listen: str,
    app: Any,
    limits: Limits,
    certificate: Path | None = None,
    private_key: Path | None = None,
) -> Iterator[int]:
    """Serve an ASGI application at an address in a thread, inside a ``with``; yield the port.

    ``key`` is the configuration's name of the address, for messages. RunError if the address cannot
    be bound, ConfigError if the certificate cannot be used.
    """
    configured = uvicorn.Config(
        _Timed(app, limits),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=round(limits.idle),
        timeout_graceful_shutdown=CLOSING_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
    )
    try:
        configured.load()
    except OSError as error:  # ssl.SSLError is one
        section = key.rpartition(".")[0]
        raise ConfigError(f"{section}.certificate {certificate} cannot be used: {error}") from None
    with _listening(key, listen) as place:
        connections = Connections(limits)
        server = _Server(configured, connections)
        is_ready = threading.Event()

        async def serve() -> None:
            accepting = asyncio.create_task(_accept(place, server, connections))
            is_ready.set()
            try:
                await server.serve(sockets=[])
            finally:
                accepting.cancel()

        def run() -> None:
            try:
                asyncio.run(serve())
            finally:
                is_ready.set()

        thread = threading.Thread(target=run, name="vertizo-http", daemon=True)
        thread.start()
        is_ready.wait()
        try:
            if not thread.is_alive():
                raise RunError(f"{key}: the server at {listen} ended at its start")
            yield place.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


async def _accept(place: socket.socket, server: uvicorn.Server, connections: Connections) -> None:
    """Accept connections; the one whose last progress is oldest is cut where there are too many."""
    loop, tasks = asyncio.get_running_loop(), set()
    while True:
        await asyncio.sleep(0)  # what was cut is closed meanwhile
        connections.make_room()
        try:
            accepted, _ = await loop.sock_accept(place)
        except ConnectionError:
            continue  # it is over already
        except OSError as error:
            log.warning("no connection can be accepted: %s; trying again", error.strerror)
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        connections.make_room()
        opening = _open(accepted, server, Connection(connections, accepted))
        tasks.add(task := loop.create_task(opening))
        task.add_done_callback(tasks.discard)


async def _open(accepted: socket.socket, server: uvicorn.Server, connection: Connection) -> None:
    """Hand a connection to uvicorn, as its own server does."""
    loop, configured = asyncio.get_running_loop(), server.config
    state = {"connection": connection}
    made = partial(_Protocol, configured, server.server_state, state, loop)
    try:  # its clock ends a handshake before asyncio's own would
        await loop.connect_accepted_socket(made, accepted, ssl=configured.ssl)
    except OSError:  # in TLS's handshake
        connection.closed()


def _listening(key: str, listen: str) -> socket.socket:
    host, port = address(key, listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # by the protocol's name, or asyncio would leave Nagle's algorithm on: 40 ms an answer
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((host, port))
        place.listen(BACKLOG)
        place.setblocking(False)
    except OSError:
        place.close()
        why = why_not_listening(listen)
        raise RunError(f"{key}: cannot listen on {listen}: {why}") from None
    return place
