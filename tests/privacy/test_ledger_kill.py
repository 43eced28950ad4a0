"""A server that is killed at any moment has sent no reply that its ledger does not hold.

What is killed is a process, by SIGKILL: what the system has taken over from it stays. That a commit
also outlives a power cut rests on SQLite and on fsync, and is not tested here.
"""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from tests.privacy import ledger_server as server
from tests.warm import CONTEXT

from vertizo.privacy.ledger.base import digest
from vertizo.privacy.ledger.durable import DurableLedger

pytestmark = pytest.mark.full


class Life:
    """One server, to be killed at that line of opening, or of answering one query; 0: at none."""

    def __init__(self, place: Place, opening: int = 0, answering: int = 0) -> None:
        self._connection, theirs = CONTEXT.Pipe()
        given = place.path, place.witnesses, opening, answering, theirs
        self._process = CONTEXT.Process(target=server.serve, args=given)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, query: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it was killed before
            self._connection.send_bytes(query)

    def reply(self, until: float) -> bytes | None:
        """The next reply; None if there is none when it ends, or by that time.

        OSError if there is a part of one: a reply's frame is sent whole or not at all.
        """
        try:
            if self._connection.poll(max(until - time.monotonic(), 0)):
                return self._connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            pass
        return None

    def kill(self) -> None:
        self._process.kill()
        self.ended(-signal.SIGKILL)

    def stop(self) -> None:
        """Let it end by itself."""
        self._connection.close()
        self.ended(0)

    def ended(self, expected: int) -> None:
        self._process.join(60)
        assert self._process.exitcode == expected


class Place:
    """A ledger, its witness, and what its clients know: they keep every reply they ever got."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "ledger.sqlite"
        self.witnesses = folder / "witnesses"
        self.draw = random.Random(seed)
        self.queries: dict[tuple[int, int], bytes] = {}
        self.replies: dict[tuple[int, int], bytes] = {}
        self._next = [0] * server.CLIENTS

    def query(self) -> tuple[int, int]:
        """A client's open query, a new one, or now and then its last one again."""
        client = self.draw.randrange(server.CLIENTS)
        number = self._next[client]
        if number and self.draw.random() < 0.1:
            return client, number - 1
        if (client, number) not in self.queries:
            ids = np.array(self.draw.sample(range(server.RECORDS), 8), np.int64)
            self.queries[client, number] = server.HEAD.pack(client, number) + ids.tobytes()
        return client, number

    def take(self, asked: tuple[int, int], reply: bytes) -> None:
        """A reply came; if it came before, then with the same bytes."""
        assert self.replies.setdefault(asked, reply) == reply
        self._next[asked[0]] = asked[1] + 1

    def ask(self, asked: tuple[int, int], life: Life) -> None:
        """Ask, and get an answer however long it takes."""
        life.send(self.queries[asked])
        reply = life.reply(time.monotonic() + 300)
        assert reply is not None
        self.take(asked, reply)

    def lost(self, asked: tuple[int, int], life: Life) -> bool:
        """Whether a reply was charged by an earlier server that did not get to send it."""
        (made_by,) = struct.unpack_from("<Q", self.replies[asked])
        return bool(made_by != life.pid)

    def check(self, open_queries: int) -> None:
        """The ledger holds what was received, and at most the open queries beside it."""
        with DurableLedger.open(self.path, "run", self.witnesses) as ledger:
            spent = ledger.tally.charged.copy()
        database = sqlite3.connect(self.path)
        rows = database.execute("SELECT client, number, query, reply FROM log WHERE kind = 2")
        log = {(client, number): (query, reply) for client, number, query, reply in rows}
        (entries,) = database.execute("SELECT count(*) FROM log WHERE kind = 2").fetchone()
        database.close()
        assert entries == len(log)
        for asked, reply in self.replies.items():
            assert log[asked] == (digest(self.queries[asked]), digest(reply))
        assert len(self.replies) <= len(log) <= len(self.replies) + open_queries
        expected = np.zeros_like(spent)
        for client, number in log:
            query = self.queries[client, number]
            ids = np.frombuffer(query[server.HEAD.size :], np.int64)
            expected[client, ids] += server.COST
        assert np.array_equal(spent, expected)


def first_reply(place: Place) -> float:
    """Seconds from the start of a server to its first reply."""
    start = time.monotonic()
    with Life(place) as life:
        place.ask(place.query(), life)
        end = time.monotonic()
        life.kill()
    return end - start


def killed_often(place: Place, kills: int) -> dict[str, int]:
    """Ask all the time, and kill the server at random moments; how often what was hit."""
    DurableLedger.create(place.path, server.BUDGET, place.witnesses)
    hit = {"starting": 0, "lost": 0}
    open_: tuple[int, int] | None = None
    took = [first_reply(place) for _ in range(5)]
    usual = sorted(took)[2]  # on this machine, as busy as it is
    for kill in range(kills):
        with Life(place) as life:
            until = time.monotonic() + place.draw.uniform(0.2, 2.5) * usual
            answered = 0
            while time.monotonic() < until:
                asked = open_ or place.query()
                life.send(place.queries[asked])
                reply = life.reply(until)
                if reply is None:
                    open_ = asked
                    break
                fresh = asked not in place.replies
                place.take(asked, reply)
                hit["lost"] += open_ is not None and fresh and place.lost(asked, life)
                open_ = None
                answered += 1
            life.kill()
            if open_ is not None and (reply := life.reply(0)) is not None:
                place.take(open_, reply)  # it was on its way
                open_ = None
            hit["starting"] += answered == 0
        if kill % 25 == 24:
            shutil.copytree(place.path.parent, copy := place.path.parent.with_name(f"copy{kill}"))
            at_rest = Place(copy, 0)  # looking at the ledger itself would tidy it up
            at_rest.queries, at_rest.replies = place.queries, place.replies
            at_rest.check(open_queries=int(open_ is not None))
    with Life(place) as life:
        if open_ is not None:
            place.ask(open_, life)
        life.stop()
    place.check(open_queries=0)
    return hit


def test_killed_at_random_moments(tmp_path: Path) -> None:
    killed_often(place := Place(tmp_path / "place", seed=1), kills=25)
    assert place.replies


@pytest.mark.long
def test_killed_at_random_moments_many_times(tmp_path: Path) -> None:
    hit = killed_often(place := Place(tmp_path / "place", seed=2), kills=250)
    assert len(place.replies) > 125
    assert hit["starting"] > 10
    assert hit["lost"] > 0


def killed_at_lines(folder: Path, what: str, step: int) -> int:
    """Kill the server at every ``step``-th line of what it does; how many moments there were."""
    template = Place(folder / "template", seed=3)
    DurableLedger.create(template.path, server.BUDGET, template.witnesses)
    late = time.monotonic() + 300
    with Life(template) as life:
        for _ in range(6):
            template.ask(template.query(), life)
        life.kill()
    line = 1
    while True:
        place = Place(shutil.copytree(template.path.parent, folder / str(line)), seed=line)
        place.queries, place.replies = dict(template.queries), dict(template.replies)
        place._next = list(template._next)
        asked = (0, place._next[0])
        place.queries[asked] = server.HEAD.pack(*asked) + np.arange(8).tobytes()
        with Life(place, **{what: line}) as life:
            life.send(place.queries[asked])
            reply = life.reply(late)
            if reply is not None:
                place.take(asked, reply)
                life.stop()
                break
            life.ended(-signal.SIGKILL)
        with Life(place) as life:
            place.ask(asked, life)
            life.stop()
        place.check(open_queries=0)
        shutil.rmtree(place.path.parent)
        line += step
    return line


@pytest.mark.parametrize(
    ("what", "step", "moments"),
    [
        pytest.param("answering", 5, 50, id="some lines of a reply"),
        pytest.param("answering", 1, 50, id="any line of a reply", marks=pytest.mark.long),
        pytest.param("opening", 31, 100, id="some lines of its start"),
        pytest.param("opening", 1, 100, id="any line of its start", marks=pytest.mark.long),
    ],
)
def test_killed_at_lines(what: str, step: int, moments: int, tmp_path: Path) -> None:
    assert killed_at_lines(tmp_path, what, step) > moments


def test_killed_while_a_ledger_is_made(tmp_path: Path) -> None:
    """There is a whole ledger, or none and another can be made."""
    made = line = 0
    while True:
        line += 1
        place = Place(tmp_path / str(line), seed=0)
        maker = CONTEXT.Process(target=server.create, args=(place.path, place.witnesses, line))
        maker.start()
        maker.join(60)
        if maker.exitcode == 0:
            break
        assert maker.exitcode == -signal.SIGKILL
        made += place.path.exists()
        if not place.path.exists():
            DurableLedger.create(place.path, server.BUDGET, place.witnesses)
        with DurableLedger.open(place.path, "run", place.witnesses) as ledger:
            assert ledger.budget == server.BUDGET
    assert line > 15
    assert 0 < made < line


def test_what_the_lines_are_counted_in() -> None:
    """The script kills in modules of this folder; were it renamed, it would kill nowhere."""
    names = [name for name in sys.modules if name.startswith("vertizo.privacy.ledger.")]
    modules = {Path(sys.modules[name].__file__ or "").parts[-2:] for name in names}
    assert {("ledger", f"{name}.py") for name in ("durable", "file", "witness")} <= modules
