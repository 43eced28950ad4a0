"""A party's memory on disk: a checkpoint, and a journal of what came after it."""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from vertizo.network.journal import Journal, records, write_whole
from vertizo.run import checkpoint
from vertizo.run.checkpoint import reading, writing

HEADER = struct.Struct("<II")
"""Length and checksum of what is in a slot."""
SHARE = 0.05
"""Of the time spent, at most, that checkpoints take."""
SOONEST = 0.25
"""Seconds of work that are never worth a checkpoint: a restart repeats them as fast."""
LARGEST = 256 * 2**20
"""Bytes of a journal that are worth one whatever they took to work on."""


class Store:
    """Keeps a party's state so that a kill at any moment loses nothing.

    Args:
        folder: of the party; nobody else may read it.
        sync: whether records survive a power cut as well.
    """

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        self._folder = folder / "checkpoints"
        self.sync = sync
        """Of the journals that are begun from now on."""
        self._journal: Journal | None = None
        self._segment = 0
        self._work = 0.0
        self._cost = 0.0

    @property
    def _checkpoint(self) -> Path:
        return self._folder / "last.safetensors"

    @property
    def exists(self) -> bool:
        """Whether a checkpoint was made."""
        return self._checkpoint.is_file()

    def load(self) -> tuple[Any, Iterator[tuple[int, bytes]]] | None:
        """The last checkpoint and the journal's records after it; None if none was made.

        The records are to be read before the next `save`.

        Raises:
            RunError: it cannot be read.
        """
        if not self.exists:
            return None
        state = checkpoint.load(self._checkpoint)
        with self.going_on():
            self._segment = int(state["segment"])
            return state["state"], records(self._journal_of(self._segment), self._segment)

    def going_on(self) -> AbstractContextManager[None]:
        """What does not fit in the last checkpoint ends what is inside in one line."""
        return checkpoint.going_on_from(self._checkpoint)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint; the journal starts anew.

        Raises:
            RunError: it cannot be written; the last one counts.
        """
        started = time.perf_counter()
        following = self._segment + 1
        with writing(self._checkpoint):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.chmod(0o700)  # it may have been there
            journal = Journal(self._journal_of(following), following, sync=self.sync)
            checkpoint.save(self._checkpoint, {"segment": following, "state": state})
        if self._journal is not None:
            self._journal.close()
        self._journal, self._segment = journal, following
        self._work, self._cost = 0.0, time.perf_counter() - started

    def append(self, kind: int, body: bytes) -> None:
        """Write down what the party is about to be told.

        Raises:
            RunError: it could not be written.
        """
        assert self._journal is not None, "a journal follows a checkpoint"
        self._journal.append(kind, body)

    def undo(self) -> None:
        """Take back the last record, of which nothing came."""
        assert self._journal is not None, "a journal follows a checkpoint"
        self._journal.undo()

    def worked(self, seconds: float) -> bool:
        """Count work that a restart would repeat; whether a checkpoint is worth its time by now."""
        self._work += seconds
        full = self._journal is not None and self._journal.size > LARGEST
        return full or self._work > max(SOONEST, self._cost / SHARE)

    def close(self) -> None:
        """Let go of the journal."""
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
        """One of two files: the last segment must stay while a checkpoint is written."""
        return self._folder / f"journal-{segment % 2}.log"


class Slot:
    """A file for the one query that is open: each is written over the last.

    Args:
        path: of the file.
        sync: whether a query is on the disk when `put` returns.
    """

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self._path = path
        self._sync = sync
        self._file: int | None = None

    def put(self, frame: bytes) -> None:
        """Keep this one.

        Raises:
            RunError: it could not be written.
        """
        with writing(self._path):
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            header = HEADER.pack(len(frame), zlib.crc32(frame))
            write_whole(self._file, (header, frame), 0, sync=self._sync)

    def get(self) -> bytes | None:
        """The last one; None if it is not there whole.

        Raises:
            RunError: it cannot be read.
        """
        if not self._path.exists():
            return None
        with reading(self._path):
            content = self._path.read_bytes()
        if len(content) < HEADER.size:
            return None
        length, checksum = HEADER.unpack_from(content)
        frame = content[HEADER.size : HEADER.size + length]
        return frame if len(frame) == length and zlib.crc32(frame) == checksum else None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def clear(self) -> None:
        """Remove the file, of a job that is over."""
        self.close()
        with writing(self._path):
            self._path.unlink(missing_ok=True)
