"""The log of a durable ledger on disk: how it is kept, added up, and checked when it is opened.

The file is SQLite, append-only, chained by hashes. Write-ahead logging with ``synchronous=FULL``: a
transaction is on disk when it returns. One process at a time has the file. Every row carries a hash
of itself and of the row before, back to a first value that covers the budget: a row that was
changed, left out or added is found when the file is next read. The hash has no key. Who can write
the file can forge all of it; a forged past is then found by the witness, a forged future is not.

Spending is always added up from the log when a ledger is opened, and then kept in step with it.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NoReturn

from vertizo.core import system
from vertizo.core import version as release
from vertizo.core.errors import ConfigError, RunError
from vertizo.privacy.accounting.events import LedgerBudget
from vertizo.privacy.ledger.base import REPLY, RUN, STEP, Row, Tally, digest
from vertizo.privacy.ledger.witness import DamagedWitness, Head, Witness, reported

APPLICATION = 0x565A4C47
"""``VZLG``, SQLite's application_id: what `file` and other tools know the file by."""
VERSION = 2
"""The file's format; version 1 had no times."""

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE ledger (identity TEXT NOT NULL, budget TEXT NOT NULL, chain BLOB NOT NULL);
CREATE TABLE log (
    sequence INTEGER PRIMARY KEY,  -- from 1, without gaps
    kind INTEGER NOT NULL,         -- {RUN}: a run begins, {REPLY}: a reply, {STEP}: a secret step
    run INTEGER NOT NULL,          -- the sequence of the run's first row
    client INTEGER NOT NULL,
    number INTEGER NOT NULL,       -- of the query or of the step, in its run
    cost INTEGER NOT NULL,         -- units of mu squared, for each record
    query BLOB NOT NULL,           -- BLAKE2b of its frame
    reply BLOB NOT NULL,           -- BLAKE2b of its frame
    body BLOB NOT NULL,            -- of a run its name; of a reply the record IDs, packed
    chain BLOB NOT NULL,
    time INTEGER NOT NULL DEFAULT 0  -- seconds since 1970, UTC; 0: written by version 1
);
CREATE TABLE reply (               -- the last reply to each client of each run
    run INTEGER, client INTEGER, frame BLOB NOT NULL, PRIMARY KEY (run, client)
) WITHOUT ROWID;
CREATE TRIGGER log_is_kept BEFORE DELETE ON log
    BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END;
CREATE TRIGGER log_is_not_changed BEFORE UPDATE ON log
    BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END;
"""


_COLUMNS = ", ".join(Row._fields)
_INSERT = (
    f"INSERT INTO log (sequence, chain, {_COLUMNS}) "
    f"VALUES ({', '.join('?' * (len(Row._fields) + 2))})"
)


def create(path: Path, budget: LedgerBudget, witness_folder: Path | None = None) -> str:
    """Make a ledger's file and its witness, or neither, and return the new ledger's identity.

    The witness is made before the file has its name: every copy of a ledger, however early, finds a
    witness on the machine that it comes from, and none is believed elsewhere.

    Raises:
        RunError: there is something of that name, or it cannot be made.
    """
    identity, text = secrets.token_hex(16), budget.to_json()
    first = _first(identity, text)
    witness = Witness(identity, witness_folder)
    witness.check_apart(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with reported("the ledger", path, "made"):
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with closing(sqlite3.connect(temporary, isolation_level=None)) as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = FULL")
                database.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
                database.execute("INSERT INTO ledger VALUES (?, ?, ?)", (identity, text, first))
            witness.create(Head(0, first))
            try:
                os.link(temporary, path)  # unlike a rename, never over another ledger
            except BaseException:
                witness.path.unlink()
                raise
            system.sync_folder(path.parent)
        except FileExistsError:
            raise RunError(
                f"{path} exists already; a ledger is made once for its records and then used"
            ) from None
        finally:
            for left in ("", "-wal", "-shm"):
                temporary.with_name(temporary.name + left).unlink(missing_ok=True)
    return identity


def _first(identity: str, budget: str) -> bytes:
    """The chain's value before any row."""
    return digest(f"{identity}\n{budget}".encode())


class LedgerFile:
    """A ledger's file, open and locked, with the sums of its log (`tally`) and its end (`head`).

    Raises:
        RunError: missing, in use, no ledger, of another version, not writable, or damaged.
    """

    head: Head
    tally: Tally

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            inside = sorted(file.name for file in path.glob("*.sqlite"))
            hint = f"; its ledger is {path / inside[0]}" if inside else ", and no ledger is in it"
            raise RunError(f"{path} is a folder{hint}")
        if not path.is_file():
            raise RunError(
                f"{path}: there is no such ledger; `vertizo privacy ledger create` makes one"
            )
        with ExitStack() as undo:
            with reported("the ledger", path, "opened"):
                where = path.absolute().as_uri() + "?mode=rw"
                self._db = sqlite3.connect(
                    where, uri=True, timeout=0, isolation_level=None, check_same_thread=False
                )
                undo.callback(self.close)
                self._lock()
            with reported("the ledger", path, "read"):
                self._read()
            undo.pop_all()

    def _lock(self) -> None:
        """Lock the file for this process, and read the budget that the ledger has."""
        run = self._db.execute
        run("PRAGMA locking_mode = EXCLUSIVE")  # before the first access: the lock is then kept
        (application,) = run("PRAGMA application_id").fetchone()
        (version,) = run("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise RunError(f"{self.path} is no ledger of this package")
        if version not in (1, VERSION):
            raise RunError(
                f"{self.path} has format {version}; this is vertizo {release.VERSION}, which reads "
                f"{VERSION}: use the version of vertizo that wrote it, or a newer one, and make no "
                "other ledger for the same records"
            )
        run("PRAGMA synchronous = FULL")
        run("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the disk there
        run("PRAGMA trusted_schema = OFF")
        run("BEGIN IMMEDIATE")
        if version == 1:
            run("ALTER TABLE log ADD COLUMN time INTEGER NOT NULL DEFAULT 0")
            run(f"PRAGMA user_version = {VERSION}")
        run("COMMIT")
        rows = run("SELECT identity, budget, chain FROM ledger").fetchall()
        try:
            ((identity, text, chain),) = rows
            if chain != _first(identity, text):
                raise ValueError
            self.tally = Tally(identity, LedgerBudget.from_json(text))
        except (ValueError, TypeError, KeyError, ConfigError):
            self.damaged("its budget is not the one that it was made with")
        self.head = self._start = Head(0, chain)

    def _read(self) -> None:
        """Add up all rows in order, each checked against the chain."""
        tally, head = self.tally, self.head
        query = f"SELECT sequence, chain, {_COLUMNS} FROM log ORDER BY sequence"
        for sequence, chain, *values in self._db.execute(query):
            row = Row._make(values)
            try:
                following = Head(head.sequence + 1, row.link(head.chain))
            except (struct.error, TypeError):
                self.damaged(f"entry {sequence} has values of other types")
            if Head(sequence, chain) != following:
                self.damaged(f"entry {sequence} does not follow from entry {head.sequence}")
            head = following
            try:
                tally.note(sequence, row)
                if row.kind == REPLY:
                    tally.charge(row)
            except (ValueError, TypeError) as error:
                self.damaged(str(error))
        if tally.left < 0 or tally.charged.min() < 0:
            self.damaged("a record is charged more than a client's share")
        self.head = head

    def holds(self, head: Head) -> bool:
        """Whether the log ends at ``head`` now, or did so once."""
        with reported("the ledger", self.path, "read"):
            query = "SELECT chain FROM log WHERE sequence = ?"
            found = self._db.execute(query, (head.sequence,)).fetchone()
        return head == self._start or found == (head.chain,)

    def row(self, sequence: int) -> Row:
        """The row of that sequence."""
        with reported("the ledger", self.path, "read"):
            query = f"SELECT {_COLUMNS} FROM log WHERE sequence = ?"
            return Row._make(self._db.execute(query, (sequence,)).fetchone())

    def reply_of(self, row: Row) -> bytes:
        """The frame, as it left, of the reply that ``row`` records: a run's last to a client."""
        with reported("the ledger", self.path, "read"):
            query = "SELECT frame FROM reply WHERE run = ? AND client = ?"
            (frame,) = self._db.execute(query, (row.run, row.client)).fetchone() or (None,)
        if not isinstance(frame, bytes) or digest(frame) != row.reply:
            self.damaged(
                f"the reply to query {row.number} of client {row.client} is not the one kept"
            )
        return frame

    def append(self, rows: Sequence[Row], frames: Mapping[tuple[int, int], bytes]) -> None:
        """Add rows and replace frames, all or nothing; on disk when it returns.

        Raises:
            RunError: it failed, or nobody knows whether it did: open the file again to see.
        """
        head, values, now = self.head, [], int(time.time())
        rows = [row._replace(time=now) for row in rows]
        for row in rows:
            head = Head(head.sequence + 1, row.link(head.chain))
            values.append((head.sequence, head.chain, *row))
        replies = [(*key, frame) for key, frame in frames.items()]
        with reported("the ledger", self.path, "written"):
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(_INSERT, values)
            self._db.executemany("INSERT OR REPLACE INTO reply VALUES (?, ?, ?)", replies)
            self._db.execute("COMMIT")
        for sequence, row in enumerate(rows, self.head.sequence + 1):
            self.tally.note(sequence, row)
        self.head = head

    def damaged(self, what: str) -> NoReturn:
        """Raise RunError for a damaged ledger."""
        raise RunError(f"the ledger {self.path} is damaged: {what}")

    def close(self) -> None:
        """Close the file; what was not committed is undone."""
        self._db.close()


@contextmanager
def opened(
    path: Path, witness_folder: Path | None, *, accept: bool
) -> Iterator[tuple[LedgerFile, Witness]]:
    """Open and lock a ledger's file and its witness, which must agree.

    Both are closed after an error inside, and always with ``accept``, which makes a missing or
    damaged witness anew. RunError: see `DurableLedger.open`.
    """
    with ExitStack() as stack:
        file = LedgerFile(path)
        stack.callback(file.close)
        witness, witnessed = Witness(file.tally.identity, witness_folder), None
        stack.callback(witness.close)
        witness.check_apart(path)
        try:
            witnessed = witness.open()
        except DamagedWitness:
            if not accept:
                raise
            witness.close()
        if witnessed is None and not accept:
            raise RunError(
                f"the ledger {path} has no witness {witness.path}; if it was moved here, is the "
                "newest copy and the only one in use, accept it: `vertizo privacy ledger accept "
                f"{path}`"
            )
        if witnessed is None:
            witness.create(file.head)
            witness.open()
        elif file.head.sequence < witnessed.sequence:
            raise RunError(
                f"{path} is an older copy of a ledger: it ends with entry {file.head.sequence}, "
                f"and entry {witnessed.sequence} was written here; put the newest one back"
            )
        elif not file.holds(witnessed):
            raise RunError(
                f"{path} is another copy than the one that was used here last: its entry "
                f"{witnessed.sequence} is not the one that {witness.path} tells of"
            )
        elif file.head != witnessed:
            witness.write(file.head)
        yield file, witness
        if not accept:
            stack.pop_all()
