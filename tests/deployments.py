"""Jobs of real parties for tests: one label holder, several members, small data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TypeVar

import torch
from tests.waiting import PATIENT

from vertizo.data.prepare import prepare
from vertizo.network.serving.joining import Joined, Member
from vertizo.network.serving.options import JoinConfig, ServeConfig
from vertizo.network.serving.serving import FederationService
from vertizo.network.transport.base import Channel, Service
from vertizo.privacy.ledger.base import REPLY
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.protocol import wire
from vertizo.protocol.messages import Query
from vertizo.run.build.privacy import record_choice
from vertizo.run.loop.federation import Federation, build
from vertizo.run.results import checkpoint

MEMBERS = ("north", "east", "south", "west")

SMALL: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 32,
    "data": {"name": "digits", "limit": 200, "test_limit": 60},
    "client": {"model": {"hidden": [8], "outputs": 4}},
    "server": {"model": {"hidden": [8]}},
}


PRIVATE: dict[str, Any] = {
    "privacy": {"mechanism": "gaussian", "clip": 1.0, "epsilon": 2.0, "delta": 1e-3},
    "server": {
        "update": "poisson-dp-sgd",
        "secret": {"every": 3, "warm_up": 4, "sampling": 0.1},
        "model": {"hidden": []},
    },
}
IN_STEP: dict[str, Any] = {"simulation": {"timing": "synchronous"}}
Result = TypeVar("Result")


class GoneError(Exception):
    """A member says no more, or nobody is there to answer it."""


ENDED: ContextVar[threading.Event | None] = ContextVar("ENDED", default=None)
"""Set once those that work `together` with a thread have ended: it asks no more."""


class DirectChannel:
    """A member in the service's own process, which asks again every ``patience`` seconds.

    It ends with a `GoneError` once ``over`` says so.
    """

    def __init__(
        self,
        service: Service,
        member: str,
        patience: float = 5.0,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._service = service
        self._member = member
        self._patience = patience
        self._over = over

    def ask(self, frame: bytes) -> bytes:
        while True:
            answers: Queue[bytes] = Queue()
            rest = self._service.ask(self._member, frame, answers.put)
            if rest is not None:
                rest()
            end = time.monotonic() + self._patience
            while time.monotonic() < end:
                with suppress(Empty):
                    return answers.get(timeout=min(0.02, self._patience))
                if self._over() or ((ended := ENDED.get()) is not None and ended.is_set()):
                    raise GoneError

    def close(self) -> None:
        self._service.gone(self._member)


def serve_config(folder: Path, *, federation: dict[str, Any] | None = None, **keys: Any) -> Any:
    """A label holder's configuration; ``keys`` replace those of `SMALL`."""
    served = {
        "name": "test",
        "members": list(MEMBERS),
        "certificates": folder / "certs",
        "folder": folder / "server",
        "trial": True,
        "patience": 5.0,
    }
    tree = {**SMALL, **keys, "federation": {**served, **(federation or {})}}
    return ServeConfig.model_validate(tree)


def join_config(folder: Path, member: str, *, trial: bool = True, **keys: Any) -> JoinConfig:
    """A member's configuration."""
    federation = {
        "name": "test",
        "server": "localhost:1",
        "certificates": folder / "certs" / member,
        "folder": folder / member,
        "trial": trial,
        "patience": 30.0,
    }
    return JoinConfig.model_validate({"federation": federation, **keys})


@contextmanager
def ticking(service: FederationService) -> Iterator[list[Exception]]:
    """A driver's thread; what ``tick`` raised is in the list."""
    stop, raised = threading.Event(), []

    def drive() -> None:
        try:
            while not stop.wait(0.02):
                service.tick()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield raised
    finally:
        stop.set()
        thread.join()


def together(works: Sequence[Callable[[], Result]], seconds: float = PATIENT) -> list[Result]:
    """What each returns, in a thread of its own; raises what the first to fail raised."""
    futures: list[Future[Result]] = [Future() for _ in works]
    ended = threading.Event()

    def run(future: Future[Result], work: Callable[[], Result]) -> None:
        ENDED.set(ended)  # in this thread alone
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    for pair in zip(futures, works, strict=True):
        threading.Thread(target=run, args=pair, daemon=True).start()
    done, left = wait(futures, seconds, FIRST_EXCEPTION)
    ended.set()
    for future in done:
        future.result()
    assert not left, "somebody did not finish"
    return [future.result() for future in futures]


def take_part(config: JoinConfig, channel: Channel) -> Joined:
    """One member, to its end."""
    with Member(config, channel) as member:
        return member.run()


def opened(config: JoinConfig, channel: Channel) -> None:
    """One member that joins, and leaves before its first ask."""
    with Member(config, channel):
        pass


def joined(
    configs: Sequence[JoinConfig], channels: Callable[[str], Channel], seconds: float = PATIENT
) -> list[Joined]:
    """All members run to the end, each in a thread; raises what the first of them raised."""
    named = [(config, channels(config.federation.folder.name)) for config in configs]
    return together([partial(take_part, *pair) for pair in named], seconds)


def direct(service: Service) -> Callable[[str], Channel]:
    """Channels within this process, which end where the service fails."""
    return lambda member: DirectChannel(
        service, member, over=lambda: getattr(service, "failure", None) is not None
    )


def served(
    folder: Path,
    config: ServeConfig,
    members: Sequence[JoinConfig] | None = None,
    notice: Callable[[str], None] = lambda line: None,
) -> list[Joined]:
    """A whole job in this process, of all members or of those."""
    configs = [join_config(folder, member) for member in MEMBERS] if members is None else members
    with FederationService(config, notice) as service:
        with ticking(service):
            done = joined(configs, direct(service))
        service.tick()
        service.conclude()
    return done


# What a job must come to.


def simulated(config: ServeConfig) -> Federation:
    """The same parties in one process, before their first message."""
    experiment = config.experiment()
    federation = build(experiment, prepare(experiment.data, record_choice(experiment)))
    federation.upload(table=experiment.simulation.table == "upload")
    return federation


def replayed(config: ServeConfig, order: Sequence[bytes]) -> Federation:
    """The simulated parties after the same queries in the same order, nobody having died."""
    federation = simulated(config)
    server, clients = federation.server, federation.clients
    server.train_between_queries()
    for frame in order:
        message = wire.decode(frame, config.codecs.up)
        assert isinstance(message, Query)
        in_step = config.simulation.timing == "synchronous"
        announced = server.announce(message.client) if in_step else None
        assert clients[message.client].ask(announced) == frame
        before = server.round
        for client, reply in server.receive(frame):
            clients[client].tell(reply)
        if server.round > before:
            server.train_between_queries()
    return federation


def assert_ended_as(
    federation: Federation, folder: Path, server: str = "server", members: Sequence[str] = MEMBERS
) -> None:
    """All parties' folders have the very parameters of the simulated parties."""

    def ended(name: str) -> Any:
        return checkpoint.load(folder / name / "checkpoints" / "last.safetensors")["state"]

    ours = [ended(server)["course"]["parameters"]]
    ours += [ended(member)["parameters"] for member in members]
    theirs = [federation.server.side.model.parameters]
    theirs += [model.parameters for model in federation.models]
    for name, mine, other in zip((server, *members), ours, theirs, strict=True):
        assert torch.equal(mine, other), f"{name}: off by {(mine - other).abs().max()}"


def charged(folder: Path, state: Path | None = None) -> tuple[list[tuple[int, int]], int]:
    """What a label holder's ledger was charged for: clients' queries in order, and steps."""
    run = (folder / "run_name").read_text()
    with DurableLedger.open(folder / "ledger.sqlite", run, state) as ledger:
        assert ledger.tally.left >= 0
        rows = [ledger._file.row(n) for n in range(1, ledger._file.head.sequence + 1)]
        return sorted((row.client, row.number) for row in rows if row.kind == REPLY), ledger.steps
