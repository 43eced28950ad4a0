"""Calls that differ between operating systems: file locks, syncing, cores, memory, limits.

Modules that Windows lacks are imported only where they exist. What cannot work there says so in one
line, and the rest works.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from vertizo.core.errors import RunError


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


fcntl, resource = _module("fcntl"), _module("resource")
"""Modules of Unix; None elsewhere."""
CLOSED_ON_EXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
"""Flag of `os.open`: programs that this process starts do not inherit the file."""
FIRST = 500
"""The oom_score_adj that `end_first` sets: 500 counts as half of the machine's memory more."""
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open`: do not follow a symbolic link."""


def lock(handle: int, *, wait: bool) -> None:
    """Lock an open file against other processes until it is closed; no-op without file locks.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is off.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def require_locks(what: str) -> None:
    """Raise RunError where the system has no file locks, without which ``what`` is not safe."""
    if fcntl is None:
        raise RunError(
            f"{what} needs locks of files (flock), which {sys.platform} lacks; "
            "use Linux or macOS, on Windows its Linux subsystem (WSL)"
        )


def notes() -> tuple[str, ...]:
    """Notes for users about this system: a line where it has no file locks."""
    if fcntl is not None:
        return ()
    return ("run folders cannot be locked on this system: use each in one process at a time",)


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to disk (fsync); does nothing on Windows."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory() -> float | None:
    """Peak memory of this process in MiB; None where the system does not say."""
    if resource is None:
        return None
    most = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def end_first() -> None:
    """Ask Linux to end this process before others of its size when memory runs out."""
    place = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        place.write_text(str(max(FIRST, int(place.read_text(encoding="ascii")))), encoding="ascii")


def data_limit() -> int | None:
    """Limit of this process's data in bytes (``ulimit -d``); None for no limit."""
    if resource is None:
        return None
    most = int(resource.getrlimit(resource.RLIMIT_DATA)[0])
    return None if most == resource.RLIM_INFINITY else most


def open_files() -> int:
    """Limit of files and connections open at a time in this process (``ulimit -n``)."""
    if resource is None:
        return 8192
    most = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return 2**20 if most == resource.RLIM_INFINITY else most


def file_mark(path: Path) -> tuple[int, int, int] | None:
    """Modification time, size and inode, which change with a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
