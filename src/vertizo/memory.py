"""Keep freed memory for the next round instead of handing it back to the operating system."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""

BLOCK, TOTAL = 2 * 2**20, 64 * 2**20
"""Bytes: the largest array that is kept, and how much is kept in all."""


def keep_freed_memory() -> None:
    """Ask the C library to keep up to `TOTAL` of freed memory, in blocks of up to `BLOCK`.

    A round makes and frees arrays of hundreds of kilobytes. By default glibc returns them at once,
    and clearing the same pages again costs up to a tenth of a round. The larger arrays of large
    models are returned still: kept between others they leave gaps that nothing else fits into, and
    zeroth-order training of a transformer took a quarter more memory than inference, where without
    gaps it takes the same (``benchmarks/memory.py``). Does nothing elsewhere.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, BLOCK)
        mallopt(_TRIM_THRESHOLD, TOTAL)
