"""What a party was told since its last checkpoint: written before it acts on it.

Parties are deterministic: from a checkpoint and the frames that came after it, in their order, a
process that was killed computes the very state it had. So nothing is lost by a kill, and a frame
costs one sequential write. What the operating system had not put on the disk yet when the power
failed is lost, unless ``sync`` is on; a torn end is cut off.

A record is its length, a checksum, a kind, and its bytes.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from vertizo.errors import RunError

RECORD = struct.Struct("<IIB")


class Journal:
    """An append-only file.

    Args:
        path: of the file; made if it is not there, cut after its last whole record if it is.
        sync: whether each record is on the disk when `append` returns.

    Raises:
        RunError: it cannot be written.
    """

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self.path = path
        self._sync = sync
        try:
            self.size = sum(RECORD.size + len(body) for _, body in records(path))
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(self._file, self.size)
        except OSError as error:
            raise self._unwritable(error) from None
        self._before = self.size

    def append(self, kind: int, body: bytes) -> None:
        """Write one record; `undo` takes it back.

        Raises:
            RunError: it could not be written whole; nothing of it is left.
        """
        header = RECORD.pack(len(body), zlib.crc32(body, kind), kind)
        try:
            written = os.pwritev(self._file, [header, body], self.size)
            if written != RECORD.size + len(body):  # as on a disk that is full
                written += os.pwrite(self._file, (header + body)[written:], self.size + written)
            if written != RECORD.size + len(body):
                raise OSError(28, "No space left on device")
            if self._sync:
                os.fdatasync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self.size)
            raise self._unwritable(error) from None
        self._before = self.size
        self.size += written

    def undo(self) -> None:
        """Take back the last record."""
        self.size = self._before
        os.ftruncate(self._file, self.size)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(f"{self.path} cannot be written: {error.strerror}")


def records(path: Path) -> Iterator[tuple[int, bytes]]:
    """The kinds and bodies of all whole records, up to a torn or damaged one."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while len(header := file.read(RECORD.size)) == RECORD.size:
            length, checksum, kind = RECORD.unpack(header)
            body = file.read(length)
            if len(body) != length or zlib.crc32(body, kind) != checksum:
                return
            yield kind, body
