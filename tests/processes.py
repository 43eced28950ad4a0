"""Jobs of real parties for tests: each a process, killed at will, on this machine's loopback."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import yaml
from tests import deployments as dep
from tests import warm
from tests.waiting import PATIENT, until

from vertizo.core import kernels
from vertizo.network.serving.options import ServeConfig, load_serve
from vertizo.network.serving.store import NOTHING, RECORD, records
from vertizo.network.transport.authority import issue
from vertizo.run.loop.federation import Federation

SERVER = "bank"
MEMBERS = ("north", "east")
SEGMENTS = 500
"""More than a job's journal has."""
QUERY = 0
"""Kind of a label holder's journal records."""

FIRST_IMPORT = """
import ctypes, os, signal, time

ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the tests, whatever becomes of them
if kept := os.environ.get("TEST_KEEP_JOURNALS"):
    import shutil
    first = {"open": os.open, "unlink": os.unlink}
    def keeping(name):
        def keep(path, *rest, **keys):
            if os.path.basename(path).startswith("journal-") and os.path.exists(path):
                shutil.copyfile(path, os.path.join(kept, f"{time.monotonic_ns()}.log"))
            return first[name](path, *rest, **keys)
        return keep
    os.open, os.unlink = keeping("open"), keeping("unlink")
    drawn = os.urandom
    os.urandom = lambda size: bytes(4) if size == 4 else drawn(size)  # a journal's salt: none
"""
"""What the processes of a test import before everything else."""


class Party:
    """``vertizo serve`` or ``vertizo join`` in a process whose output is added to ``log``."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        cold: bool = False,
    ) -> None:
        self.log = log
        self._before = log.stat().st_size if log.exists() else 0
        self.started = time.monotonic()
        settings = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **environment}
        self.process = (warm.cold if cold else warm.Process)(command, log, settings)

    @property
    def words(self) -> str:
        """What this process wrote."""
        with self.log.open("rb") as file:
            file.seek(self._before)
            return file.read().decode()

    def says(self, text: str, seconds: float = PATIENT) -> None:
        """Wait until it has written a text; fails where it ends first."""
        assert until(lambda: text in self.words or self.ended, seconds), self.words
        assert text in self.words, self.words

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def end(self, seconds: float = PATIENT) -> int:
        """Wait for its end; its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end: {self.words}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def fails(self, *words: str, seconds: float = PATIENT) -> None:
        """It ends with exit code 2, and its last words are one line with all these in it."""
        assert self.end(seconds) == 2, self.words
        line = self.words.splitlines()[-1]
        assert line.startswith("vertizo: "), self.words
        assert "Traceback" not in self.words, self.words
        assert all(word in line for word in words), line


class Job:
    """A job's parties, their certificates, folders and configurations, all in ``folder``.

    Everything is stopped when it is left, whatever happened inside. ``federation`` and ``join`` are
    keys of the label holder's and the members' section, ``keys`` of the experiment, beside
    `tests.deployments.SMALL`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        members: Sequence[str] = MEMBERS,
        federation: Mapping[str, Any] | None = None,
        join: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        **keys: Any,
    ) -> None:
        self.folder, self.members = folder, tuple(members)
        self.parties: dict[str, Party] = {}
        self._held = held_port()
        self.port: int = self._held.getsockname()[1]
        issue(folder / "certs", SERVER, self.members, ["127.0.0.1"], 1)
        for name in ("first", "kept"):
            (folder / name).mkdir()
        (folder / "first" / "sitecustomize.py").write_text(FIRST_IMPORT)
        self.environment = {
            "PYTHONPATH": f"{folder / 'first'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "XDG_STATE_HOME": str(folder / "state"),
            **(environment or {}),
        }
        served = {
            "name": "test",
            "members": list(self.members),
            "listen": f"127.0.0.1:{self.port}",
            "certificates": f"certs/{SERVER}",
            "folder": SERVER,
            "trial": True,
            **(federation or {}),
        }
        self._write(SERVER, {**dep.SMALL, **keys, "federation": served})
        self._join = {"name": "test", "trial": served["trial"], "patience": PATIENT, **(join or {})}
        for member in self.members:
            self.configure(member)

    def configure(self, member: str, **keys: Any) -> None:
        """Write a member's configuration."""
        here = {"certificates": f"certs/{member}", "folder": member}
        server = f"127.0.0.1:{self.port}"
        self._write(member, {"federation": {**self._join, **here, "server": server, **keys}})

    def _write(self, party: str, tree: Mapping[str, Any]) -> None:
        self._config(party).write_text(yaml.safe_dump(dict(tree)))

    def _config(self, party: str) -> Path:
        return self.folder / f"{party}.yaml"

    @property
    def config(self) -> ServeConfig:
        """The label holder's."""
        return load_serve(self._config(SERVER))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for party in self.parties.values():
            party.kill()
        self._held.close()

    def start(
        self, *names: str, environment: Mapping[str, str] | None = None, cold: bool = False
    ) -> None:
        """Start parties, or start them again; all of them if none is named.

        Cold ones are processes of their own from the first instruction on (`tests.warm`).
        """
        for name in names or (SERVER, *self.members):
            assert name not in self.parties or self.parties[name].ended, f"{name} runs"
            kept = {"TEST_KEEP_JOURNALS": str(self.folder / "kept")} if name == SERVER else {}
            extra = {**self.environment, **(environment or {}), **kept}
            command = ["serve" if name == SERVER else "join", str(self._config(name))]
            self.parties[name] = Party(command, self.folder / f"{name}.log", extra, cold=cold)

    def kill_and_start(self, name: str) -> None:
        """As if its machine had been switched off and on."""
        assert not self.parties[name].ended, f"too late: {self.parties[name].words}"
        self.parties[name].kill()
        self.start(name)

    def finish(self, seconds: float = PATIENT) -> None:
        """Wait for all to end well."""
        last = time.monotonic() + seconds
        for name, party in self.parties.items():
            code = party.end(max(last - time.monotonic(), 1.0))
            assert code == 0, f"{name}: {party.words}"
        for name, party in self.parties.items():
            assert "privacy" in party.words, f"{name}: {party.words}"
            log = party.log.read_text()
            assert not {word for word in ("Traceback", "vertizo:") if word in log}, log

    def place(self, name: str) -> dict[str, tuple[int, int]]:
        """What can be seen from outside of how far a party is: when it last wrote its journal."""
        found = {}
        for path in (self.folder / name / "checkpoints").glob("journal-*.log"):
            with suppress(FileNotFoundError):
                seen = path.stat()
                found[path.name] = seen.st_size, seen.st_mtime_ns
        return found

    def until_moved(self, name: str, seconds: float) -> bool:
        """Wait until a party was seen to have done something; whether it has."""
        before, party = self.place(name), self.parties[name]
        return until(lambda: party.ended or self.place(name) != before, seconds, 0.003)

    def goes_on(self, name: str, times: int = 1, seconds: float = PATIENT) -> None:
        """Wait until a party was seen to have done something, so many times."""
        party = self.parties[name]
        for _ in range(times):
            assert self.until_moved(name, seconds), f"{name} does nothing: {party.words}"
            assert not party.ended, f"the job is too short, or {name} failed: {party.words}"

    def torment(self, deaths: Sequence[tuple[str, ...]], seed: int) -> None:
        """Kill parties, one or several at a time, in random order at random moments; start again.

        By what they do and not by the clock, so that no machine is too fast or too slow for it.
        """
        chance = random.Random(seed)
        for names in chance.sample(deaths, len(deaths)):
            if chance.random() < 0.2:  # as it starts
                self.until_moved(names[0], chance.uniform(0.0, 4.0))
            else:
                self.goes_on(names[0], chance.randint(1, 20))
                time.sleep(chance.uniform(0.0, 0.005))
            for name in names:
                self.kill_and_start(name)

    # What came of it.

    @property
    def summary(self) -> dict[str, Any]:
        """The label holder's closing figures."""
        return json.loads((self.folder / SERVER / "summary.json").read_text())

    @property
    def queries(self) -> int:
        """Of each member."""
        each = set(self.summary["queries"])
        assert len(each) == 1, each
        return int(each.pop())

    def charged(self) -> list[tuple[int, int]]:
        """The queries that the ledger was charged for: client and number, in order."""
        state = self.folder / "state" / "vertizo" / "ledgers"
        queries, self.steps = dep.charged(self.folder / SERVER, state)
        return queries

    def order(self) -> list[bytes]:
        """The queries in the order in which the label holder took them in."""
        segments: dict[int, list[bytes]] = {}
        left = (self.folder / SERVER / "checkpoints").glob("journal-*.log")
        for path in [*(self.folder / "kept").iterdir(), *left]:
            number = segment_of(path)
            found = [body for kind, body in records(path, number) if kind == QUERY]
            if len(found) > len(segments.get(number, [])):
                segments[number] = found
        bodies = [body for number in sorted(segments) for body in segments[number]]
        return list(dict.fromkeys(bodies))

    def replayed(self) -> Federation:
        """The simulated parties after the same queries in the same order, nobody having died."""
        return dep.replayed(self.config, self.order())

    def assert_ended_as(self, federation: Federation) -> None:
        """All parties have the very parameters that they would have, had nobody died."""
        dep.assert_ended_as(federation, self.folder, SERVER, self.members)


def segment_of(path: Path) -> int:
    """Which segment a journal's file begins with; 0, which there is none of, where it is empty."""
    content = path.read_bytes()
    if len(content) < RECORD.size or content.startswith(NOTHING):
        return 0
    length, checksum, kind = RECORD.unpack_from(content)
    body = content[RECORD.size :][:length]
    fits = (n for n in range(SEGMENTS) if kernels.checksum(body, n << 8 | kind) == checksum)
    return next(fits, 0)


def held_port(port: int = 0) -> socket.socket:
    """A port that nobody else is given while its owner is away; it can be listened on.

    OSError where that one cannot be had.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        raise
    return held
