"""What operating systems differ in: locks of files, folders on disk, cores, memory that was used.

Nothing here is imported unconditionally that Windows lacks. What cannot work there says so in one
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
"""Flag of `os.open`: programs that this process starts do not get the file."""
FIRST = 500
"""Of 1,000: half of the machine's memory more than a process really takes, as Linux weighs it."""
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open`: not through a link."""


def lock(handle: int, *, wait: bool) -> None:
    """Hold an open file against other processes until it is closed, where there are locks.

    BlockingIOError: another process holds it, and ``wait`` is off.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def require_locks(what: str) -> None:
    """Raise RunError where nothing can be locked; ``what`` is not safe without."""
    if fcntl is None:
        raise RunError(
            f"{what} needs locks of files (flock), which {sys.platform} lacks; "
            "use Linux or macOS, on Windows its Linux subsystem (WSL)"
        )


def notes() -> tuple[str, ...]:
    """What people should know of this system."""
    if fcntl is not None:
        return ()
    return ("run folders cannot be locked on this system: use each in one process at a time",)


def sync_folder(folder: Path) -> None:
    """Have the folder's list of names on disk, where a folder can be opened."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory() -> float | None:
    """MiB that this process had in memory at most; None where the system does not say."""
    if resource is None:
        return None
    most = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def end_first() -> None:
    """Where memory runs out, have Linux end this process sooner than others that take as much."""
    place = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        place.write_text(str(max(FIRST, int(place.read_text(encoding="ascii")))), encoding="ascii")


def data_limit() -> int | None:
    """Bytes of data that this process may have (``ulimit -d``); None for no limit."""
    if resource is None:
        return None
    most = int(resource.getrlimit(resource.RLIMIT_DATA)[0])
    return None if most == resource.RLIM_INFINITY else most


def open_files() -> int:
    """Files and connections that this process may have open at a time (``ulimit -n``)."""
    if resource is None:
        return 8192
    most = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return 2**20 if most == resource.RLIM_INFINITY else most


def file_mark(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from the one that was there before; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
