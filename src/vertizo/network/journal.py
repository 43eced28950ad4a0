"""What a party was told since its last checkpoint: written before it acts on it.

Parties are deterministic: from a checkpoint and the frames that came after it, in their order, a
process that was killed computes the very state it had. So nothing is lost by a kill, and a frame
costs one write in place. What the operating system had not put on the disk yet when the power
failed is lost, unless ``sync`` is on; what is torn does not count.

A record is its length, a checksum, a kind, and its bytes; zeros follow the last one. A file is used
for one segment of a journal after another, which is faster than a new one. What is left of earlier
records is never read: the zeros are written with each record, and what a member sent cannot pass
for a record of another's.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from vertizo.run.checkpoint import reading, writing

RECORD = struct.Struct("<IIB")
NOTHING = bytes(RECORD.size)


class Journal:
    """One segment, begun anew.

    Args:
        path: of the file; made if it is not there.
        segment: its number, which no earlier segment in this file has.
        sync: whether each record is on the disk when `append` returns.

    Raises:
        RunError: it cannot be written.
    """

    def __init__(self, path: Path, segment: int, *, sync: bool = False) -> None:
        self.path = path
        self.size = 0
        """Bytes of its records."""
        self._segment = segment
        self._sync = sync
        self._before = 0
        with writing(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            self._mark_end(0)

    def append(self, kind: int, body: bytes) -> None:
        """Write one record; `undo` takes it back.

        Raises:
            RunError: it could not be written whole; nothing of it counts.
        """
        header = RECORD.pack(len(body), _checksum(body, kind, self._segment), kind)
        with writing(self.path):
            try:
                write_whole(self._file, (header, body, NOTHING), self.size, sync=self._sync)
            except OSError:
                with suppress(OSError):  # what is torn does not count anyway
                    self._mark_end(self.size)
                raise
        self._before = self.size
        self.size += RECORD.size + len(body)

    def undo(self) -> None:
        """Take back the last record.

        Raises:
            RunError: it could not be taken back.
        """
        self.size = self._before
        with writing(self.path):
            self._mark_end(self.size)

    def _mark_end(self, place: int) -> None:
        """What comes after does not count; a file that is only zeros from there is as good."""
        os.pwrite(self._file, NOTHING, place)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def records(path: Path, segment: int) -> Iterator[tuple[int, bytes]]:
    """The kinds and bodies of a segment's whole records, in order.

    Raises:
        RunError: they cannot be read.
    """
    if not path.exists():
        return
    with reading(path), path.open("rb") as file:
        while len(header := file.read(RECORD.size)) == RECORD.size and header != NOTHING:
            length, checksum, kind = RECORD.unpack(header)
            body = file.read(length)
            if len(body) != length or _checksum(body, kind, segment) != checksum:
                return
            yield kind, body


def write_whole(file: int, parts: Sequence[bytes], place: int, *, sync: bool) -> None:
    """Write all parts, or raise OSError."""
    written = os.pwritev(file, parts, place)
    if written != sum(map(len, parts)):  # as on a disk that is full
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if sync:
        os.fdatasync(file)


def _checksum(body: bytes, kind: int, segment: int) -> int:
    return zlib.crc32(body, (segment << 8 | kind) & 0xFFFFFFFF)
