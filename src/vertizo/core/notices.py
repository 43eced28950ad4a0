"""What parties tell people while a job goes on: lines of text, some of which need attention."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Alarm(str):
    """A line that somebody should look at, though the job goes on: a refusal, a silent member."""

    __slots__ = ()


class Throttle:
    """Shows so many lines of a kind in a minute, and then how many it left out.

    Others cause such lines, as often as they like: nobody may fill a disk by it. At most 1,000
    kinds are told apart in a minute. For any thread; ``timer`` gives seconds.
    """

    def __init__(self, most: int = 10, timer: Callable[[], float] = time.monotonic) -> None:
        self._most, self._timer = most, timer
        self._lock = threading.Lock()
        self._until = 0.0
        self._shown: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, kind: str, line: str) -> str | None:
        """The line as it is to be shown; None where it is left out."""
        with self._lock:
            if (now := self._timer()) >= self._until:
                self._until = now + 60.0
                self._shown.clear()
            if kind not in self._shown and len(self._shown) >= 1000:
                kind = ""
            count = self._shown[kind] = self._shown.get(kind, 0) + 1
            if count > self._most:
                if kind not in self._left_out and len(self._left_out) >= 1000:
                    kind = ""
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return None
            before = self._left_out.pop(kind, 0)
        if before:
            line += f" ({before:,} lines like it were left out before)"
        if count == self._most:
            line += " (more like it are left out for a minute)"
        return line


def one_line(text: str) -> str:
    """Words of another party, safe to show: one line of printable characters, not too long."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:900]
