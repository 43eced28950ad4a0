"""A party's state on disk: its secrets, a checkpoint, and a journal of what came after it.

Parties are deterministic: from a checkpoint and the frames that came after it, in their order, a
process that was killed computes the same state again. So a kill loses nothing, and a frame costs
one write in place, made before the party acts on it. A power cut loses what the operating system
had not yet put on the disk, unless ``sync`` is on; a record that is torn does not count.

A record of a journal is its length, a checksum, a kind, and its bytes; zeros follow the last one. A
file is used for one segment of the journal after another, which is faster than a new file. What is
left of earlier segments is never read: zeros are written behind each record, and checksums depend
on a salt, so that bytes which a member sent cannot pass for a record.

A store passes through these states::

    from      to        when
    empty     open      `save` writes the first checkpoint, and begins a journal
    on disk   loaded    `load` reads the checkpoint and the journal's records after it
    loaded    open      `save`, after those records were acted on: it begins another journal
    open      open      `append` adds a record; `undo` takes the last back; `save` begins the other
                        of two journals, and the former counts until the checkpoint is whole
    open      on disk   `close`, or a kill at any moment
    open      over      `clear` removes the journals: the last checkpoint has everything
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from vertizo.core import digests, kernels
from vertizo.core.errors import RunError
from vertizo.core.randomness import Stream
from vertizo.run.results import checkpoint
from vertizo.run.results.checkpoint import reading, writing

RECORD = struct.Struct("<IIB")
NOTHING = bytes(RECORD.size)
SLOT = struct.Struct("<II")
"""Header of a slot: length and checksum of its content."""
SOONEST = 0.25
"""Seconds of work below which no checkpoint is written: a restart repeats them as fast."""
SEARCHED = 2**18
"""Bytes searched behind a broken record: a whole one there means damage, not a torn end."""
SMALL, LARGEST = 32 * 2**20, 256 * 2**20
"""Limits of a journal's size, in bytes: as large as the last checkpoint, it is worth a new one."""


def root_of(folder: Path) -> Stream:
    """The root of a party's randomness: drawn by the operating system once, then kept on disk.

    RunError if the file cannot be read or written, or is not what was written.
    """
    path = folder / "secret.key"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            checkpoint.keep(path, Stream.from_os().key, 0o600)
        key = digests.content(path)
    except OSError as error:
        raise RunError(f"{path} cannot be used: {error.strerror}") from None
    if len(key) != 32:
        raise RunError(f"{path} has {len(key)} bytes; it must have the 32 that were written")
    return Stream(key)


class Journal:
    """Writes one segment of a journal, begun in a file without one of its number; or RunError.

    With ``sync`` each record is on the disk when `append` returns. Whoever does not know ``salt``
    cannot make bytes that pass for one of its records.
    """

    def __init__(self, path: Path, segment: int, *, salt: int = 0, sync: bool = False) -> None:
        self.path = path
        self.size = 0
        """Bytes of its records."""
        self._segment, self._salt = segment, salt
        self._sync = sync
        self._before = 0
        with writing(path):
            self._file = _open(path)
            self._mark_end(0)

    def append(self, kind: int, body: bytes) -> None:
        """Write one record, or raise RunError, and then nothing of it counts."""
        header = RECORD.pack(len(body), _checksum(body, kind, self._segment, self._salt), kind)
        with writing(self.path):
            try:
                _write_whole(self._file, (header, body, NOTHING), self.size, sync=self._sync)
            except OSError:
                with suppress(OSError):  # what is torn does not count anyway
                    self._mark_end(self.size)
                raise
        self._before = self.size
        self.size += RECORD.size + len(body)

    def undo(self) -> None:
        """Take back the last record, or raise RunError."""
        self.size = self._before
        with writing(self.path):
            self._mark_end(self.size)

    def _mark_end(self, place: int) -> None:
        """Write the zeros that end the records; what is behind them does not count."""
        os.pwrite(self._file, NOTHING, place)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def records(path: Path, segment: int, salt: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, body) of a segment's whole records, in order; RunError if it is damaged."""
    if not path.exists():
        return
    start = 0
    with reading(path), path.open("rb") as file:
        while len(header := file.read(RECORD.size)) == RECORD.size and header != NOTHING:
            length, checksum, kind = RECORD.unpack(header)
            body = file.read(length)
            if len(body) != length or _checksum(body, kind, segment, salt) != checksum:
                file.seek(start + 1)
                if _has_record(file.read(SEARCHED), segment, salt):
                    raise RunError(
                        f"{path} is damaged: a record is not what was written, and others follow; "
                        "put a copy of the whole folder back, or begin a new job"
                    )
                return
            start = file.tell()
            yield kind, body


def _has_record(content: bytes, segment: int, salt: int) -> bool:
    """Whether a whole record of a segment begins anywhere in ``content``."""
    for start in range(len(content) - RECORD.size):
        length, checksum, kind = RECORD.unpack_from(content, start)
        body = content[start + RECORD.size :][:length] if length < len(content) else b""
        if 0 < len(body) == length and _checksum(body, kind, segment, salt) == checksum:
            return True
    return False


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _write_whole(file: int, parts: Sequence[bytes], place: int, *, sync: bool) -> None:
    """Write all parts, or raise OSError."""
    written = os.pwritev(file, parts, place)
    if written != sum(map(len, parts)):  # as on a disk that is full
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if sync:
        os.fdatasync(file)


def _checksum(body: bytes, kind: int, segment: int, salt: int) -> int:
    return kernels.checksum(body, (segment << 8 | kind) & 0xFFFFFFFF ^ salt)


class Store:
    """Keeps a party's state so that a kill at any moment loses nothing.

    Only the owner may read its folder. With ``sync``, records survive a power cut as well; a later
    change of ``sync`` holds from the next `save`.
    """

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        self.sync = sync
        self._folder = folder / "checkpoints"
        self._checkpoint = self._folder / "last.safetensors"
        self._journal: Journal | None = None
        self._segment = 0
        self._work = self._cost = 0.0
        self._full = SMALL

    @property
    def exists(self) -> bool:
        """Whether a checkpoint was made."""
        return self._checkpoint.is_file()

    def load(self) -> tuple[Any, Iterator[tuple[int, bytes]]] | None:
        """The last checkpoint and the journal's records after it; None if none was made.

        The records are to be read before the next `save`. RunError if it cannot be read.
        """
        if not self.exists:
            return None
        state = checkpoint.load(self._checkpoint)
        with self.going_on():
            self._segment = int(state["segment"])
            salt = int(state.get("salt", 0))  # older versions had none
            return state["state"], records(self._journal_of(self._segment), self._segment, salt)

    def going_on(self) -> AbstractContextManager[None]:
        """Turn errors of restoring the last checkpoint into a RunError."""
        return checkpoint.going_on_from(self._checkpoint)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint and begin a new journal; on a RunError the last checkpoint counts."""
        started = time.perf_counter()
        following, salt = self._segment + 1, int.from_bytes(os.urandom(4))
        with writing(self._checkpoint):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.chmod(0o700)  # it may have been there
            path = self._journal_of(following)
            journal = Journal(path, following, salt=salt, sync=self.sync)
            kept = {"segment": following, "salt": salt, "state": state}
            checkpoint.save(self._checkpoint, kept)
            size = self._checkpoint.stat().st_size
        self.close()
        self._journal, self._segment = journal, following
        self._work, self._cost = 0.0, time.perf_counter() - started
        self._full = min(LARGEST, max(SMALL, size))

    def append(self, kind: int, body: bytes) -> None:
        """Write a record of what the party is about to be told, or raise RunError."""
        assert self._journal is not None, "a journal follows a checkpoint"
        self._journal.append(kind, body)

    def undo(self) -> None:
        """Take back the last record, which had no effect."""
        assert self._journal is not None, "a journal follows a checkpoint"
        self._journal.undo()

    def worked(self, seconds: float) -> bool:
        """Count work that a restart would repeat; return whether a checkpoint is worth its time."""
        self._work += seconds
        full = self._journal is not None and self._journal.size > self._full
        return full or self._work > max(SOONEST, self._cost / checkpoint.SHARE)

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def clear(self) -> None:
        """Remove journals of a job that is over: the last checkpoint has everything."""
        self.close()
        for path in map(self._journal_of, range(2)):
            with writing(path):
                path.unlink(missing_ok=True)

    def _journal_of(self, segment: int) -> Path:
        """The file of a segment, one of two: the last segment stays until a checkpoint is whole."""
        return self._folder / f"journal-{segment % 2}.log"


class Slot:
    """A file for the one open query; each is written over the last, to the disk if ``sync``."""

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self._path = path
        self._sync = sync
        self._file: int | None = None

    def put(self, frame: bytes) -> None:
        """Write the open query, or raise RunError."""
        with writing(self._path):
            if self._file is None:
                self._file = _open(self._path)
            header = SLOT.pack(len(frame), kernels.checksum(frame, 0))
            _write_whole(self._file, (header, frame), 0, sync=self._sync)

    def get(self) -> bytes | None:
        """Read the last query; None if it is not there whole, RunError if it cannot be read."""
        if not self._path.exists():
            return None
        with reading(self._path):
            content = self._path.read_bytes()
        if len(content) < SLOT.size:
            return None
        length, checksum = SLOT.unpack_from(content)
        frame = content[SLOT.size : SLOT.size + length]
        return frame if len(frame) == length and kernels.checksum(frame, 0) == checksum else None

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def clear(self) -> None:
        """Remove the file, once the job is over."""
        self.close()
        with writing(self._path):
            self._path.unlink(missing_ok=True)
