"""A disk that fails at a write of one's choice, and from then on until space is made."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Site = tuple[str, str]
"""What is done, and to which file."""


class Disk:
    """Counts what is written below a folder, and fails where it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: Counter[Site] = Counter()
        """How often each was done."""
        self.failed = False
        self._site: Site | None = None
        self._left = 0
        self._errno = errno.ENOSPC
        self._lock = threading.Lock()

    def fail_at(self, site: Site, time: int, number: int = errno.ENOSPC) -> None:
        """Fail the time-th time that this is done, and what the same party writes after it."""
        self._site, self._left, self._errno = site, time, number
        self.failed = False

    def make_space(self) -> None:
        """Write again."""
        self._site, self.failed = None, False

    def touch(self, action: str, path: str | bytes | os.PathLike[Any]) -> None:
        """Note that something is about to be written; raise where it fails."""
        place = Path(os.fsdecode(path))
        if not place.is_relative_to(self.folder):
            return
        site = action, str(place.relative_to(self.folder))
        with self._lock:
            self.seen[site] += 1
            if site == self._site:
                self._left -= 1
                self.failed = self.failed or self._left == 0
            fails = self.failed and self._site is not None and _fails_too(site, self._site)
        if fails:
            raise OSError(self._errno, os.strerror(self._errno), str(place))


def _fails_too(site: Site, first: Site) -> bool:
    """Whether what comes after a failure fails as well; a full disk lets files be removed."""
    same_party = site[1].split("/")[0] == first[1].split("/")[0]
    return site == first or (same_party and site[0] != "unlink")


class _File:
    """A file open for writing, on that disk."""

    def __init__(self, disk: Disk, path: Path, file: Any) -> None:
        self._disk, self._path, self._file = disk, path, file

    def write(self, content: Any) -> Any:
        try:
            self._disk.touch("write", self._path)
        except OSError:  # as a disk does that is full: some of it is there
            self._file.write(content[: len(content) // 2])
            raise
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


@contextmanager
def disk_below(folder: Path) -> Iterator[Disk]:
    """All that this process writes below the folder goes through a `Disk`."""
    disk = Disk(folder)

    def counted(action: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def touched(file: Any, *arguments: Any, **keys: Any) -> Any:
            is_open = isinstance(file, int)
            disk.touch(action, Path(f"/proc/self/fd/{file}").readlink() if is_open else file)
            return function(file, *arguments, **keys)

        return touched

    really_open, really_os_open = Path.open, os.open

    def path_open(path: Path, mode: str = "r", *arguments: Any, **keys: Any) -> Any:
        if mode[0] not in "wax":
            return really_open(path, mode, *arguments, **keys)
        disk.touch("open", path)
        return _File(disk, path, really_open(path, mode, *arguments, **keys))

    def os_open(path: Any, flags: int, *arguments: Any, **keys: Any) -> int:
        if flags & os.O_CREAT:
            disk.touch("open", path)
        return really_os_open(path, flags, *arguments, **keys)

    with pytest.MonkeyPatch.context() as patch:
        for name in [
            "pwrite",
            "pwritev",
            "fsync",
            "fdatasync",
            "replace",
            "mkdir",
            "unlink",
            "chmod",
        ]:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        patch.setattr(os, "open", os_open)
        patch.setattr(Path, "open", path_open)
        yield disk
