"""Memory of this process: what is kept when freed, how much more it may take, when it ran out."""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress
from pathlib import Path

from vertizo.core import system

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""

_BESIDE = 4096
"""Bytes that an allocation may take beside its array."""

FRUGAL, LARGE = 2 * 2**20, 32 * 2**20 - _BESIDE
"""Bytes: the largest array that is kept. glibc takes no more than `LARGE`."""

TOTAL = 64 * 2**20
"""Bytes that are kept at the end of the heap."""


def keep_freed_memory(largest: int = FRUGAL) -> None:
    """Ask the C library to keep the memory of freed arrays of up to ``largest`` bytes.

    A round makes and frees arrays of hundreds of kilobytes. By default glibc returns them at once,
    and clearing the same pages again costs up to a tenth of a round. `LARGE` keeps the layers of
    images too, which saves a quarter of a step of a ResNet. But kept between others they leave gaps
    that nothing else fits into: a transformer takes a quarter more memory to evaluate and more than
    a third more to train (``benchmarks/memory.py``). `FRUGAL` is for clients, whose little memory
    is what zeroth order is for, `LARGE` for servers and simulations. Does nothing elsewhere than on
    Linux.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, largest + _BESIDE)
        mallopt(_TRIM_THRESHOLD, TOTAL)


def available() -> int | None:
    """Bytes that this process may still take without hurting others; None where nobody knows.

    The least of what the system has available, what its control group (version 2) allows, counting
    files that would be let go, and what ``ulimit -d`` does.
    """
    limits = [] if (own := _of_process()) is None else [own]
    for limit in (_of_system, _of_group):
        with suppress(OSError, IndexError, ValueError):
            limits.append(limit())
    return max(0, min(limits)) if limits else None


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, NumPy's or PyTorch's, here or a card's.

    PyTorch has no kind of its own for the machine's memory, so its words must tell.
    """
    words = ("DefaultCPUAllocator: ", "CUDA out of memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _of_system() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return int(text.split("MemAvailable:")[1].split()[0]) * 1024


def _of_group() -> int:
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8").split("0::/", 1)[1].strip()
    group = Path("/sys/fs/cgroup", own)
    most = int((group / "memory.max").read_text(encoding="ascii"))  # or the word "max"
    taken = int((group / "memory.current").read_text(encoding="ascii"))
    stat = (group / "memory.stat").read_text(encoding="ascii")
    return most - taken + int(stat.split("inactive_file ")[1].split()[0])


def _of_process() -> int | None:
    most = system.data_limit()
    if most is None:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    except (OSError, IndexError, ValueError):
        pages = 0
    return most - pages * mmap.PAGESIZE
