"""A server that is killed at any moment has sent no reply that its ledger does not hold.

What is killed is a process, by SIGKILL: what the system has taken over from it stays. That a commit
also outlives a power cut rests on SQLite and on fsync, and is not tested here.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import select
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import numpy as np
import pytest

from vertizo.privacy.durable_ledger import DurableLedger
from vertizo.privacy.ledger import digest

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).with_name("ledger_server.py")
SERVER = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


class Nursery:
    """The process that forks servers."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen([sys.executable, str(SCRIPT)], stdin=theirs.fileno())
        theirs.close()

    def start(self, place: Place, do: str = "serve", opening: int = 0, answering: int = 0) -> Life:
        """A server, to be killed at that line of opening, or of answering one query; 0: at none."""
        ours, theirs = socket.socketpair()
        request = {
            "do": do,
            "path": str(place.path),
            "witnesses": str(place.witnesses),
            "die_opening": opening,
            "die_answering": answering,
        }
        socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno()])
        theirs.close()
        return Life(self, ours, json.loads(self._control.recv(100)))

    def reap(self, pid: int) -> int:
        """Wait for a server that ends; its exit status as `os.waitpid` has it."""
        self._control.send(json.dumps({"do": "reap", "pid": pid}).encode())
        status: int = json.loads(self._control.recv(100))
        return status

    def close(self) -> None:
        self._control.close()
        assert self._process.wait(10) == 0


class Life:
    """One server, from its start to its end."""

    def __init__(self, nursery: Nursery, connection: socket.socket, pid: int) -> None:
        self._nursery = nursery
        self._connection = connection
        self._buffer = b""
        self.pid = pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def send(self, query: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it was killed before
            self._connection.sendall(SERVER.LENGTH.pack(len(query)) + query)

    def reply(self, until: float) -> bytes | None:
        """The next reply; None if there is none when it ends, or by that time."""
        while True:
            if len(self._buffer) >= SERVER.LENGTH.size:
                (size,) = SERVER.LENGTH.unpack_from(self._buffer)
                end = SERVER.LENGTH.size + size
                if len(self._buffer) >= end:
                    frame = self._buffer[SERVER.LENGTH.size : end]
                    self._buffer = self._buffer[end:]
                    return frame
            wait = max(until - time.monotonic(), 0)
            if not select.select([self._connection], [], [], wait)[0]:
                return None
            try:
                more = self._connection.recv(65536)
            except ConnectionResetError:
                more = b""
            if not more:
                assert not self._buffer  # a reply's frame is sent whole or not at all
                return None
            self._buffer += more

    def kill(self) -> None:
        """SIGKILL; its ID is still its own, as it was not waited for."""
        os.kill(self.pid, signal.SIGKILL)
        self.ended(signal.SIGKILL)

    def stop(self) -> None:
        """Let it end by itself."""
        self._connection.shutdown(socket.SHUT_WR)
        self.ended(0)

    def ended(self, *expected: int) -> int:
        status = self._nursery.reap(self.pid)
        assert status in expected
        return status


class Place:
    """A ledger, its witness, and what its clients know: they keep every reply they ever got."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = folder / "ledger.sqlite"
        self.witnesses = folder / "witnesses"
        self.draw = random.Random(seed)
        self.queries: dict[tuple[int, int], bytes] = {}
        self.replies: dict[tuple[int, int], bytes] = {}
        self._next = [0] * SERVER.CLIENTS

    def query(self) -> tuple[int, int]:
        """A client's open query, a new one, or now and then its last one again."""
        client = self.draw.randrange(SERVER.CLIENTS)
        number = self._next[client]
        if number and self.draw.random() < 0.1:
            return client, number - 1
        if (client, number) not in self.queries:
            ids = np.array(self.draw.sample(range(SERVER.RECORDS), 8), np.int64)
            self.queries[client, number] = SERVER.HEAD.pack(client, number) + ids.tobytes()
        return client, number

    def take(self, asked: tuple[int, int], reply: bytes) -> None:
        """A reply came; if it came before, then with the same bytes."""
        assert self.replies.setdefault(asked, reply) == reply
        self._next[asked[0]] = asked[1] + 1

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
            ids = np.frombuffer(query[SERVER.HEAD.size :], np.int64)
            expected[client, ids] += SERVER.COST
        assert np.array_equal(spent, expected)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


def first_reply(nursery: Nursery, place: Place) -> float:
    """Seconds from the start of a server to its first reply."""
    start = time.monotonic()
    with nursery.start(place) as life:
        asked = place.query()
        life.send(place.queries[asked])
        reply = life.reply(start + 60)
        assert reply is not None
        place.take(asked, reply)
        end = time.monotonic()
        life.kill()
    return end - start


def killed_often(nursery: Nursery, place: Place, kills: int) -> dict[str, int]:
    """Ask all the time, and kill the server at random moments; how often what was hit."""
    DurableLedger.create(place.path, SERVER.BUDGET, place.witnesses)
    hit = {"starting": 0, "lost": 0}
    open_: tuple[int, int] | None = None
    took = [first_reply(nursery, place) for _ in range(5)]
    usual = sorted(took)[2]  # on this machine, as busy as it is
    for kill in range(kills):
        with nursery.start(place) as life:
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
    with nursery.start(place) as life:
        if open_ is not None:
            life.send(place.queries[open_])
            reply = life.reply(time.monotonic() + 10)
            assert reply is not None
            place.take(open_, reply)
        life.stop()
    place.check(open_queries=0)
    return hit


def test_killed_at_random_moments(nursery: Nursery, tmp_path: Path) -> None:
    (folder := tmp_path / "place").mkdir()
    killed_often(nursery, place := Place(folder, seed=1), kills=25)
    assert place.replies


@pytest.mark.slow
def test_killed_at_random_moments_many_times(nursery: Nursery, tmp_path: Path) -> None:
    (folder := tmp_path / "place").mkdir()
    hit = killed_often(nursery, place := Place(folder, seed=2), kills=250)
    assert len(place.replies) > 125
    assert hit["starting"] > 10
    assert hit["lost"] > 0


def killed_at_lines(nursery: Nursery, folder: Path, what: str, step: int) -> int:
    """Kill the server at every ``step``-th line of what it does; how many moments there were."""
    template = Place(folder / "template", seed=3)
    template.path.parent.mkdir()
    DurableLedger.create(template.path, SERVER.BUDGET, template.witnesses)
    late = time.monotonic() + 300
    with nursery.start(template) as life:
        for _ in range(6):
            asked = template.query()
            life.send(template.queries[asked])
            reply = life.reply(late)
            assert reply is not None
            template.take(asked, reply)
        life.kill()
    line = 1
    while True:
        place = Place(folder / str(line), seed=line)
        shutil.copytree(template.path.parent, place.path.parent)
        place.queries, place.replies = dict(template.queries), dict(template.replies)
        place._next = list(template._next)
        asked = (0, place._next[0])
        place.queries[asked] = SERVER.HEAD.pack(*asked) + np.arange(8).tobytes()
        with nursery.start(place, **{what: line}) as life:
            life.send(place.queries[asked])
            reply = life.reply(late)
            if reply is not None:
                place.take(asked, reply)
                life.stop()
                break
            life.ended(signal.SIGKILL)
        with nursery.start(place) as life:
            life.send(place.queries[asked])
            reply = life.reply(late)
            assert reply is not None
            place.take(asked, reply)
            life.stop()
        place.check(open_queries=0)
        shutil.rmtree(place.path.parent)
        line += step
    return line


def test_killed_at_some_lines_of_a_reply(nursery: Nursery, tmp_path: Path) -> None:
    assert killed_at_lines(nursery, tmp_path, "answering", step=5) > 50


@pytest.mark.slow
def test_killed_at_any_line_of_a_reply(nursery: Nursery, tmp_path: Path) -> None:
    assert killed_at_lines(nursery, tmp_path, "answering", step=1) > 50


def test_killed_at_some_lines_of_its_start(nursery: Nursery, tmp_path: Path) -> None:
    assert killed_at_lines(nursery, tmp_path, "opening", step=31) > 100


@pytest.mark.slow
def test_killed_at_any_line_of_its_start(nursery: Nursery, tmp_path: Path) -> None:
    assert killed_at_lines(nursery, tmp_path, "opening", step=1) > 100


def test_killed_while_a_ledger_is_made(nursery: Nursery, tmp_path: Path) -> None:
    """There is a whole ledger, or none and another can be made."""
    made = line = 0
    while True:
        line += 1
        place = Place(tmp_path / str(line), seed=0)
        place.path.parent.mkdir()
        with nursery.start(place, do="create", opening=line) as life:
            if life.ended(0, signal.SIGKILL) == 0:
                break
        made += place.path.exists()
        if not place.path.exists():
            DurableLedger.create(place.path, SERVER.BUDGET, place.witnesses)
        with DurableLedger.open(place.path, "run", place.witnesses) as ledger:
            assert ledger.budget == SERVER.BUDGET
    assert line > 15
    assert 0 < made < line


def test_what_the_lines_are_counted_in() -> None:
    """The script kills in modules of this name; were they renamed, it would kill nowhere."""
    modules = {Path(sys.modules[name].__file__ or "").name for name in _ledger_modules()}
    assert {"durable_ledger.py", "ledger_file.py", "ledger_witness.py"} <= modules


def _ledger_modules() -> list[Any]:
    return [
        name for name in sys.modules if name.startswith("vertizo.privacy.") and "ledger" in name
    ]
