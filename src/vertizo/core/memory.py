"""Memory of this process: what is freed, how much is left, and what to do when it ran out."""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from vertizo.core import system

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""

_BESIDE = 4096
"""Bytes that an allocation may take in addition to its array."""

FRUGAL, LARGE = 2 * 2**20, 32 * 2**20 - _BESIDE
"""Bytes of the largest array that is kept when freed; glibc accepts at most `LARGE`."""

TOTAL = 64 * 2**20
"""Bytes of free memory that are kept at the end of the heap."""


def keep_freed_memory(largest: int = FRUGAL) -> None:
    """Ask the C library to keep the memory of freed arrays of up to ``largest`` bytes.

    A round makes and frees arrays of hundreds of kilobytes. By default glibc returns them at once,
    and clearing the same pages again costs up to a tenth of a round. `LARGE` keeps the layers of
    images too, which saves a quarter of a step of a ResNet. But kept between others they leave gaps
    that nothing else fits into: a transformer takes a quarter more memory to evaluate and more than
    a third more to train (``benchmarks/memory.py``). `FRUGAL` is for clients, whose little memory
    is what zeroth order is for, `LARGE` for servers and simulations. Only Linux is asked; elsewhere
    nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, largest + _BESIDE)
        mallopt(_TRIM_THRESHOLD, TOTAL)


def available() -> int | None:
    """Bytes that this process may still take without hurting others; None where unknown.

    The minimum of what the system has available, what its control group (version 2) allows, cached
    files counting as free, and what ``ulimit -d`` leaves.
    """
    limits = [] if (own := _of_process()) is None else [own]
    for limit in (_of_system, _of_group):
        with suppress(OSError, IndexError, ValueError):
            limits.append(limit())
    return max(0, min(limits)) if limits else None


def ran_out(error: BaseException) -> bool:
    """Whether an error of Python, NumPy or PyTorch says that memory ran out, a card's included.

    PyTorch has no class of errors for the machine's memory, so the words of its message tell.
    """
    words = ("DefaultCPUAllocator: ", "CUDA out of memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def of_card() -> tuple[float, float] | None:
    """The most that this process has held of the card in use, and the card's memory, in GiB.

    None where it has used no card.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.max_memory_reserved() / 2**30, torch.cuda.mem_get_info()[1] / 2**30


def advice() -> str:
    """The line of an error for memory that ran out, with what would fit."""
    if (card := of_card()) is None:
        return "memory ran out; use a smaller model, a smaller batch_size or fewer processes"
    return (
        f"the card's memory ran out: this run had {card[0]:.1f} of {card[1]:.1f} GiB; use a "
        "smaller batch_size, a smaller model, client.precision=bfloat16 or fewer runs on a card"
    )


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
