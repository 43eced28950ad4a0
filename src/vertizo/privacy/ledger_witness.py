"""What is kept apart from ledgers, in the user's state folder: witnesses, and whom they are for.

A `Witness` notes how far its ledger had come. Whoever puts back a folder from last week's backup
puts back last week's spending; the witness, which lies elsewhere, shows it. It is made with the
ledger. Where there is none, somebody must vouch for the ledger. It is written after the entry is on
disk: a witness that lags behind its ledger is what a crash leaves, and moves on; a ledger that lags
behind its witness was rolled back. The file is text: a line that says what it is, and two lines
with an entry each, written in turn, in place. A write that a power cut tears spoils the older one.

The `Register` knows which records which ledger is for, so that nobody gets a second budget
unnoticed. A ledger's file in it has a line of JSON, which says where the ledger is and what it
states, and then a keyed digest of each record's key, ascending; a second file has the digests of
all that the label holder has in each record's row. The digests' own key, ``secret.key``, lies
beside them. Whoever reads the whole folder can test whether a record that they know is in a
ledger; the files without ``secret.key`` tell how many records there are, and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vertizo.core.errors import RunError
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.events import LedgerBudget

Digests = np.ndarray[Any, np.dtype[np.uint64]]

KEY_BYTES = 32
DIGEST_BYTES = 8
"""Of a record. Of 33 million records and as many others, two are taken for one with probability
10⁻⁴, which refuses a ledger that could have been made."""
FURTHER = "which adds to it: `vertizo privacy ledger create FILE CONFIG --further`"


class Head(NamedTuple):
    """Where a ledger's log ends: its last entry's number, and its chain's value there, 32 bytes."""

    sequence: int
    chain: bytes


class DamagedWitness(RunError):  # noqa: N818 - a kind of RunError
    """A witness that cannot be read, and so tells nothing."""


class Witness:
    """The note that belongs to the ledger of one identity, after which its file is named.

    It lies in ``folder``, None for the user's state folder. RunError of every method: it cannot be
    used.
    """

    def __init__(self, identity: str, folder: Path | None = None) -> None:
        self.path = (folder if folder is not None else state_folder()) / identity
        self._title = f"vertizo ledger witness 1 {identity}\n".encode()
        self._handle = -1
        self._slot = 0

    def check_apart(self, ledger: Path) -> None:
        """Raise RunError if the witness would lie beside the ledger, and be put back with it."""
        if self.path.parent.resolve() == ledger.parent.resolve():
            raise RunError(
                f"{self.path.parent} holds the ledger; its witness must be kept in another folder, "
                "which is not put back together with it"
            )

    def create(self, head: Head) -> None:
        """Write a new one, through to the disk: it must still be there after a power cut."""
        with self._reported("written"):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.path, self._title + 2 * self._line(head))

    def open(self) -> Head | None:
        """Read it, and hold it: a second copy of the ledger is not used meanwhile.

        None if there is no file. DamagedWitness: it is no witness of this ledger.
        """
        with self._reported("opened"):
            try:
                self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"a copy of this ledger is in use by another process, which holds {self.path}"
                ) from None
            content = os.pread(self._handle, 4096, 0)
        start, size = len(self._title), len(self._line(Head(0, bytes(32))))
        heads = [self._parsed(content[start + slot * size :][:size]) for slot in (0, 1)]
        found = [head for head in heads if head is not None]
        if not content.startswith(self._title) or not found:
            raise DamagedWitness(f"{self.path} is damaged: it is no witness of this ledger")
        newest = max(found, key=lambda head: head.sequence)
        self._slot = 1 - heads.index(newest)
        return newest

    def write(self, head: Head) -> None:
        """Move on. Not forced to the disk: it may lag, never lead."""
        line = self._line(head)
        with self._reported("written"):
            written = os.pwrite(self._handle, line, len(self._title) + self._slot * len(line))
            if written != len(line):
                raise OSError(0, "the disk is full")
        self._slot = 1 - self._slot

    def close(self) -> None:
        """Let go of it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _line(self, head: Head) -> bytes:
        text = f"{head.sequence:019d} {head.chain.hex()}"
        return f"{text} {self._check(text)}\n".encode()

    def _parsed(self, line: bytes) -> Head | None:
        try:
            text, _, check = line.decode("ascii").rstrip("\n").rpartition(" ")
            sequence, chain = text.split(" ")
            head = Head(int(sequence), bytes.fromhex(chain))
        except ValueError:
            return None
        return head if check == self._check(text) else None

    def _check(self, text: str) -> str:
        return blake2b(self._title + text.encode(), digest_size=8).hexdigest()

    def _reported(self, done: str) -> Any:
        return reported("the ledger's witness", self.path, done)


class Names(NamedTuple):
    """What tells records apart, in the order of their numbers."""

    keys: Sequence[str]
    contents: Sequence[str] = ()
    """All that the label holder has in each one's row, as text; nothing where it is not known."""


@dataclass(frozen=True)
class Registered:
    """A ledger that the register knows.

    ``ledger`` is where its file was when it was used last, ``name`` that of its records, ``order``
    the digest of the records in the order of their numbers, hex. ``keys`` and ``rows`` are digests
    of keys and of rows' contents, ascending; no rows where they are not known.
    """

    identity: str
    ledger: str
    name: str
    epsilon: float
    delta: float
    order: str
    keys: Digests = field(compare=False, repr=False)
    rows: Digests = field(compare=False, repr=False)

    @property
    def states(self) -> str:
        """Its budget in words."""
        return f"ε = {bound_text(self.epsilon, 6)} at δ = {self.delta:g}"

    def overlaps(self, other: Registered) -> bool:
        """Whether both are for some record, by its key or by all that is in its row."""
        pairs = (self.keys, other.keys), (self.rows, other.rows)
        return any(len(np.intersect1d(ours, theirs)) for ours, theirs in pairs)


class Register:
    """The ledgers that were made or used in one state folder.

    Records are told apart by their keys and, where ``contents`` are given, by the whole rows: the
    same people under another column of identifiers are then still found. RunError of every method:
    the folder (``witness_folder`` as of `Witness`) or a file in it cannot be used, or is damaged.
    """

    def __init__(self, witness_folder: Path | None = None) -> None:
        self._witnesses = witness_folder
        self._folder = (state_folder() if witness_folder is None else witness_folder) / "records"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else looks a record up or registers one inside."""
        with self._reported("used"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            with self._reported("used"):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def check_free(self, who: Names) -> None:
        """Raise RunError if some ledger is for any of these records, and say what to do."""
        ours = np.unique(self._digests(who.keys))
        rows, times = np.unique(self._digests(who.contents), return_counts=True)
        for known in self._all():
            shared = len(np.intersect1d(known.keys, ours))
            if shared:
                raise RunError(
                    f"{shared} of {len(ours)} records are charged to the ledger {known.ledger} "
                    f"already ({known.states}); set privacy.ledger to that file, or state an ε "
                    f"beside it, {FURTHER}"
                )
            equal = times[np.isin(rows, known.rows)]
            if len(equal):
                raise RunError(
                    f"{equal.sum()} of {times.sum()} rows have, in every column, the values of "
                    f"records that are charged to the ledger {known.ledger} already "
                    f"({known.states}), under other identifiers; {(equal == 1).sum()} of them are "
                    "here only once. Probably they are the same people, though different people "
                    "can have equal rows. If they are, take data.id from there and set "
                    "privacy.ledger to that file; if not, or to grant them more, state an ε beside "
                    f"it, {FURTHER}"
                )

    def add(self, identity: str, path: Path, budget: LedgerBudget, who: Names) -> None:
        """Register a ledger for these records; RunError if it cannot be written."""
        keys, rows = self._digests(who.keys), self._digests(who.contents)
        about: dict[str, Any] = {"ledger": str(path.absolute()), "name": budget.name}
        about |= {"epsilon": budget.epsilon, "delta": budget.delta, "order": _order(keys)}
        head = json.dumps(about, ensure_ascii=False).encode() + b"\n"
        with self._reported("written"):
            if len(rows):
                write_whole(self._folder / f"{identity}.rows", np.unique(rows).tobytes())
            write_whole(self._folder / identity, head + np.unique(keys).tobytes())

    def claim(
        self, identity: str, path: Path, budget: LedgerBudget, who: Names
    ) -> tuple[Registered, ...]:
        """Find that a ledger is for these records; one that is not registered here is now.

        Returns the other ledgers that are for some of them as well. RunError: it is for other
        records, or it is new here and others are for some of them.
        """
        known = self._read(identity)
        if known is None:
            self.check_free(who)
        elif known.order != _order(self._digests(who.keys)):
            raise RunError(
                f"the ledger {path} is for {len(known.keys)} records of other keys, or in "
                f"another order, than this run's {len(who.keys)}; its records are those of "
                f"{known.name}; use the file and the data.id that it was made with"
            )
        if (
            known is None
            or known.ledger != str(path.absolute())
            or (who.contents and not len(known.rows))
        ):
            self.add(identity, path, budget, who)
        return self.beside(identity)

    def beside(self, identity: str) -> tuple[Registered, ...]:
        """The other ledgers that are for some records of this one; none if it is not known."""
        known = self._read(identity)
        if known is None:
            return ()
        return tuple(o for o in self._all() if o.identity != identity and o.overlaps(known))

    def forget_unused(self) -> None:
        """Forget ledgers whose file is gone and that were charged nothing."""
        for known in self._all():
            if Path(known.ledger).exists():
                continue
            witness = Witness(known.identity, self._witnesses)
            try:
                head = witness.open()
            finally:
                witness.close()
            if head is not None and head.sequence <= 1:  # it names a run
                with self._reported("written"):
                    (self._folder / known.identity).unlink()
                    (self._folder / f"{known.identity}.rows").unlink(missing_ok=True)

    def _all(self) -> list[Registered]:
        with self._reported("read"):
            found = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        known = (self._read(path.name) for path in found if len(path.name) == 32)
        return [one for one in known if one is not None]

    def _read(self, identity: str) -> Registered | None:
        path, rows = self._folder / identity, self._folder / f"{identity}.rows"
        with self._reported("read"):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
            contents = rows.read_bytes() if rows.exists() else b""
        head, _, rest = content.partition(b"\n")
        try:
            keys, known_rows = (np.frombuffer(part, "<u8") for part in (rest, contents))
            return Registered(identity, **json.loads(head), keys=keys, rows=known_rows)
        except (ValueError, TypeError):
            raise RunError(f"{path} is damaged: it does not say what a ledger is for") from None

    def _digests(self, texts: Iterable[str]) -> Digests:
        path = self._folder / "secret.key"
        with self._reported("used"):
            if not path.exists():
                write_whole(path, os.urandom(KEY_BYTES))
            key = path.read_bytes()
        if len(key) != KEY_BYTES:
            raise RunError(f"{path} has {len(key)} bytes; it must have the {KEY_BYTES} written")
        parts = (blake2b(t.encode(), key=key, digest_size=DIGEST_BYTES).digest() for t in texts)
        return np.frombuffer(b"".join(parts), "<u8")

    def _reported(self, done: str) -> Any:
        return reported("the register of ledgers", self._folder, done)


def _order(digests: Digests) -> str:
    return blake2b(digests.tobytes(), digest_size=32).hexdigest()


def state_folder() -> Path:
    """Where witnesses are kept unless somebody says otherwise."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        root = named if named.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        raise RunError("no home folder to keep a ledger's witness in; set XDG_STATE_HOME") from None
    return root / "vertizo" / "ledgers"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file for its owner's eyes, whole or not at all, through to the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the folder's list of names on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def reported(what: str, path: Path, done: str) -> Iterator[None]:
    """Make one line of what SQLite and the operating system complain of."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{what} {path} cannot be {done}: {error.strerror}") from None
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise RunError(f"{what} {path} is in use by another process") from None
        if code == sqlite3.SQLITE_NOTADB:
            raise RunError(f"{path} is no ledger of this package") from None
        words = " ".join(str(error).split())
        raise RunError(f"{what} {path} cannot be {done}: {words}") from None
    except UnicodeDecodeError:
        raise RunError(f"{what} {path} is damaged: text in it is none") from None
