"""Lines that a party shows people while a job runs, and limits on how many it shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

Level = Literal["info", "warning", "error"]


def counted(number: int, what: str) -> str:
    """A number and its noun, in the plural unless it is 1: ``1 seed``, ``3 seeds``."""
    return f"{number:,} {what}{'s' * (number != 1)}"


class Alarm(str):
    """A line that somebody should look at, though the job goes on: a refusal, a silent member."""

    __slots__ = ()


class Throttle:
    """A limit on lines of each kind: ``most`` a minute are shown, and later how many were not.

    Other parties cause such lines as often as they like, and must not fill a disk by it. At most
    1,000 kinds are told apart in a minute. Any thread may call it; ``timer`` gives seconds.
    """

    def __init__(self, most: int = 10, timer: Callable[[], float] = time.monotonic) -> None:
        self._most, self._timer = most, timer
        self._lock = threading.Lock()
        self._until = 0.0
        self._shown: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, kind: str, line: str) -> str | None:
        """Return the line as it is to be shown; None where it is left out."""
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


class Minutely:
    """Progress in a log, with an estimate of the time left: at most a line every ``every`` seconds.

    The first line comes after that time, so that short work prints none. The console's clock is
    used.
    """

    def __init__(self, console: Console, every: float = 60.0) -> None:
        self._console, self._every = console, every
        self._said = console.get_time()
        self._first: tuple[float, float] | None = None  # when, and how much was done

    def __call__(self, share: float, text: str) -> None:
        """Note that ``share`` is done, from 0 to 1; what a resumed run had done is not timed."""
        now = self._console.get_time()
        began, before = self._first = self._first or (now, share)
        if now - self._said < self._every:
            return
        self._said = now
        line = f"{text} · {share:.0%}"
        if share > before:
            left = (now - began) * (1 - share) / (share - before)
            line += f" · about {timedelta(seconds=round(left))} left"
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


def one_line(text: str) -> str:
    """Make words of another party safe to show: one line of at most 900 printable characters."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:900]
