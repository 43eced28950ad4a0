"""Output of commands: plain lines, tables as wide as the terminal, a live bar."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vertizo.config.environment import settings_of
from vertizo.core.errors import Interrupted
from vertizo.core.text.messages import Alarm, Level, Minutely, Throttle

_alarms = Throttle()


def say(lines: str | Iterable[str], console: Console | None = None) -> None:
    """Print lines without markup or colours; on a terminal they are wrapped at words."""
    console = console or Console()
    for line in [lines] if isinstance(lines, str) else lines:
        if isinstance(line, Alarm):  # of a kind: its first word is the party, or the file
            shown = _alarms(line.partition(" ")[0], line)
            if shown is None:
                continue
            line = Alarm(shown)
        if console.is_terminal:  # a path or a word that is longer stays in one piece
            line = _wrapped(line, console.width)
        console.print(line, soft_wrap=True, highlight=False, markup=False)


class JsonLines(Console):
    """A console that passes on what it is to print: each line, and each row of a table."""

    def __init__(self, write: Callable[[Level, str], None]) -> None:
        super().__init__(stderr=True, force_terminal=False)
        self._write = write

    def print(self, *objects: Any, **_: Any) -> None:
        """Pass on a level and a text for each object; tables go row by row."""
        for one in objects:
            if isinstance(one, Table):
                columns = [list(column.cells) for column in one.columns]
                for cells in zip(*columns, strict=True):
                    self._write("info", ": ".join(" ".join(str(cell).split()) for cell in cells))
            else:
                self._write("warning" if isinstance(one, Alarm) else "info", str(one))


def grid(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    width: int | None = None,
    words: int = 1,
) -> Table:
    """Make a table: ``words`` columns of words on the left, and columns of figures right of them.

    If it is wider than ``width``, cells are wrapped between words, in the widest column first. No
    word is cut, and no figure is parted from its unit or spread.
    """
    table = Table(title=title, title_style="bold")
    columns = [
        [_JOINED.sub("\xa0", cell) for cell in column]
        for column in zip(headings, *rows, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    least = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    while width is not None and sum(widths) + 3 * len(widths) >= width:
        loose = [at for at, size in enumerate(widths) if size > least[at]]
        if not loose:
            break
        widths[max(loose, key=widths.__getitem__)] -= 1
    cells = [
        [_wrapped(cell, size) for cell in column]
        for column, size in zip(columns, widths, strict=True)
    ]
    for place, (heading, *_) in enumerate(cells):
        table.add_column(heading, justify="left" if place < words else "right", no_wrap=True)
    for row in list(zip(*cells, strict=True))[1:]:
        table.add_row(*row)
    return table


_JOINED = re.compile(r" (?=[±=%≥≤]|of \d|[kMG]?B\b|[kMG]iB\b)|(?<=[±=εδ]) |(?<=\bof) (?=\d)")
"""Matches spaces where no line may end."""


def _wrapped(text: str, width: int) -> str:
    lines = fill(text, max(1, width), break_long_words=False, break_on_hyphens=False)
    return lines.replace("\xa0", " ")


def more_at(folder: Path) -> str:
    """A hint on where to see all figures of runs."""
    return f"all figures: --details, or vertizo report {shlex.quote(str(folder))}"


def is_wider(table: Table, width: int) -> bool:
    """Whether a table is wider than ``width`` characters."""
    return _taken(table) > width


def _taken(table: Table) -> int:
    return Console(width=UNLIMITED).measure(table).maximum


UNLIMITED = 10_000


def room() -> int:
    """The width for tables: the terminal's, or that of COLUMNS; unlimited in a file."""
    console = Console()
    return console.width if console.is_terminal or "COLUMNS" in os.environ else UNLIMITED


def show(table: Table) -> None:
    """Print a whole table, even if it is wider than the terminal."""
    Console(width=max(Console().width, _taken(table))).print(table)


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str, *, whole: bool = True
) -> None:
    """Print a table; columns that don't fit side by side follow in further tables below it.

    Unless ``whole``, those are left out.
    """
    for part in parts(headings, rows, room()):
        show(_columns(headings, rows, part, title, room()))
        title = "(continued)"
        if not whole:
            break


def parts(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[list[int]]:
    """Yield the columns, beside the first, that fit side by side; at least one each time."""
    part: list[int] = []
    for place in range(1, len(headings)):
        if part and is_wider(_columns(headings, rows, [*part, place], "", width), width):
            yield part
            part = []
        part.append(place)
    yield part


def _columns(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    places: Sequence[int],
    title: str,
    width: int,
) -> Table:
    first, *others = ([row[0], *(row[place] for place in places)] for row in [headings, *rows])
    return grid(first, others, title or None, width)


def print_list(rows: Iterable[tuple[str, str]], **of_names: Any) -> None:
    """Print names in bold, with a text beside each."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", **of_names)
    table.add_column()
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


@contextmanager
def live_bar(
    console: Console,
    text: str,
    words: Callable[..., tuple[float, str]],
    log: str | None = None,
) -> Iterator[Callable[..., None] | None]:
    """Yield a function that shows progress, as a bar or as a line a minute in a log.

    It takes the arguments of ``words``, and shows what that returns: the share that is done, from 0
    to 1, and the text beside the bar, of which what follows a ``·`` is for the log alone. Lines of
    a log begin with ``log``; without it None is yielded outside a terminal.
    """
    if not console.is_terminal:
        if log is None:
            yield None
            return
        line = Minutely(console)

        def tell(*state: Any) -> None:
            share, beside = words(*state)
            line(share, f"{log}: {beside}")

        yield tell
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, expand=True, transient=True) as bar:
        task = bar.add_task(text, total=1.0)

        def move(*state: Any) -> None:
            share, beside = words(*state)
            bar.update(task, completed=share, description=beside.split(" · ")[0])

        yield move


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Make a stop inside say that the same command continues in the folder."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        words = str(error).split(";")[0] or "stopped"
        again = f"the same command with --out {shlex.quote(str(folder))} continues"
        raise Interrupted(f"{words}; {again}") from None


def command_line() -> str:
    """The command line as it was given, without ``--out``, and with settings of the environment."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if not (word == "--out" and next(words, True))]
    kept = [word for word in kept if not word.startswith("--out=")]
    given = [f"--set={one}" for one in settings_of(os.environ)]  # those of --set have the last word
    place = next((i for i, word in enumerate(kept) if word.startswith("--set")), len(kept))
    return shlex.join(["vertizo", *kept[:place], *given, *kept[place:]])
