"""What commands show: plain lines, tables as wide as the terminal, a live bar."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vertizo.config.environment import settings_of
from vertizo.core.errors import Interrupted
from vertizo.core.notices import Alarm, Throttle

if TYPE_CHECKING:
    from vertizo.cli.log import Level


_alarms = Throttle()


def say(lines: str | Iterable[str], console: Console | None = None) -> None:
    """Print lines as they are: no markup, no colours, no line breaks added."""
    console = console or Console()
    for line in [lines] if isinstance(lines, str) else lines:
        if isinstance(line, Alarm):  # of a kind: its first word is the party, or the file
            shown = _alarms(line.partition(" ")[0], line)
            if shown is None:
                continue
            line = Alarm(shown)
        console.print(line, soft_wrap=True, highlight=False, markup=False)


class JsonLines(Console):
    """Hands on what a console is given to print, each line and each row of a table by itself."""

    def __init__(self, write: Callable[[Level, str], None]) -> None:
        super().__init__(stderr=True, force_terminal=False)
        self._write = write

    def print(self, *objects: Any, **_: Any) -> None:
        """A level and a text for each object; tables are read row by row."""
        for one in objects:
            if isinstance(one, Table):
                columns = [list(column.cells) for column in one.columns]
                for cells in zip(*columns, strict=True):
                    self._write("info", ": ".join(" ".join(str(cell).split()) for cell in cells))
            else:
                self._write("warning" if isinstance(one, Alarm) else "info", str(one))


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A table with names on the left and figures on the right, which are never cut or wrapped."""
    table = Table(title=title, title_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def is_wider(table: Table, width: int) -> bool:
    """Whether a table takes more than so many characters."""
    return Console(width=10_000).measure(table).maximum > width


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """Print a table; columns that don't fit side by side follow in further tables below it."""
    for part in parts(headings, rows, Console().width):
        Console().print(_columns(headings, rows, part, title))
        title = "(continued)"


def parts(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[list[int]]:
    """Which columns, the first aside, fit side by side; at least one each time."""
    part: list[int] = []
    for place in range(1, len(headings)):
        if part and is_wider(_columns(headings, rows, [*part, place]), width):
            yield part
            part = []
        part.append(place)
    yield part


def _columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], places: Sequence[int], title: str = ""
) -> Table:
    first, *others = ([row[0], *(row[place] for place in places)] for row in [headings, *rows])
    return grid(first, others, title or None)


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
    console: Console, text: str, words: Callable[..., tuple[float, str]]
) -> Iterator[Callable[..., None] | None]:
    """A bar on a terminal, None elsewhere.

    Called with what ``words`` takes, it shows what that returns: the share that is done, from 0 to
    1, and the text beside the bar.
    """
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, expand=True, transient=True) as bar:
        task = bar.add_task(text, total=1.0)

        def show(*state: Any) -> None:
            share, beside = words(*state)
            bar.update(task, completed=share, description=beside)

        yield show


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """On Ctrl-C, say that the same command continues in the folder."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        words = str(error).split(";")[0] or "stopped"
        again = f"the same command with --out {shlex.quote(str(folder))} continues"
        raise Interrupted(f"{words}; {again}") from None


def command_line() -> str:
    """The command as it was given, without where it puts its results, and with settings that stood
    in the environment."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if not (word == "--out" and next(words, True))]
    kept = [word for word in kept if not word.startswith("--out=")]
    given = [f"--set={one}" for one in settings_of(os.environ)]  # those of --set have the last word
    place = next((i for i, word in enumerate(kept) if word.startswith("--set")), len(kept))
    return shlex.join(["vertizo", *kept[:place], *given, *kept[place:]])


def counted(number: int, what: str) -> str:
    """So many of something: ``1 seed``, ``3 seeds``."""
    return f"{number:,} {what}{'s' * (number != 1)}"
