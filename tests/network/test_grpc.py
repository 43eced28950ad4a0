"""gRPC under mutual TLS, over loopback: what goes right, and what is made to go wrong."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cutter import Cutter
from tests.processes import held_port
from tests.waiting import until

from vertizo.core.errors import ConfigError, RunError, ShapeError
from vertizo.network.transport import grpc as grpc_server
from vertizo.network.transport import grpc_channel
from vertizo.network.transport.authority import issue
from vertizo.network.transport.base import Answer, Rest
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcChannel, GrpcServer

MEMBERS = ("bank", "shop", "clinic")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of parties under two authorities, and of one whose certificates ran out."""
    folder = tmp_path_factory.mktemp("certificates")
    issue(folder / "one", "holder", [*MEMBERS, "silent", "stranger"], [], 30)
    issue(folder / "other", "holder", MEMBERS, [], 30)
    issue(folder / "elsewhere", "holder", MEMBERS, ["holder.example"], 30)
    issue(folder / "old", "holder", ["bank"], [], 30, now=datetime.now(UTC) - timedelta(days=60))
    return folder


def unchecked(folder: Path, name: str) -> Credentials:
    """Credentials that `Credentials.load` may refuse, as another's programme would use them."""
    files = [(folder / file).read_bytes() for file in ("authority.pem", "certificate.pem")]
    return Credentials(*files, (folder / "key.pem").read_bytes(), name, datetime.now(UTC))


class Echo:
    """Answers at once with what was asked; some asks have a meaning of their own."""

    def __init__(self, largest_ask: int = 1 << 20) -> None:
        self.members: tuple[str, ...] = (*MEMBERS, "silent")
        self.largest_ask = largest_ask
        self.asked: list[tuple[str, bytes]] = []
        self.left: list[str] = []
        self.open: dict[str, Answer] = {}
        self.pool = ThreadPoolExecutor(4)
        self.rest: Rest | None = None

    def ask(self, member: str, frame: bytes, answer: Answer) -> Rest | None:
        self.asked.append((member, frame[:32]))
        if frame == b"with a rest":
            for held in self.open.values():
                held(b"for another")
            answer(b"answered")
            return self.rest
        if frame == b"later":
            self.pool.submit(lambda: (time.sleep(0.05), answer(b"at last"), answer(b"twice")))
        elif frame == b"held":
            self.open[member] = answer
        elif frame == b"refused":
            raise ShapeError("an array of another shape than agreed")
        elif frame == b"bug":
            raise ZeroDivisionError("in the service")
        elif frame == b"twice":
            answer(b"first")
            answer(b"second")
        elif frame == b"length":
            answer(bytes(5_000_000))
        else:
            answer(frame if len(frame) < 100_000 else b"%d" % len(frame))
        return None

    def gone(self, member: str) -> None:
        self.left.append(member)


@pytest.fixture
def echo() -> Iterator[Echo]:
    service = Echo()
    yield service
    service.pool.shutdown()


def serve(
    service: Echo,
    made: Path,
    listen: str = "localhost:0",
    credentials: Credentials | None = None,
    **limits: float,
) -> GrpcServer:
    mine = credentials or Credentials.load(made / "one" / "holder")
    return GrpcServer(service, listen=listen, credentials=mine, **limits)


@contextmanager
def channel(
    made: Path, port: int, member: str = "bank", **options: object
) -> Iterator[GrpcChannel]:
    credentials = options.pop("credentials", None) or Credentials.load(made / "one" / member)
    made_channel = GrpcChannel(f"localhost:{port}", credentials, **options)  # type: ignore[arg-type]
    try:
        yield made_channel
    finally:
        made_channel.close()


@contextmanager
def held(way: GrpcChannel, echo: Echo, member: str = "bank") -> Iterator[Future[bytes]]:
    """The answer to an ask that the service has and does not answer yet."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(way.ask, b"held")
        assert until(lambda: member in echo.open)
        yield asked


def test_what_is_left_to_do_waits_for_the_answers(echo: Echo, made: Path) -> None:
    """Those of others as well; it holds up the server's thread, and they must have left."""
    came = {member: threading.Event() for member in ("bank", "shop")}
    rested: list[bool] = []
    echo.rest = lambda: rested.append(all(one.wait(120) for one in came.values()))

    def ask(member: str, frame: bytes) -> bytes:
        with channel(made, net.port, member) as way:
            answer = way.ask(frame)
            came[member].set()
            way.ask(b"once more")  # after what was left to do
            return answer

    with serve(echo, made) as net:
        waiting = echo.pool.submit(ask, "shop", b"held")
        assert until(lambda: "shop" in echo.open)
        assert ask("bank", b"with a rest") == b"answered"
        assert waiting.result(120) == b"for another"
    assert rested == [True]


def test_answers_come_at_once_or_later_and_once(echo: Echo, made: Path) -> None:
    with serve(echo, made) as server, channel(made, server.port) as bank:
        for k in range(20):
            assert bank.ask(b"%d" % k) == b"%d" % k
        assert bank.ask(b"") == b""
        assert bank.ask(b"later") == b"at last"
        assert bank.ask(b"twice") == b"first"
        assert bank.ask(b"after") == b"after"
    assert echo.asked[0] == ("bank", b"0")
    assert len(echo.asked) == 24
    assert echo.left == ["bank"]


def test_members_are_served_side_by_side(echo: Echo, made: Path) -> None:
    def work(member: str) -> list[bytes]:
        with channel(made, server.port, member) as mine:
            return [mine.ask(member.encode() + b"%d" % k) for k in range(200)]

    with (
        serve(echo, made) as server,
        ThreadPoolExecutor(3) as pool,
        channel(made, server.port, "silent") as silent,
    ):
        assert silent.ask(b"first") == b"first"  # and holds up nobody
        for member, answers in zip(MEMBERS, pool.map(work, MEMBERS), strict=True):
            assert answers == [member.encode() + b"%d" % k for k in range(200)]
        assert silent.ask(b"now") == b"now"
    assert sorted(echo.left) == sorted((*MEMBERS, "silent"))
    asked = {(m, f[: len(m)].decode()) for m, f in echo.asked if m != "silent"}
    assert asked == {(m, m) for m in MEMBERS}


def test_the_last_answer_is_written_before_the_server_closes(
    echo: Echo, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "CLOSING_SECONDS", 600.0)
    for _ in range(5):
        with (
            serve(echo, made) as server,
            channel(made, server.port) as bank,
            held(bank, echo) as asked,
        ):
            echo.open.pop("bank")(b"goodbye")
            server.close()
            assert asked.result(120) == b"goodbye"


def test_nothing_is_left_behind(echo: Echo, made: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(3):
        with serve(echo, made) as server, channel(made, server.port) as bank:
            assert bank.ask(b"x") == b"x"
    gc.collect()

    def left() -> set[str]:
        return {t.name for t in threading.enumerate()} - before

    assert until(lambda: not left()), left()


def test_an_address_is_given_back_and_one_that_cannot_be_had_is_named(
    echo: Echo, made: Path
) -> None:
    with suppress(KeyError), serve(echo, made) as server:
        with pytest.raises(RunError, match=f"cannot listen on localhost:{server.port}: .* in use"):
            serve(echo, made, f"localhost:{server.port}").__enter__()
        raise KeyError
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    for text in ("localhost", "https://holder:1", "holder:99999", "a b:1"):
        with pytest.raises(ConfigError, match="write host:port"):
            serve(echo, made, text)
        with pytest.raises(ConfigError, match="write host:port"):
            GrpcChannel(text, Credentials.load(made / "one" / "bank"))


# --- who is let in


def refused(made: Path, port: int, credentials: Credentials, **options: object) -> str:
    """What a party is told that asks and is turned away, long before its patience ends."""
    options = {"patience": 120.0, **options}
    with (
        channel(made, port, credentials=credentials, **options) as mine,
        pytest.raises(RunError) as error,
    ):
        mine.ask(b"hello")
    line = str(error.value)
    assert "\n" not in line
    return line


def test_only_members_with_a_certificate_of_today_are_let_in(echo: Echo, made: Path) -> None:
    good = unchecked(made / "one" / "holder", "holder")
    other = unchecked(made / "other" / "bank", "bank")
    old = unchecked(made / "old" / "bank", "bank")
    old_holder = unchecked(made / "old" / "holder", "holder")
    with serve(echo, made) as server:
        stranger = Credentials.load(made / "one" / "stranger")
        sly = replace(other, authority=good.authority)
        for party, words in (
            (stranger, "'stranger' is no member of this federation"),
            (other, "not signed by the authority that this member trusts"),
            (sly, "does not accept the certificate of 'bank'"),
        ):
            assert words in refused(made, server.port, party)
    both = replace(good, authority=good.authority + old.authority)
    with serve(echo, made, credentials=both) as server:
        line = refused(made, server.port, replace(old, authority=good.authority))
        assert "expired by its clock" in line
    with serve(echo, made, credentials=old_holder) as server:
        assert "the server's certificate has expired" in refused(made, server.port, old)
    assert echo.asked == []
    assert echo.left == []


@pytest.mark.full
def test_a_member_cannot_pose_as_the_server(
    echo: Echo, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Credentials.load(made / "one" / "shop")
    with pytest.raises(ConfigError, match="certificate of 'shop' is for a member only"):
        serve(echo, made, credentials=shop)
    monkeypatch.setattr(Credentials, "check_use", lambda *_, **__: None)  # a liar's programme
    bank = Credentials.load(made / "one" / "bank")
    with serve(echo, made, credentials=shop) as server:
        line = refused(made, server.port, bank, server_name="shop")
        assert "the certificate shown there is a member's" in line
    holder = Credentials.load(made / "one" / "holder")
    echo.members = (*MEMBERS, "holder")
    with serve(echo, made) as server:
        assert "does not accept the certificate" in refused(made, server.port, holder)
    assert echo.asked == []


def test_the_host_must_be_the_certificates(echo: Echo, made: Path) -> None:
    holder = Credentials.load(made / "elsewhere" / "holder")
    bank = Credentials.load(made / "elsewhere" / "bank")
    with serve(echo, made, credentials=holder) as server:
        assert "for another host name" in refused(made, server.port, bank)
        with channel(made, server.port, credentials=bank, server_name="holder.example") as named:
            assert named.ask(b"x") == b"x"


def test_what_is_no_client_of_ours_harms_nobody(echo: Echo, made: Path) -> None:
    with serve(echo, made) as server, channel(made, server.port) as bank:
        assert bank.ask(b"1") == b"1"
        place = ("127.0.0.1", server.port)
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(range(256)) * 300,
            b"\x16\x03\x01\xff\xff",
        ):
            with socket.create_connection(place, timeout=120) as raw:
                raw.sendall(garbage)
        with socket.create_connection(place, timeout=120):  # and says nothing at all
            context = ssl.create_default_context(cafile=str(made / "one/bank/authority.pem"))
            context.set_alpn_protocols(["h2"])
            with (
                socket.create_connection(place, timeout=120) as raw,
                context.wrap_socket(raw, server_hostname="localhost") as tls,
            ):
                try:
                    said = tls.recv(100)
                except (ssl.SSLError, ConnectionError):
                    said = b""
                assert said == b""  # not even HTTP/2's greeting
            assert bank.ask(b"2") == b"2"
    assert [member for member, _ in echo.asked] == ["bank", "bank"]


def test_handshakes_that_never_end_make_room_for_a_member(
    echo: Echo, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grpc_channel.HANDSHAKE_SECONDS <= 5  # as long as a member would wait
    monkeypatch.setattr(grpc_channel, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(grpc_channel, "open_files", lambda: 4 * 3)
    bank = Credentials.load(made / "one" / "bank")
    with serve(echo, made, "127.0.0.1:0") as server, ExitStack() as opened:
        place = f"127.0.0.1:{server.port}"
        for _ in range(3):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
        channel = GrpcChannel(place, bank, patience=15.0, server_name="localhost")
        with closing(channel):
            assert channel.ask(b"hello") == b"hello"


def test_streams_of_another_method_or_a_certificate_that_cannot_be_read_end_alone(
    echo: Echo, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(echo, made) as server, channel(made, server.port) as bank:
        assert bank.ask(b"1") == b"1"
        shop = Credentials.load(made / "one" / "shop")
        with monkeypatch.context() as patched:
            patched.setattr(grpc_channel, "METHOD", "/vertizo.Parties/Tell")
            assert "no server of vertizo" in refused(made, server.port, shop)
        with monkeypatch.context() as patched:
            patched.setattr(grpc_server, "load_pem_x509_certificate", lambda shown: 1 / 0)
            assert "the server failed; its log says how" in refused(made, server.port, shop)
        assert bank.ask(b"2") == b"2"
    assert echo.left == ["bank"]


@pytest.mark.full
def test_a_server_closes_whatever_its_members_are_at(echo: Echo, made: Path) -> None:
    """gRPC's memory is in use by several threads at once, and ends in none of them too early."""
    is_over = threading.Event()

    def work(member: str, listen: int) -> None:
        while not is_over.is_set():
            with suppress(RunError), channel(made, listen, member, patience=0.0) as way:
                for frame in (b"x", b"later", bytes(300_000), b"held"):
                    way.ask(frame)

    with held_port() as place, ThreadPoolExecutor(3) as pool:
        port = place.getsockname()[1]
        running = [pool.submit(work, member, port) for member in (*MEMBERS, "silent")]
        for turn in range(20):
            before = len(echo.asked)
            with serve(echo, made, f"localhost:{port}"):
                until(lambda before=before: len(echo.asked) > before, 2.0)
                time.sleep(0.01 * (turn % 5))
                answers = list(echo.open.values())
                for answer in answers[: turn % 2]:
                    answer(b"at last")
        is_over.set()
        for each in running:
            each.result(120)


# --- limits


def test_what_is_too_long_ends_its_own_stream_only(echo: Echo, made: Path) -> None:
    too_long = "a message is longer than allowed"
    with (
        serve(echo, made) as server,
        channel(made, server.port, largest_answer=1 << 20) as bank,
        channel(made, server.port, "shop") as shop,
    ):
        assert shop.ask(b"1") == b"1"
        assert bank.ask(bytes(1 << 20)) == b"%d" % (1 << 20)
        with pytest.raises(RunError, match=rf"{too_long}: .*1048577"):
            bank.ask(bytes((1 << 20) + 1))
        with pytest.raises(RunError, match=too_long):
            bank.ask(b"length")  # whose answer is
        assert shop.ask(b"2") == b"2"
        assert bank.ask(b"3") == b"3"


@pytest.mark.full
def test_a_rate_is_kept_by_waiting(echo: Echo, made: Path) -> None:
    """Each member has one of its own, whatever connection it comes by."""
    with serve(echo, made, rate=20) as server:
        started = time.monotonic()
        for asks in (30, 30):
            with channel(made, server.port) as bank:
                for k in range(asks):
                    assert bank.ask(b"%d" % k) == b"%d" % k
        assert time.monotonic() - started > (60 - 20 - 2) / 20  # after a burst of a second's
        with channel(made, server.port, "shop") as shop:
            started = time.monotonic()
            shop.ask(b"x")
        assert time.monotonic() - started < 1


# --- what a service does wrong


def test_a_fault_in_the_service_does_not_end_the_server(
    echo: Echo, made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    with (
        serve(echo, made) as server,
        channel(made, server.port, on_trouble=told.append) as bank,
        channel(made, server.port, "shop") as shop,
    ):
        with (
            caplog.at_level(logging.ERROR, "vertizo.network"),
            pytest.raises(RunError, match="the server failed at this ask; its log says how"),
        ):
            bank.ask(b"bug")
        assert caplog.messages[0] == "an ask of bank failed: ZeroDivisionError: in the service"
        assert len(told) <= 2
        with pytest.raises(RunError, match="another shape than agreed"):
            bank.ask(b"refused")
        assert shop.ask(b"x") == b"x"
        assert bank.ask(b"x") == b"x"


# --- connections that break


@pytest.mark.full
def test_an_ask_survives_a_restart_of_the_server(echo: Echo, made: Path) -> None:
    told: list[str] = []
    with serve(echo, made) as server, channel(made, server.port, on_trouble=told.append) as bank:
        assert bank.ask(b"before") == b"before"
        with held(bank, echo) as asked:
            answer = echo.open.pop("bank")
            server.close()
            answer(b"too late")
            time.sleep(2.0)  # so that pauses are as long as they get
            assert not asked.done()
            with serve(echo, made, f"localhost:{server.port}"):
                assert until(lambda: "bank" in echo.open, 2.5)  # within 1 s on a quiet machine
                echo.open.pop("bank")(b"after all")
                assert asked.result(120) == b"after all"
                assert bank.ask(b"next") == b"next"
    assert [frame for _, frame in echo.asked] == [b"before", b"held", b"held", b"next"]
    assert len(told) == 2
    assert told[0].startswith(f"no connection to localhost:{server.port}: ")
    assert told[1].startswith(f"connected to localhost:{server.port} after 2.")


@pytest.mark.full
def test_a_connection_cut_in_the_middle_is_made_again(echo: Echo, made: Path) -> None:
    for cut_after in (100, 20_000, 300_000):
        told: list[str] = []
        echo.asked.clear()
        with (
            serve(echo, made) as server,
            Cutter(server.port, [cut_after]) as cutter,
            channel(made, cutter.port, on_trouble=told.append) as bank,
        ):
            assert bank.ask(bytes(600_000)) == b"600000"
            assert cutter.cuts == 1
            assert bank.ask(b"x") == b"x"
        assert [frame for _, frame in echo.asked] == [bytes(32), b"x"]
        assert len(told) == 2


@pytest.mark.full
def test_the_server_notices_who_left_while_waiting(echo: Echo, made: Path) -> None:
    with serve(echo, made) as server:
        with channel(made, server.port) as bank, held(bank, echo) as asked:
            bank.close()
            with pytest.raises(RunError, match="closed on this side"):
                asked.result(120)
        assert until(lambda: echo.left == ["bank"])


def test_ctrl_c_ends_an_ask_and_its_answer_is_no_later_asks(echo: Echo, made: Path) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")

    def interrupt() -> None:
        until(lambda: "bank" in echo.open)  # and if not: better a failure than a wait without end
        os.kill(os.getpid(), signal.SIGINT)

    with serve(echo, made) as server, channel(made, server.port) as bank:
        watcher = threading.Thread(target=interrupt)
        watcher.start()
        with pytest.raises(KeyboardInterrupt):
            bank.ask(b"held")
        watcher.join()
        echo.open.pop("bank")(b"to nobody")
        assert bank.ask(b"x") == b"x"


def test_asks_go_on_after_a_restart_until_one_side_ends_them(echo: Echo, made: Path) -> None:
    told: list[str] = []
    with serve(echo, made) as server, channel(made, server.port, on_trouble=told.append) as bank:
        assert bank.ask(b"x") == b"x"
        assert bank.is_connected
        assert bank.ask(bytes(200_000)) == b"200000"
        assert bank.ask(b"later") == b"at last"
        server.close()
        with serve(echo, made, listen=f"localhost:{server.port}"):
            assert bank.ask(b"again") == b"again"
            assert len(told) == 2
            with pytest.raises(RunError, match="an array of another shape than agreed"):
                bank.ask(b"refused")
            with ThreadPoolExecutor(1) as pool:
                held = pool.submit(bank.ask, b"held")
                until(lambda: "bank" in echo.open)
                bank.close()
                with pytest.raises(RunError, match="closed on this side"):
                    held.result(120)
            until(lambda: "bank" in echo.left[-1:])


def test_a_second_connection_takes_the_place_of_the_first(echo: Echo, made: Path) -> None:
    with (
        serve(echo, made) as server,
        channel(made, server.port) as first,
        channel(made, server.port) as second,
        held(first, echo) as asked,
    ):
        stale = echo.open.pop("bank")
        assert second.ask(b"x") == b"x"
        with pytest.raises(RunError, match="another connection of 'bank' took its place"):
            asked.result(120)
        stale(b"nobody hears it")
        assert second.ask(b"y") == b"y"
        assert echo.left == []  # the member is there
    assert echo.left == ["bank"]


@pytest.mark.full
def test_a_dead_server_is_noticed(echo: Echo, made: Path) -> None:
    """The connection stays open, but nothing comes through any more."""
    told: list[str] = []
    options = {"on_trouble": told.append, "keepalive_seconds": 1.0, "patience": 0.5}
    with (
        serve(echo, made) as server,
        Cutter(server.port, []) as cutter,
        channel(made, cutter.port, **options) as bank,
    ):
        assert bank.ask(b"x") == b"x"
        cutter.flows.clear()
        started = time.monotonic()
        with pytest.raises(RunError, match="could not be reached for"):
            bank.ask(b"y")
        assert time.monotonic() - started < 20
    assert told


@pytest.mark.full
def test_a_long_answer_outlives_many_signs_of_life(echo: Echo, made: Path) -> None:
    told: list[str] = []
    with (
        serve(echo, made, keepalive_seconds=1) as server,
        channel(made, server.port, on_trouble=told.append, keepalive_seconds=1.0) as bank,
        held(bank, echo) as asked,
    ):
        time.sleep(4.5)
        echo.open.pop("bank")(b"done")
        assert asked.result(120) == b"done"
    assert told == []


@pytest.mark.full
def test_patience_ends(made: Path) -> None:
    with held_port() as unused:
        told: list[str] = []
        port = unused.getsockname()[1]
        with (
            channel(made, port, patience=0.3, on_trouble=told.append) as bank,
            pytest.raises(RunError, match=f"localhost:{port} could not be reached for 0 seconds"),
        ):
            bank.ask(b"x")
    assert told == [f"no connection to localhost:{port}: nobody listens there; trying again"]


def test_what_speaks_no_tls_is_told_apart(made: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(4):
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(10)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]
        line = refused(made, port, Credentials.load(made / "one" / "bank"))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    assert "does not speak TLS" in line


@pytest.mark.full
def test_a_large_ask_goes_through(made: Path) -> None:
    service = Echo(largest_ask=300 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with serve(service, made) as server, channel(made, server.port) as bank:
        assert bank.ask(bytes(256 << 20)) == b"%d" % (256 << 20)
    service.pool.shutdown()
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert more < 8 * 256
