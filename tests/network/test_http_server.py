"""Slow, broken and many callers: each is cut in time, and others are answered meanwhile."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.lazy import Lazy
from tests.rows import each
from tests.waiting import PATIENT, until

from vertizo.network.transport.authority import issue

server = Lazy("vertizo.network.transport.http_server")

HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"


class App:
    """Answers with the body that it got; holds connections of ``/held`` until it is told."""

    def __init__(self) -> None:
        self.is_held: list[bool] = []
        self.may_end = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        if scope["path"] == "/held":
            self.is_held.append(scope["state"]["connection"].hold())
            while self.is_held[-1] and not self.may_end.is_set():
                await asyncio.sleep(0.01)
        body, more = b"", scope["path"] != "/early"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def served(app: App | None = None, **limits: Any) -> Iterator[Any]:
    """Gives what opens a connection and sends something; all are closed at the end."""
    made = server.Limits(**{"connections": 100, **limits})
    with ExitStack() as stack, server.http_at("a.key", "127.0.0.1:0", app or App(), made) as port:

        def opened(content: bytes) -> socket.socket:
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENT))
            link.sendall(content)
            return link

        yield opened


def is_answered(opened: Any, path: str = "/x") -> bool:
    """Not so where limits are short and this process is held up longer: try `until` it is."""
    try:
        link = opened(HEAD.replace(b"/x", path.encode()) + b"\r\n123456789")
        return bool(link.recv(100).startswith(b"HTTP/1.1 200"))
    except ConnectionError:
        return False


def is_cut(link: socket.socket) -> bool:
    """It ends before anything was answered."""
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True


@each("began", [b"", b"POST", HEAD + b"X-", HEAD + b"\r\n", HEAD + b"\r\n1234"])
def test_a_request_that_drips_in_is_cut(began: bytes) -> None:
    """Each byte comes soon after the one before; the limit is on all of them."""
    with served(headers=0.15, body=0.15) as opened:
        link, over = opened(began), threading.Event()

        def drip() -> None:
            while not over.wait(0.05):
                try:
                    link.sendall(b"y" if b"\r\n\r\n" not in began else b"")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert is_cut(link)
        over.set()
        dripping.join()
        assert until(lambda: is_answered(opened))


def is_echoed(link: socket.socket) -> bool:
    """A request on a connection that may have had others."""
    link.sendall(HEAD + b"\r\n123456789")
    answer = b""
    while not answer.endswith(b"123456789"):
        if not (piece := link.recv(1000)):
            return False
        answer += piece
    return True


def test_a_connection_is_kept_for_further_requests() -> None:
    with served(headers=PATIENT, body=PATIENT, idle=PATIENT) as opened:
        link = opened(b"")
        assert all(is_echoed(link) for _ in range(3))


def test_a_further_request_that_is_left_half_sent_is_cut() -> None:
    with served(headers=0.1, body=PATIENT, idle=0.4) as opened:
        links: list[socket.socket] = []

        def echoed() -> bool:
            links.append(opened(b""))
            with suppress(ConnectionError):
                return is_echoed(links[-1])
            return False

        assert until(echoed)
        with suppress(ConnectionError):  # it is cut already, where this process was held up
            links[-1].sendall(b"POST /y HT")
        assert is_cut(links[-1])


def test_the_slowest_make_room_for_others() -> None:
    """As many more half-sent requests as there may be connections: callers are answered."""
    with served(connections=8, headers=PATIENT, body=PATIENT) as opened:
        slow = []
        for _ in range(4):
            slow += [opened(HEAD), opened(HEAD + b"\r\n12"), opened(b""), opened(HEAD + b"X-Y")]
            assert is_answered(opened)
        assert all(is_cut(link) for link in slow[:6])
        slow[-1].sendall(b": z\r\n\r\n123456789")
        assert slow[-1].recv(100).startswith(b"HTTP/1.1 200")


def test_what_the_application_holds_is_not_cut() -> None:
    app = App()
    with served(app, connections=8, headers=PATIENT) as opened:
        held = []
        for count in range(1, 7):
            held.append(opened(HEAD.replace(b"/x", b"/held") + b"\r\n123456789"))
            assert until(lambda n=count: len(app.is_held) == n)  # type: ignore[misc]
        for _ in range(10):
            opened(HEAD)
        assert is_answered(opened, "/held")  # it may say that there are too many
        assert app.is_held == [True] * 6 + [False]
        app.may_end.set()
        assert all(link.recv(100).startswith(b"HTTP/1.1 200") for link in held)
        assert is_answered(opened, "/held")
        assert app.is_held[-1]


def test_a_handshake_has_to_get_on(tmp_path: Path) -> None:
    issue(tmp_path, "bank", ["lab"], ["localhost"], 1)
    files = (tmp_path / "bank" / "certificate.pem", tmp_path / "bank" / "key.pem")
    limits = server.Limits(4, headers=0.5)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "bank" / "authority.pem"))
    with ExitStack() as stack, server.http_at("a", "127.0.0.1:0", App(), limits, *files) as port:
        place = ("127.0.0.1", port)
        silent = [stack.enter_context(socket.create_connection(place, PATIENT)) for _ in range(12)]

        def answered() -> bool:
            with (
                suppress(OSError),  # cut as well, where this process is held up that long
                socket.create_connection(place, PATIENT) as plain,
                trusted.wrap_socket(plain, server_hostname="localhost") as link,
            ):
                link.sendall(HEAD + b"\r\n123456789")
                return link.recv(100).startswith(b"HTTP/1.1 200")
            return False

        assert until(answered)
        assert all(is_cut(one) for one in silent)


def test_where_no_descriptor_is_left_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    class Full(socket.socket):
        def accept(self) -> Any:
            tries.append(1)
            if len(tries) <= 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr("vertizo.network.transport.http_server.socket.socket", Full)
    monkeypatch.setattr("vertizo.network.transport.http_server.PAUSE_SECONDS", 0.01)
    with caplog.at_level(logging.WARNING), served() as opened:
        assert is_answered(opened)
    assert len(caplog.records) == 3
    assert "no connection can be accepted: Too many open files" in caplog.text


def test_what_comes_after_an_early_answer_is_no_crash(caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with caplog.at_level(logging.WARNING), served() as opened:
        link = opened(head)
        assert link.recv(100).startswith(b"HTTP/1.1 200")
        link.sendall(b"no chunk\r\n")
        assert is_cut(link)
        assert is_answered(opened)
    assert not [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR]


def test_there_are_far_fewer_connections_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((1024, 256), (256, 64), (2**20, 1000)):
        monkeypatch.setattr("vertizo.network.transport.http_server.open_files", lambda n=files: n)
        assert server.Limits.of_files(1000).connections == most


@each(
    "content",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        HEAD + b"\r\n",
        b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /x HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        HEAD + b"A: " + b"a" * 100_000,
    ],
)
def test_what_is_no_request_is_no_crash(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), served() as opened:
        with suppress(ConnectionError):
            opened(content).close()
        assert is_answered(opened)
    assert not [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR]
