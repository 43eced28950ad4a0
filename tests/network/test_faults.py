"""Whatever dies, and whenever: nothing is lost, and nothing is charged twice.

Deaths are simulated within one process: whoever dies leaves as a killed process would, without a
last word, and what it had written is all that is left. `test_processes` kills real ones.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest
import torch
from tests import deployments as dep
from tests.network.by_hand import begin, leave, refused, state_of, upload_all
from tests.rows import each

from vertizo.core.errors import RunError
from vertizo.network.serving import frames, store
from vertizo.network.serving.joining import Joined, Member
from vertizo.network.serving.serving import FederationService
from vertizo.network.serving.store import Store
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.ledger.file import LedgerFile
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Query
from vertizo.run.loop.federation import Federation
from vertizo.run.results.folder import RunFolder


class Killed(BaseException):
    """A process ends here."""


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
        answers: Queue[bytes] = Queue()
        with self._lock:
            if self._chance.random() < 0.1:
                return None  # lost on its way
            dies = self.deaths < self._most and self._chance.random() < 0.15
            lost = self._chance.random() < 0.1
            try:
                if frames.is_party_frame(frame) and not wire.is_upload(frame):
                    self.order += [frame] * (frame not in self.order)
                self.asks.append((member, frame))
                self.service.ask(member, frame, answers.put)
            except Killed:
                dies = True
            if dies:
                self.restart()
                return None
            if self.service.failure is not None:
                raise self.service.failure
        if not lost:
            with suppress(Empty):
                return answers.get(timeout=0.2)
        return None

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
    work = partial(take_part, folder, house, seed=seed, deaths=deaths // 4, **keys)
    dep.together([partial(work, member) for member in dep.MEMBERS])
    # One that died after some were told knows by their silence alone that they are gone.
    until = time.monotonic() + 120
    while not house.service.finished.wait(0.02):
        assert time.monotonic() < until
        house.service.tick()
    house.service.conclude()
    house.service.__exit__()
    return house


def assert_nothing_lost(folder: Path, house: House) -> None:
    """All parties end with the parameters that they would have, had nobody died."""
    dep.assert_ended_as(dep.replayed(house.config, house.order), folder)


SETTINGS: dict[str, dict[str, Any]] = {
    "dpzv": {},
    "private": dep.PRIVATE,
    "synchronous": dep.IN_STEP,
    "feedback": {"method": {"name": "vafl"}, "codecs": {"feedback": "both"}},
    "embedding noise": {"privacy": {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 0.5}},
}


@each("name", SETTINGS, gate=["dpzv"])
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
            mine = threading.current_thread() is threading.main_thread()
            fate = 1.0 if mine else chance.random()
            if fate < 0.06:
                raise Killed
            result = function(*args, **kwargs)
            if 0.94 < fate < 1.0:
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


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_deaths_at_the_worst_moments_charge_nothing_twice(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise of real parties and a durable ledger: every query charged once, as it was told."""
    server = {**dep.PRIVATE["server"], "final_head": "logistic"}
    keys = {**dep.PRIVATE, "server": server}
    config = dep.serve_config(tmp_path, federation={"trial": False}, **keys)
    with deadly(seed, monkeypatch):
        house = run_house(tmp_path, config, seed=seed, deaths=8, trial=False)
    assert house.deaths >= 8
    queries, steps = dep.charged(tmp_path / "server")
    assert queries == [(c, n) for c in range(4) for n in range(2 * 6)]
    summary = RunFolder(tmp_path / "server").summary()
    assert summary is not None
    assert summary["raw_head"]["test_accuracy"] > 0.3
    secret = config.server.secret
    assert steps == secret.warm_up + 48 // secret.every


def test_a_query_that_is_not_in_the_journal_is_not_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a label holder that dies then would charge it again, for another answer."""
    config = dep.serve_config(tmp_path, federation={"trial": False}, **dep.PRIVATE)

    def dies(*_: Any) -> None:
        raise Killed

    with FederationService(config) as service:
        begin(service)
        upload_all(service)
        frame = query_of(dep.simulated(config), 0)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "append", dies)
            with pytest.raises(Killed):
                service.ask("north", frame, lambda answer: None)
        leave(service)
    queries, _ = dep.charged(tmp_path / "server")
    assert queries == []


def query_of(federation: Federation, client: int) -> bytes:
    return bytes(federation.clients[client].ask())


@pytest.fixture
def begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FederationService, Federation]]:
    """A job whose members are ready, and its parties simulated, for their frames."""
    monkeypatch.setattr(store, "SOONEST", math.inf)  # one journal for all of it
    config = dep.serve_config(tmp_path, federation={"patience": 0.2})
    with FederationService(config) as service:
        begin(service)
        yield service, dep.simulated(config)


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
    for frame in wrong:
        refused(service, "north", frame)
    for _ in range(300):
        flipped = bytearray(good)
        flipped[chance.randrange(8, 40)] ^= 1 << chance.randrange(8)
        refused(service, "east", bytes(flipped))  # good or not, it is not east's
    assert state_of(service) == before
    assert "speaks for client" in refused(service, "east", good)
    other = frames.encode(frames.Next("another job"))
    assert "another job" in refused(service, "north", other)
    answers: list[bytes] = []
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
    assert "2 is the next one" in refused(service, "south", good)
    forged = wire.decode(second, NoCompression())
    assert isinstance(forged, Query)
    changed = wire.encode(
        Query(forged.client, forged.number, forged.ids, forged.embeddings + 1), NoCompression()
    )
    assert "other content" in refused(service, "south", changed)


def test_a_full_disk_for_the_ledger_stops_answers_with_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dep.serve_config(tmp_path, federation={"trial": False}, **dep.PRIVATE)
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

    dep.together([partial(stopped, member) for member in dep.MEMBERS])
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
    queries, _ = dep.charged(tmp_path / "server")
    assert queries == [(c, n) for c in range(4) for n in range(12)]


def test_a_member_that_sends_nan_harms_itself_alone(
    begun: tuple[FederationService, Federation],
) -> None:
    service, federation = begun
    good = wire.decode(query_of(federation, 0), NoCompression())
    assert isinstance(good, Query)
    before = state_of(service)
    bad = Query(0, 0, good.ids, torch.full_like(good.embeddings, torch.nan))
    assert "NaN" in refused(service, "north", wire.encode(bad, NoCompression()))
    assert state_of(service) == before
    assert service.failure is None
