"""Whatever dies, and whenever: nothing is lost, and nothing is charged twice.

Deaths are simulated within one process: whoever dies leaves as a killed process would, without a
last word, and what it had written is all that is left. `test_processes` kills real ones.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import deployments as dep

from vertizo.data.prepare import prepare
from vertizo.network import frames
from vertizo.network.joining import Joined, Member
from vertizo.network.serving import FederationService
from vertizo.network.store import Store
from vertizo.privacy.durable_ledger import DurableLedger
from vertizo.privacy.ledger import REPLY
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Query
from vertizo.run import checkpoint
from vertizo.run.build_privacy import record_choice
from vertizo.run.federation import Federation, build
from vertizo.run.folder import RunFolder

PRIVATE: dict[str, Any] = {
    "privacy": {"mechanism": "gaussian", "clip": 1.0, "epsilon": 2.0, "delta": 1e-3},
    "server": {
        "update": "poisson-dp-sgd",
        "secret": {"every": 3, "warm_up": 4, "sampling": 0.1},
        "model": {"hidden": []},
    },
}


class Killed(BaseException):
    """A process ends here."""


def leave(party: FederationService | Member) -> None:
    """End as a killed process does: nothing is saved, files and locks are let go."""
    if isinstance(party, FederationService):
        party._archive.close()
    else:
        party._store.close()
        party._exit.close()


class House:
    """A label holder that dies now and then, and is started again.

    Args:
        config: of the label holder.
        seed: of what happens.
        deaths: how often it dies at an ask, in all.
    """

    def __init__(self, config: Any, seed: int, deaths: int) -> None:
        self.config = config
        self.deaths = 0
        self.order: list[bytes] = []
        """Queries in the order in which they were first taken in."""
        self.asks: list[tuple[str, bytes]] = []
        """All that reached it, and from whom."""
        self._chance = random.Random(seed)
        self._most = deaths
        self._lock = threading.RLock()
        self.service = FederationService(config)
        self.service.__enter__()

    def ask(self, member: str, frame: bytes) -> bytes | None:
        """The answer, if there is one and it arrives."""
        there = threading.Event()
        answers: list[bytes] = []

        def take(answer: bytes) -> None:
            answers.append(answer)
            there.set()

        with self._lock:
            if self._chance.random() < 0.1:
                return None  # lost on its way
            dies = self.deaths < self._most and self._chance.random() < 0.15
            lost = self._chance.random() < 0.1
            try:
                self._note(frame)
                self.asks.append((member, frame))
                self.service.ask(member, frame, take)
            except Killed:
                dies = True
            if dies:
                self.restart()
                return None
            if self.service.failure is not None:
                raise self.service.failure
        if lost:
            return None
        there.wait(0.2)
        return answers[0] if answers else None

    def _note(self, frame: bytes) -> None:
        if not frames.is_party_frame(frame) or wire.is_upload(frame):
            return
        if frame not in self.order:
            self.order.append(frame)

    def restart(self) -> None:
        """Die and be started again."""
        self.deaths += 1
        leave(self.service)
        while True:
            self.service = FederationService(self.config)
            try:
                self.service.__enter__()
                return
            except Killed:
                leave(self.service)


class Wire:
    """A member's channel to the label holder. It repeats asks; its owner may die at any of them."""

    def __init__(self, house: House, member: str, chance: random.Random, deaths: list[int]) -> None:
        self._house, self._member = house, member
        self._chance, self._deaths = chance, deaths

    def ask(self, frame: bytes) -> bytes:
        while True:
            self._perhaps()
            answer = self._house.ask(self._member, frame)
            self._perhaps()
            if answer is not None:
                return answer

    def _perhaps(self) -> None:
        if self._deaths[0] and self._chance.random() < 0.1:
            self._deaths[0] -= 1
            raise Killed

    def close(self) -> None:
        pass


def take_part(
    folder: Path, house: House, member: str, seed: int, deaths: int, **keys: Any
) -> Joined:
    """A member that dies now and then, and is started again."""
    chance, left = random.Random(f"{seed} {member}"), [deaths]
    while True:
        here = Member(dep.join_config(folder, member, **keys), Wire(house, member, chance, left))
        try:
            here.__enter__()
            result = here.run()
            here.__exit__()
            return result
        except Killed:
            leave(here)
        except BaseException:
            leave(here)
            raise


def run_house(folder: Path, config: Any, seed: int, deaths: int, **keys: Any) -> House:
    """A job to its end, everybody dying on the way."""
    house = House(config, seed, deaths)
    results: dict[str, Joined] = {}
    errors: list[BaseException] = []

    def work(member: str) -> None:
        try:
            results[member] = take_part(folder, house, member, seed, deaths // 4, **keys)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(m,), daemon=True) for m in dep.MEMBERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        if errors:
            raise errors[0]
    assert len(results) == 4
    # One that died after some were told knows by their silence alone that they are gone.
    with dep.ticking(house.service) as raised:
        assert house.service.finished.wait(30)
    assert not raised
    house.service.__exit__()
    return house


def replayed(config: Any, order: list[bytes]) -> Federation:
    """The simulated parties after the same queries in the same order, nobody having died."""
    experiment = config.experiment()
    federation = build(experiment, prepare(experiment.data, record_choice(experiment)))
    if experiment.simulation.table == "upload":
        federation.simulator.upload("train", federation.data.records)
    server, clients = federation.server, federation.clients
    server.train_between_queries()
    codec = experiment.codecs.up
    for frame in order:
        message = wire.decode(frame, codec)
        assert isinstance(message, Query)
        if experiment.simulation.timing == "synchronous":
            announced = server.announce(message.client)
        else:
            announced = None
        assert clients[message.client].ask(announced) == frame
        before = server.round
        for client, reply in server.receive(frame):
            clients[client].tell(reply)
        if server.round > before:
            server.train_between_queries()
    return federation


def assert_nothing_lost(folder: Path, house: House) -> None:
    """All parties end with the parameters that they would have, had nobody died."""
    federation = replayed(house.config, house.order)
    ended = checkpoint.load(folder / "server" / "checkpoints" / "last.safetensors")["state"]
    parameters = ended["course"]["parameters"]
    torch.testing.assert_close(federation.server.side.model.parameters, parameters, rtol=0, atol=0)
    for client, member in enumerate(dep.MEMBERS):
        path = folder / member / "checkpoints" / "last.safetensors"
        found = checkpoint.load(path)["state"]["parameters"]
        torch.testing.assert_close(found, federation.models[client].parameters, rtol=0, atol=0)


SETTINGS: dict[str, dict[str, Any]] = {
    "dpzv": {},
    "private": PRIVATE,
    "synchronous": {"simulation": {"timing": "synchronous"}},
    "feedback": {"method": {"name": "vafl"}, "codecs": {"feedback": "both"}},
    "embedding noise": {"privacy": {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 0.5}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_deaths_change_nothing(name: str, tmp_path: Path) -> None:
    house = run_house(tmp_path, dep.serve_config(tmp_path, **SETTINGS[name]), seed=1, deaths=20)
    assert house.deaths >= 10
    assert len(house.order) == 4 * 2 * 6
    assert_nothing_lost(tmp_path, house)


@contextmanager
def deadly(seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writing kills now and then, before or after it is done: the worst moments there are."""
    chance = random.Random(seed)

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def deadly(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                fate = chance.random()
            else:
                fate = 1.0
            if fate < 0.06:
                raise Killed
            result = function(*args, **kwargs)
            if fate > 0.94 and fate < 1.0:
                raise Killed
            return result

        return deadly

    with monkeypatch.context() as patch:
        for owner, name in (
            (DurableLedger, "commit"),
            (DurableLedger, "begin_step"),
            (Store, "append"),
            (Store, "save"),
            (RunFolder, "append_metrics"),
            (RunFolder, "save"),
        ):
            patch.setattr(owner, name, around(getattr(owner, name)))
        yield


@pytest.mark.parametrize("seed", range(3))
def test_deaths_at_the_worst_moments_charge_nothing_twice(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise of real parties and a durable ledger: every query charged once, as it was told."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = dep.serve_config(tmp_path, federation={"trial": False}, **PRIVATE)
    with deadly(seed, monkeypatch):
        house = run_house(tmp_path, config, seed=seed, deaths=8, trial=False)
    assert house.deaths >= 8
    experiment = config.experiment()
    path = tmp_path / "server" / "ledger.sqlite"
    run = (tmp_path / "server" / "run_name").read_text()
    with DurableLedger.open(path, run) as ledger:
        rows = [ledger._file.row(n) for n in range(1, ledger._file.head.sequence + 1)]
        charged = [(row.client, row.number) for row in rows if row.kind == REPLY]
        assert sorted(charged) == [(c, n) for c in range(4) for n in range(2 * 6)]
        assert ledger.tally.left >= 0
        steps = ledger.steps
    assert steps == experiment.server.secret.warm_up + 48 // experiment.server.secret.every


def query_of(federation: Federation, client: int) -> bytes:
    return bytes(federation.clients[client].ask())


def refusal(service: FederationService, member: str, frame: bytes) -> str:
    """The words in which an ask is refused."""
    answers: list[bytes] = []
    service.ask(member, frame, answers.append)
    found = frames.decode(answers[0])
    assert isinstance(found, frames.Refusal)
    return found.words


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[tuple[FederationService, Federation]]:
    """A job whose members are ready, and its parties simulated, for their frames."""
    config = dep.serve_config(tmp_path, federation={"patience": 0.2})
    experiment = config.experiment()
    federation = build(experiment, prepare(experiment.data, record_choice(experiment)))
    with FederationService(config) as service:
        for client, member in enumerate(dep.MEMBERS):
            counts = [len(federation.data.labels[p]) for p in ("train", "validation", "test")]
            ready = frames.Ready(service._archive.run, 4, tuple(counts), b"", False, False)
            assert client < 4
            service.ask(member, frames.encode(ready), lambda answer: None)
        assert service.state is not None
        yield service, federation


def state_of(service: FederationService) -> tuple[Any, ...]:
    assert service.state is not None
    party = service.state.job.party
    journal = service._archive._store._journal
    assert journal is not None
    return party.round, party.side.model.parameters.sum().item(), journal.size


def test_garbage_and_lies_are_refused_and_change_nothing(
    begun: tuple[FederationService, Federation],
) -> None:
    service, federation = begun
    good = query_of(federation, 0)
    chance = random.Random(0)
    before = state_of(service)
    wrong = [
        b"",
        b"VZ",
        b"VC",
        bytes(1000),
        good[:-1],
        good + b"x",
        good[:8] + bytes(len(good) - 8),
        *(chance.randbytes(chance.randrange(1, 300)) for _ in range(200)),
        *(b"VZ\x01\x00" + chance.randbytes(chance.randrange(1, 300)) for _ in range(200)),
        *(b"VC\x01\x00" + chance.randbytes(chance.randrange(1, 300)) for _ in range(200)),
    ]
    flipped = []
    for _ in range(300):
        place = chance.randrange(8, 40)
        flipped.append(
            good[:place] + bytes([good[place] ^ 1 << chance.randrange(8)]) + good[place + 1 :]
        )
    for frame in wrong:
        refusal(service, "north", frame)
    for frame in flipped:
        answers: list[bytes] = []
        service.ask("east", frame, answers.append)  # good or not, it is not east's
        assert isinstance(frames.decode(answers[0]), frames.Refusal)
    assert state_of(service) == before
    assert "speaks for client" in refusal(service, "east", good)
    other = frames.encode(frames.Next("another job"))
    assert "another job" in refusal(service, "north", other)
    answers = []
    service.ask("north", good, answers.append)
    assert state_of(service)[0] == before[0] + 1
    assert service.failure is None


def test_a_replayed_query_is_answered_again_and_not_computed(
    begun: tuple[FederationService, Federation],
) -> None:
    service, federation = begun
    good = query_of(federation, 2)
    answers: list[bytes] = []
    service.ask("south", good, answers.append)
    after = state_of(service)
    for _ in range(5):
        service.ask("south", good, answers.append)
    first = [next(frames.split(answer)) for answer in answers]
    assert len(set(first)) == 1
    assert len(first) == 6
    assert state_of(service) == after
    federation.clients[2].tell(first[0])
    second = query_of(federation, 2)
    service.ask("south", second, lambda answer: None)
    assert "2 is the next one" in refusal(service, "south", good)
    forged = wire.decode(second, NoCompression())
    assert isinstance(forged, Query)
    changed = wire.encode(
        Query(forged.client, forged.number, forged.ids, forged.embeddings + 1), NoCompression()
    )
    assert "other content" in refusal(service, "south", changed)


def test_a_full_disk_for_the_ledger_stops_answers_with_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vertizo.core.errors import RunError
    from vertizo.privacy.ledger_file import LedgerFile

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = dep.serve_config(tmp_path, federation={"trial": False}, **PRIVATE)
    house = House(config, 5, 0)
    full = threading.Event()
    appended = LedgerFile.append

    def append(self: LedgerFile, *args: Any) -> None:
        if full.is_set():
            raise RunError(f"{self.path} could not be written: database or disk is full")
        appended(self, *args)

    monkeypatch.setattr(LedgerFile, "append", append)
    asked = [0]
    original = FederationService._query

    def counting(self: FederationService, client: int, frame: bytes) -> None:
        asked[0] += 1
        if asked[0] == 20:
            full.set()
        original(self, client, frame)

    monkeypatch.setattr(FederationService, "_query", counting)

    def stopped(member: str) -> None:
        with pytest.raises(RunError, match="disk is full"):
            take_part(tmp_path, house, member, 5, 0, trial=False)

    workers = [threading.Thread(target=stopped, args=(m,), daemon=True) for m in dep.MEMBERS]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    with pytest.raises(RunError, match="disk is full"):
        house.service.tick()
    replies: list[bytes] = []
    house.service.ask(
        "north", frames.encode(frames.Next(house.service._archive.run)), replies.append
    )
    assert replies == []  # it does not answer any more
    leave(house.service)

    full.clear()  # somebody made room; all are started again
    second = run_house(tmp_path, config, seed=6, deaths=0, trial=False)
    assert second.service.state is not None
    run = (tmp_path / "server" / "run_name").read_text()
    with DurableLedger.open(tmp_path / "server" / "ledger.sqlite", run) as ledger:
        rows = [ledger._file.row(n) for n in range(1, ledger._file.head.sequence + 1)]
        charged = [(row.client, row.number) for row in rows if row.kind == REPLY]
    assert sorted(charged) == [(c, n) for c in range(4) for n in range(12)]


def test_a_member_that_sends_nan_harms_itself_alone(
    begun: tuple[FederationService, Federation],
) -> None:
    service, federation = begun
    good = wire.decode(query_of(federation, 0), NoCompression())
    assert isinstance(good, Query)
    before = state_of(service)
    bad = Query(0, 0, good.ids, torch.full_like(good.embeddings, torch.nan))
    assert "NaN" in refusal(service, "north", wire.encode(bad, NoCompression()))
    assert state_of(service) == before
    assert service.failure is None
