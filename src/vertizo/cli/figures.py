"""Figures as people read them."""

from __future__ import annotations


def size_text(count: float) -> str:
    """A number of bytes in units of a thousand.

    >>> size_text(1234567)
    '1.23 MB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"
