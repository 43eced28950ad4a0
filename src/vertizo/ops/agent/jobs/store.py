"""The store: the jobs of one party on disk, their states, and what happened to them.

It is an SQLite file in the agent's folder, which only its owner can read. The agent and the local
commands (``vertizo submit``, ``jobs``, ``cancel``, ``approve``, ``refuse``) share it, so that they
need no protocol: a command changes a state as the agent does, in a transaction that `states`
allows, and the agent acts on the state that it finds. What was written survives a power cut.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from vertizo.core import system
from vertizo.core.errors import RunError
from vertizo.ops.agent.jobs import messages
from vertizo.ops.agent.jobs.messages import Offer, Standing
from vertizo.ops.agent.jobs.states import ENDS, State, before
from vertizo.run.results import checkpoint

VERSION = 3
WAIT_SECONDS = 30.0
"""Seconds to wait for another process that is writing."""
SYNCHRONOUS = "FULL"
"""SQLite's setting by which a transaction is on disk when it returns."""
HEARD_SECONDS = 10.0
"""Seconds between two notes of when a member was heard."""
SILENT_SECONDS = 3 * HEARD_SECONDS
TRIES, TRY_SECONDS = 10, 0.1
"""Tries to become the folder's agent, and seconds between them."""
_COLUMNS = (
    "name, state, line, created, since, port, attempt, ledger, outcome, reason, closed, offer, "
    "after, waited, deaths, trace"
)
_STANDING = "job, member, state, line, attempt"
_CHECKED = {"jobs": (("name",), _COLUMNS), "standings": (("job", "member"), _STANDING)}
"""Tables whose rows have digests → keys and columns.

SQLite itself finds pages that do not fit together, but no value that a disk changed: triggers give
each written row the digest of its columns.
"""
_DIGEST = "digest TEXT NOT NULL DEFAULT ''"
_SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE jobs (
    name TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    line TEXT NOT NULL,            -- why, in a line
    created REAL NOT NULL,         -- seconds since 1970, UTC
    since REAL NOT NULL,           -- of the state
    port INTEGER NOT NULL,         -- of the running job; 0: none yet
    attempt INTEGER NOT NULL,      -- which the processes belong to, from 1
    ledger TEXT NOT NULL,          -- that the job is charged to; empty: none that jobs share
    outcome TEXT NOT NULL,         -- of this party's process in that attempt; empty: none yet
    reason TEXT NOT NULL,          -- the outcome's line
    closed INTEGER NOT NULL,       -- at a member: the label holder knows the end
    offer BLOB NOT NULL,           -- what all parties know of it
    after TEXT NOT NULL,           -- at the label holder: the job that it comes after; empty: none
    waited REAL NOT NULL,          -- seconds that it was offered while an agent ran, by its clock
    deaths INTEGER NOT NULL,       -- of this party's process on end, without getting on
    trace TEXT NOT NULL,           -- what the process had left at the last of them
    {_DIGEST}
);
CREATE TABLE standings (           -- at the label holder: what each member said last
    job TEXT, member TEXT, state TEXT NOT NULL, line TEXT NOT NULL, attempt INTEGER NOT NULL,
    {_DIGEST},
    PRIMARY KEY (job, member)
) WITHOUT ROWID;
CREATE TABLE peers (               -- at the label holder
    member TEXT PRIMARY KEY, heard REAL NOT NULL, words TEXT NOT NULL  -- why it was refused
) WITHOUT ROWID;
CREATE TABLE events (time REAL NOT NULL, job TEXT NOT NULL, words TEXT NOT NULL);
CREATE TABLE ports (port INTEGER UNIQUE NOT NULL);  -- that jobs had, in the order of last use
"""


@dataclass(frozen=True)
class Job:
    """A job as it was when it was read; the schema above explains its fields."""

    name: str
    state: State
    line: str
    created: float
    since: float
    port: int
    attempt: int
    ledger: str
    outcome: str
    """How this party's process of this attempt ended: finished, failed or broken; or empty."""
    reason: str
    closed: bool
    offer: Offer
    after: str
    waited: float
    deaths: int
    trace: str

    @property
    def is_over(self) -> bool:
        """Whether its state is an end."""
        return self.state in ENDS


class Store:
    """Reads and writes the jobs of a folder; every call is a transaction of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "jobs.sqlite"
        self._is_checked = False

    def create(self) -> None:
        """Make the folder and the file, if they are missing; RunError if it cannot."""
        with checkpoint.writing(self.folder):
            (self.folder / "jobs").mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            was_there = self.path.exists()
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        with self._open() as database:
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                if was_there and any((self.folder / "jobs").iterdir()):
                    raise self._damaged("it is empty")
                database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {_triggers()} COMMIT;")

    def folder_of(self, job: str) -> Path:
        """The folder of a job's files."""
        return self.folder / "jobs" / job

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the folder's only agent inside; RunError if there is another one."""
        system.require_locks("an agent's folder")
        for left in reversed(range(TRIES)):
            with self._lock() as is_ours:
                if is_ours:
                    yield
                    return
            if left:  # a command may only be looking whether there is an agent
                time.sleep(TRY_SECONDS)
        raise RunError(f"{self.folder} is in use by another agent; end it first")

    @property
    def is_in_use(self) -> bool:
        """Whether an agent runs on this folder."""
        if not self.path.is_file():
            return False
        with self._lock() as is_ours:
            return not is_ours

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        with checkpoint.telling(f"{self.folder} cannot be used"):
            flags = os.O_CREAT | os.O_RDWR | system.CLOSED_ON_EXEC
            handle = os.open(self.folder / "agent.lock", flags, 0o600)
        try:
            try:
                system.lock(handle, wait=False)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)

    # What is known.

    def jobs(self) -> list[Job]:
        """All jobs, oldest first."""
        return self._jobs()

    def open_jobs(self) -> list[Job]:
        """The jobs that are not over, oldest first."""
        return self._jobs(f"WHERE state NOT IN ({', '.join('?' * len(ENDS))})", *ENDS)

    def unclosed(self) -> list[Job]:
        """At a member: the jobs that the label holder does not know to be over."""
        return self._jobs("WHERE closed = 0")

    def job(self, name: str) -> Job | None:
        """The job of that name; None if there is none."""
        return next(iter(self._jobs("WHERE name = ?", name)), None)

    def _jobs(self, where: str = "", *values: str) -> list[Job]:
        with self._open() as database:
            wanted = f"SELECT {_COLUMNS} FROM jobs {where} ORDER BY rowid"
            return [_job(row) for row in database.execute(wanted, values)]

    def standings(self, job: str) -> dict[str, Standing]:
        """Member → its last word on a job."""
        with self._open() as database:
            wanted = "SELECT member, job, state, attempt, line FROM standings WHERE job = ?"
            return {row[0]: Standing(*row[1:]) for row in database.execute(wanted, (job,))}

    def unfinished(self, job: Job) -> list[tuple[str, State | None]]:
        """The jobs that ``job`` comes after and that have not finished, with their states.

        None stands for a job that is not known here; at a member it may be one of other parties.
        """
        names = dict.fromkeys((job.offer.alignment, job.offer.model, job.after))
        known = {name: self.job(name) for name in names if name}
        states = {name: None if one is None else one.state for name, one in known.items()}
        return [(name, state) for name, state in states.items() if state != "finished"]

    def whereabouts(self, job: Job) -> dict[str, str]:
        """Member → the state of a job there in words, as far as the label holder knows."""
        standings = self.standings(job.name)
        with self._open() as database:
            rows = database.execute("SELECT member, heard, words FROM peers")
            heard = {member: (time.time() - then, words) for member, then, words in rows}
        found = {}
        for member in job.offer.members:
            silent, words = heard.get(member, (None, ""))
            standing = standings.get(member)
            said = "has not answered" if standing is None else standing.words
            if silent is None:
                said = "is not connected"
            elif words:
                said = f"was refused: {words}"
            elif silent > SILENT_SECONDS and not job.is_over:
                said = f"is silent for {silent:.0f} s (before: {said})"
            found[member] = said
        return found

    def events(self, job: str) -> list[tuple[float, str]]:
        """The events of a job: (time, words), in order."""
        with self._open() as database:
            wanted = "SELECT time, words FROM events WHERE job = ? ORDER BY rowid"
            return [(row[0], row[1]) for row in database.execute(wanted, (job,))]

    def used_ports(self) -> list[int]:
        """The ports that jobs ever had, in the order of their last use."""
        with self._open() as database:
            return [row[0] for row in database.execute("SELECT port FROM ports ORDER BY rowid")]

    # What changes.

    def add(self, offer: Offer, state: State, ledger: str = "", after: str = "") -> None:
        """Add a new job; RunError if there is one of that name."""
        now, offered = time.time(), messages.encode_offer(offer)
        row = (offer.job, state, "", now, now, 0, 1, ledger, "", "", 0, offered, after, 0.0, 0, "")
        with self._writing() as database:
            try:
                places = ", ".join("?" * len(row))
                database.execute(f"INSERT INTO jobs ({_COLUMNS}) VALUES ({places})", row)
            except sqlite3.IntegrityError:
                raise RunError(
                    f"there is a job {offer.job!r} already; name another one as job.name"
                ) from None
            _note(database, offer.job, state, "")

    def move(self, job: str, state: State, line: str = "") -> bool:
        """Change a job's state if `states` allows it; return whether it did."""
        allowed = before(state)
        with self._writing() as database:
            done = database.execute(
                "UPDATE jobs SET state = ?, line = ?, since = ? WHERE name = ? AND state IN "
                f"({', '.join('?' * len(allowed))})",
                (state, line, time.time(), job, *allowed),
            )
            if done.rowcount:
                _note(database, job, state, line)
            return bool(done.rowcount)

    def assign(self, job: str, port: int, attempt: int) -> None:
        """Set port and attempt of a job whose processes begin, and clear its outcome."""
        self._write(
            "UPDATE jobs SET port = ?, attempt = ?, outcome = '', reason = '' WHERE name = ? "
            "AND (port, attempt) != (?, ?)",
            *(port, attempt, job, port, attempt),
        )

    def use_port(self, port: int) -> None:
        """Note that a job gets this port."""
        self._write("INSERT OR REPLACE INTO ports VALUES (?)", port)

    def conclude(self, job: str, attempt: int, outcome: str, reason: str = "") -> None:
        """Set the outcome of this party's process of an attempt."""
        wanted = "UPDATE jobs SET outcome = ?, reason = ? WHERE name = ? AND attempt = ?"
        self._write(wanted, outcome, reason, job, attempt)

    def wait(self, job: str, seconds: float) -> None:
        """Set the seconds that a job was offered so far."""
        self._write("UPDATE jobs SET waited = ? WHERE name = ?", seconds, job)

    def die(self, job: str, trace: str) -> int:
        """Count a death of this party's process; return how many in a row left this ``trace``."""
        with self._writing() as database:
            database.execute(
                "UPDATE jobs SET deaths = CASE trace WHEN ? THEN deaths + 1 ELSE 1 END, trace = ? "
                "WHERE name = ?",
                (trace, trace, job),
            )
            row = database.execute("SELECT deaths FROM jobs WHERE name = ?", (job,)).fetchone()
            return int(row[0])

    def close(self, job: str) -> None:
        """Note that the label holder knows that a job is over here."""
        self._write("UPDATE jobs SET closed = 1 WHERE name = ?", job)

    def stand(self, member: str, standing: Standing) -> bool:
        """Keep a member's word on a job; return whether it is new."""
        job = standing.job
        if self.standings(job).get(member) == standing:
            return False
        with self._writing() as database:
            row = (job, member, standing.state, standing.line, standing.attempt)
            wanted = f"INSERT OR REPLACE INTO standings ({_STANDING}) VALUES (?, ?, ?, ?, ?)"
            database.execute(wanted, row)
            _note(database, job, f"{member}: {standing.state}", standing.line)
        return True

    def hear(self, member: str, words: str = "") -> None:
        """Note that a member's agent was heard now; ``words`` say why it was refused, if it was."""
        self._write("INSERT OR REPLACE INTO peers VALUES (?, ?, ?)", member, time.time(), words)

    def note(self, job: str, words: str) -> None:
        """Add an event of a job."""
        with self._writing() as database:
            _note(database, job, words, "")

    def _write(self, statement: str, *values: Any) -> None:
        with self._writing() as database:
            database.execute(statement, values)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.rollback()
                raise
            database.commit()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise RunError(f"{self.folder} holds no jobs; `vertizo agent` makes the folder")
        try:
            with closing(sqlite3.connect(self.path, WAIT_SECONDS, isolation_level=None)) as opened:
                opened.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
                opened.create_function("digest_of", -1, _digest_of, deterministic=True)
                if not self._is_checked:
                    self._check(opened)
                yield opened
        except sqlite3.Error as error:
            raise RunError(f"{self.path} cannot be used: {error}") from None

    def _check(self, database: sqlite3.Connection) -> None:
        """Raise RunError unless the file has this version, and pages and rows as written."""
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise RunError(
                f"{self.path} is of version {version} and this is version {VERSION}; let all jobs "
                "end under the version that began them, then name a new agent.folder"
            )
        if not version:
            return
        (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise self._damaged(found)
        for table, (_, columns) in _CHECKED.items():
            for *row, digest in database.execute(f"SELECT {columns}, digest FROM {table}"):
                if _digest_of(*row) != digest:
                    raise self._damaged(f"the row of {row[0]!r} is not what was written")
        self._is_checked = True

    def _damaged(self, what: str) -> RunError:
        return RunError(f"{self.path} is damaged: {what}; put a copy of it back")


def _triggers() -> str:
    """SQL of the triggers that give each written row its digest."""
    found = []
    for table, (keys, columns) in _CHECKED.items():
        new = ", ".join(f"NEW.{column}" for column in columns.split(", "))
        same = " AND ".join(f"{key} = NEW.{key}" for key in keys)
        done = f"BEGIN UPDATE {table} SET digest = digest_of({new}) WHERE {same}; END;"
        for event in ("INSERT", "UPDATE"):
            found.append(f"CREATE TRIGGER {table}_{event} AFTER {event} ON {table} {done}")
    return "".join(found)


def _digest_of(*values: Any) -> str:
    return sha256(repr(values).encode()).hexdigest()


def _job(row: tuple[Any, ...]) -> Job:
    known = dict(zip(_COLUMNS.split(", "), row, strict=True))
    known["closed"] = bool(known["closed"])
    return Job(**{**known, "offer": messages.decode_offer(known["offer"])})


def _note(database: sqlite3.Connection, job: str, words: str, line: str) -> None:
    told = f"{words}: {line}" if line else words
    database.execute("INSERT INTO events VALUES (?, ?, ?)", (time.time(), job, told))
