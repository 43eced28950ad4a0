"""The witness of a ledger: a note, kept apart from it, of how far its log had come.

Whoever puts back a folder from last week's backup puts back last week's spending; the witness,
which lies elsewhere, shows it. It is made with the ledger. Where there is none, somebody must vouch
for the ledger. It is written after the entry is on disk: a witness that lags behind its ledger is
what a crash leaves, and moves on; a ledger that lags behind its witness was rolled back. The file
is text: a line that says what it is, and two lines with an entry each, written in turn, in place. A
write that a power cut tears spoils the older one.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from vertizo.core import system
from vertizo.core.errors import RunError


class Head(NamedTuple):
    """Where a ledger's log ends: its last entry's number, and its chain's value there, 32 bytes."""

    sequence: int
    chain: bytes


class DamagedWitness(RunError):  # noqa: N818 - a kind of RunError
    """A witness that cannot be read, and so tells nothing."""


class Witness:
    """The witness of one ledger, whose identity names its file.

    It lies in ``folder``, None for the user's state folder. Every method raises RunError if it
    cannot be used.
    """

    def __init__(self, identity: str, folder: Path | None = None) -> None:
        self.path = (folder if folder is not None else state_folder()) / identity
        self._title = f"vertizo ledger witness 1 {identity}\n".encode()
        self._handle = -1
        self._slot = 0

    def check_apart(self, ledger: Path) -> None:
        """Raise RunError if the witness would lie in the ledger's folder.

        Whoever puts a backup of that folder back would put an old witness back with an old ledger,
        and nothing would tell.
        """
        if self.path.parent.resolve() == ledger.parent.resolve():
            raise RunError(
                f"{self.path.parent} holds the ledger; its witness must be kept in another folder, "
                "which is not put back together with it"
            )

    def create(self, head: Head) -> None:
        """Write a new witness, through to the disk: it must still be there after a power cut."""
        system.require_locks("a ledger")
        with self._reported("written"):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.path, self._title + 2 * self._line(head))

    def open(self) -> Head | None:
        """Read the witness and lock it, so that no second copy of the ledger is used meanwhile.

        None if there is no file. DamagedWitness: it is no witness of this ledger.
        """
        system.require_locks("a ledger")
        with self._reported("opened"):
            try:
                self._handle = os.open(self.path, os.O_RDWR | system.CLOSED_ON_EXEC)
            except FileNotFoundError:
                return None
            try:
                system.lock(self._handle, wait=False)
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
        """Write the log's new end; not forced to the disk, since a witness may lag, never lead."""
        line = self._line(head)
        with self._reported("written"):
            written = os.pwrite(self._handle, line, len(self._title) + self._slot * len(line))
            if written != len(line):
                raise OSError(0, "the disk is full")
        self._slot = 1 - self._slot

    def close(self) -> None:
        """Close the file, which unlocks it."""
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


def state_folder() -> Path:
    """The folder of witnesses unless another is named; RunError without a home folder."""
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
    system.sync_folder(path.parent)


@contextmanager
def reported(what: str, path: Path, done: str) -> Iterator[None]:
    """Turn errors of SQLite and the operating system into a RunError of one line."""
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
