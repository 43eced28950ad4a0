"""Digests of files: a folder lists the SHA-256 of every file that later commands trust.

The file ``digests`` has a line for each writing of a file: its SHA-256 and its name. A file is
whole if its digest is one of the last two of its name. A new content is listed before it takes the
file's place, and once more after: a process that is killed in between leaves the old file or the
new one, and either is listed. Lines are appended, so that a torn one spoils no other.

A folder that an older version wrote has no list: its files are used, and a note says so. Once
something is written there, the list has the files of that time with a - in place of a digest.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, TypeVar

from vertizo.core import system
from vertizo.core.errors import RunError
from vertizo.core.text import strict_json

T = TypeVar("T")
NAME = "digests"
ADVICE = "put a copy of it back"
ROW = "sha256"
"""Key of a row: the first 16 digits of the digest of the other keys."""
OLDER = "-"
"""Stands in place of the digest of a file that was there before the list."""
MOST = 2**16
"""Size of a list in bytes above which only the last two lines of each name are kept."""
_LINE = re.compile(r"([0-9a-f]{64}|-)  (.+)")
_SHORT = re.compile(r"[0-9a-f]{16}")
_log = logging.getLogger(__name__)


@contextmanager
def replacing(path: Path, digest: str) -> Iterator[None]:
    """List a file's new content before and after the block that replaces it; may raise OSError."""
    known = _lines(path.parent)
    if known is None:
        there = sorted(each for each in path.parent.iterdir() if _is_kept(each))
        _rewrite(path.parent, [(OLDER, each.name) for each in there])
    elif len(set(_last(known, path.name))) > 1 and path.is_file():  # a kill came in between
        now = sha256_of(path)
        if now in _last(known, path.name):
            _append(path, now)
    _append(path, digest, sync=True)
    yield
    _append(path, digest)


def add(path: Path) -> None:
    """List a file as it is now; OSError where it cannot be read or the list not be written."""
    with replacing(path, sha256_of(path)):
        pass


def adopt(folder: Path) -> None:
    """List all files of a folder that has no list yet; OSError where that fails."""
    if _lines(folder) is None:
        there = sorted(each for each in folder.iterdir() if _is_kept(each))
        _rewrite(folder, [(sha256_of(each), each.name) for each in there])


def forget(folder: Path) -> None:
    """Remove the list of a folder if no other file is left in it."""
    if not any(_is_kept(each) and each.name != NAME for each in folder.iterdir()):
        (folder / NAME).unlink(missing_ok=True)


def has_list(folder: Path) -> bool:
    """Whether a folder has a list of digests."""
    return (folder / NAME).is_file()


def is_listed(path: Path) -> bool:
    """Whether the folder's list has a digest of this file."""
    return bool(set(_last(_lines(path.parent) or [], path.name)) - {OLDER})


def note_change(path: Path) -> None:
    """Log a note if a listed file has changed; a user may change files of their own."""
    with suppress(OSError):  # who uses the file will say why
        try:
            if is_listed(path):
                check(path)
        except RunError:
            _log.warning("note: %s is not as it was written; it is taken as it is now", path)


def content(path: Path, advice: str = ADVICE) -> bytes:
    """Read a file and check it against its digest.

    Raises:
        OSError: it cannot be read.
        RunError: it is not what was written; ``advice`` says what people can do.
    """

    def read() -> tuple[bytes, str]:
        found = path.read_bytes()
        return found, sha256(found).hexdigest()

    return _whole(path, advice, read)


def check(path: Path, advice: str = ADVICE) -> None:
    """Check a file against its digest without keeping its content; errors as of `content`."""
    _whole(path, advice, lambda: (None, sha256_of(path)))


def with_digest(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add to a row of an appended JSON file the digest of its other keys, below `ROW`."""
    written = json.loads(strict_json.text(row))
    return {**written, ROW: _of_row(written)}


def without_digest(row: Any) -> Any:
    """Check a row against its own digest and drop that; ValueError where it was changed.

    A row that an older version wrote has no digest and is returned as it is.
    """
    if not isinstance(row, dict) or not row:
        return row
    key, digest = list(row.items())[-1]
    if key != ROW and not (isinstance(digest, str) and _SHORT.fullmatch(digest)):
        return row  # else it is the key that was changed
    rest = dict(list(row.items())[:-1])
    if key != ROW or digest != _of_row(rest):
        raise ValueError("it is not what was written")
    return rest


def _of_row(row: Mapping[str, Any]) -> str:
    return sha256(strict_json.text(row).encode()).hexdigest()[:16]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal digits; OSError where it cannot be read."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _whole(path: Path, advice: str, read: Callable[[], tuple[T, str]]) -> T:
    while True:
        lines = _lines(path.parent)
        found, digest = read()
        known = None if lines is None else _last(lines, path.name)
        if known is None or OLDER in known:
            _note(path.parent)
            return found
        if digest in known:
            return found
        if _lines(path.parent) == lines:  # else it was replaced meanwhile
            raise RunError(
                f"{path} is damaged or was changed: its SHA-256 is not the one in "
                f"{path.parent / NAME}; {advice}"
            )


@cache
def _note(folder: Path) -> None:
    _log.warning(
        "note: %s was written by an older version, which kept no digests of files: damage to them "
        "goes unnoticed",
        folder,
    )


def _is_kept(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix != ".partial"


def _lines(folder: Path) -> list[tuple[str, str]] | None:
    """Digests and names in the order of the list; None where the folder has no list."""
    try:
        text = (folder / NAME).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    found = map(_LINE.fullmatch, text.split("\n"))
    return [(each[1], each[2]) for each in found if each is not None]


def _last(lines: list[tuple[str, str]], name: str) -> list[str]:
    return [digest for digest, of in lines if of == name][-2:]


def _append(path: Path, digest: str, *, sync: bool = False) -> None:
    place = path.parent / NAME
    with place.open("ab") as file:
        file.write(f"\n{digest}  {path.name}\n".encode())  # apart from a torn line
        file.flush()
        size = file.tell()
        if sync:
            os.fsync(file.fileno())
    if size > MOST:
        lines = _lines(path.parent) or []
        names = dict.fromkeys(name for _, name in lines)
        _rewrite(path.parent, [(each, name) for name in names for each in _last(lines, name)])


def _rewrite(folder: Path, lines: list[tuple[str, str]]) -> None:
    temporary = folder / f"{NAME}.partial"
    mode = 0o666 if folder.stat().st_mode & 0o077 else 0o600  # as private as the folder
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.NO_LINKS | system.CLOSED_ON_EXEC
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            file.write("".join(f"{digest}  {name}\n" for digest, name in lines).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / NAME)
    finally:
        temporary.unlink(missing_ok=True)
    system.sync_folder(folder)
