"""A port that is used again: no process ever takes part in another job than its own."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.processes import held_port
from tests.waiting import PATIENT, until

from vertizo.core.errors import RunError
from vertizo.network.transport import grpc_channel
from vertizo.network.transport.authority import issue
from vertizo.network.transport.base import Answer
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcServer
from vertizo.network.transport.grpc_channel import GrpcChannel
from vertizo.network.transport.job_id import JobId

MINE = JobId("fed", "align-1", 2, "")


class Named:
    """A service that says who it is; ``asked`` is what it heard."""

    largest_ask = 1 << 10

    def __init__(self, name: bytes, members: tuple[str, ...] = ("east", "north")) -> None:
        self.name, self.members, self.asked = name, members, list[bytes]()

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        self.asked.append(frame)
        answer(self.name)

    def gone(self, member: str) -> None:
        pass


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    issue(folder / "one", "bank", ["east", "north"], ["127.0.0.1"], 30)
    issue(folder / "other", "bank", ["east"], ["127.0.0.1"], 30)
    return folder


class Port:
    """One port of this machine, at which several things listen one after the other."""

    def __init__(self, made: Path) -> None:
        self._made, self._held = made, held_port()
        self.place = f"127.0.0.1:{self._held.getsockname()[1]}"
        self.told: list[str] = []
        self._exit = ExitStack()
        self._exit.enter_context(closing(self._held))

    def served(self, service: Named, job: JobId, authority: str = "one") -> GrpcServer:
        bank = Credentials.load(self._made / authority / "bank")
        return GrpcServer(service, listen=self.place, credentials=bank, job=job)

    def asking(self, job: JobId, frame: bytes = b"begin") -> tuple[GrpcChannel, Future[bytes]]:
        """A member's open ask."""
        east = Credentials.load(self._made / "one" / "east")
        channel = self._exit.enter_context(
            closing(
                GrpcChannel(
                    self.place, east, patience=PATIENT, on_trouble=self.told.append, job=lambda: job
                )
            )
        )
        pool = self._exit.enter_context(ThreadPoolExecutor(1))
        self._exit.callback(channel.close)  # before its thread is waited for
        return channel, pool.submit(channel.ask, frame)

    def tries(self, count: int, channel: GrpcChannel) -> Callable[[], bool]:
        """Whether so many connections failed since the last answer."""
        return lambda: channel._trouble is not None and channel._trouble._tries >= count

    def close(self) -> None:
        self._exit.close()


@pytest.fixture
def port(made: Path) -> Iterator[Port]:
    with closing(Port(made)) as found:
        yield found


@pytest.mark.parametrize(
    ("here", "there", "passes"),
    [
        (MINE, MINE, None),
        (MINE, MINE._replace(job="align-2"), True),
        (MINE, MINE._replace(attempt=1), True),
        (MINE, MINE._replace(federation="elsewhere"), True),
        (MINE._replace(run="aa"), MINE._replace(run="aa"), None),
        (MINE._replace(run="aa"), MINE._replace(run="bb"), False),
        (MINE._replace(run="aa"), MINE, None),
        (MINE, MINE._replace(run="aa"), None),  # an alignment is of no run
        (JobId("fed"), MINE, True),  # people's process took the port
        (MINE, JobId("fed"), False),
        (MINE, JobId(), False),
        (JobId("fed"), JobId("fed"), None),
        (JobId("fed"), JobId("typing error"), None),  # which the handshake's words are for
        (JobId("fed", run="aa"), JobId("fed", run="bb"), False),
        (JobId(), JobId(), None),
    ],
)
def test_who_is_let_in(here: JobId, there: JobId, passes: bool | None) -> None:
    found = here.refusal(JobId.of(there.metadata()))
    assert (None if found is None else found[0]) is passes
    assert found is None or not any(name in found[1] for name in ("align", "aa", "bb"))


@pytest.mark.parametrize("name", ["12", "null", "größe", "a b", "100 %", "Ł=&", "-", "@."])
def test_names_travel_as_they_are(name: str) -> None:
    job = JobId(name, name, 7, name)
    assert JobId.of(job.metadata()) == job
    assert all(text.isascii() for _, text in job.metadata())


def test_what_others_put_into_metadata_is_no_job(port: Port) -> None:
    strange = [("vertizo-attempt", "²"), ("vertizo-job-", "x"), ("user-agent", b"\xff"), ("", "")]
    assert JobId.of(strange) == JobId()
    assert JobId.of([("vertizo-attempt", "-1"), ("vertizo-run", b"aa")]).attempt == 0


@pytest.mark.parametrize("members", [("east", "north"), ("north",)])
def test_a_member_waits_out_another_job_at_its_port(
    port: Port, monkeypatch: pytest.MonkeyPatch, members: tuple[str, ...]
) -> None:
    """Whether or not it is in that one: not a byte of its ask is read there."""
    monkeypatch.setattr(grpc_channel, "LONGEST_PAUSE", 0.05)
    other, own = Named(b"another", members), Named(b"its own")
    with port.served(other, MINE._replace(job="align-2")):
        channel, asked = port.asking(MINE)
        assert until(port.tries(3, channel))
        assert not asked.done()
    with port.served(own, MINE._replace(attempt=1)):
        before = channel._trouble._tries  # type: ignore[union-attr]
        assert until(port.tries(before + 2, channel))
    with port.served(own, MINE):
        assert asked.result(PATIENT) == b"its own"
    assert (other.asked, own.asked) == ([], [b"begin"])
    assert ["another job" in line for line in port.told] == [True, False]


@contextmanager
def squatting(place: str, greet: Callable[[socket.socket], object]) -> Iterator[None]:
    """Something else that listens there, greets what connects, and closes."""
    host, _, number = place.partition(":")
    with socket.create_server((host, int(number)), backlog=16) as server:
        over = threading.Event()

        def answer() -> None:
            while not over.is_set():
                one, _ = server.accept()
                with closing(one), suppress(OSError):  # who connected may be gone
                    greet(one)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            over.set()
            socket.create_connection((host, int(number))).close()
            thread.join()


def no_tls(one: socket.socket) -> None:
    one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def tls_without_grpc(folder: Path) -> Callable[[socket.socket], object]:
    """Of the right authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return lambda one: context.wrap_socket(one, server_side=True).close()


@pytest.mark.parametrize("squatter", ["no tls", "tls", "authority"])
def test_a_member_of_agents_waits_out_whatever_else_listens(
    port: Port, made: Path, squatter: str
) -> None:
    """Another programme, or another federation's label holder, that had the port meanwhile."""
    own = Named(b"its own")
    taken: dict[str, Any] = {
        "no tls": lambda: squatting(port.place, no_tls),
        "tls": lambda: squatting(port.place, tls_without_grpc(made / "one" / "bank")),
        "authority": lambda: port.served(Named(b"else"), JobId("else", "x", 1), "other"),
    }
    with taken[squatter]():
        channel, asked = port.asking(MINE)
        assert until(port.tries(2, channel))
        assert not asked.done()
    with port.served(own, MINE):
        assert asked.result(PATIENT) == b"its own"


def test_people_hear_at_once_that_agents_run_the_job(port: Port) -> None:
    service = Named(b"of agents")
    with port.served(service, MINE):
        _, asked = port.asking(JobId("fed"))
        with pytest.raises(RunError, match="a job of agents is served there; take part in it by"):
            asked.result(PATIENT)
    assert service.asked == []


def test_an_open_query_is_not_answered_by_another_run(port: Port) -> None:
    """Two jobs of people whose addresses were exchanged while one was away."""
    first, second = Named(b"first"), Named(b"second")
    mine = JobId("fed", run="aa")
    with port.served(first, mine):
        channel, asked = port.asking(mine)
        assert asked.result(PATIENT) == b"first"
    with (
        port.served(second, JobId("fed", run="bb")),
        pytest.raises(RunError, match="another job than the one that this party's federation"),
    ):
        channel.ask(b"query 7")
    assert second.asked == []
