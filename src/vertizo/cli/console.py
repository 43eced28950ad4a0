"""What commands show: plain lines, tables as wide as the terminal, a live bar."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from vertizo.core.errors import Interrupted

if TYPE_CHECKING:
    from vertizo.studies.comparison import Standing

Show = Callable[[float, str], None]
"""Called with the share that is done, from 0 to 1, and what to write beside the bar."""


def say(lines: str | Iterable[str], console: Console | None = None) -> None:
    """Print lines as they are: no markup, no colours, no line breaks added."""
    console = console or Console()
    for line in [lines] if isinstance(lines, str) else lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


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
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    places: Sequence[int],
    title: str | None = None,
) -> Table:
    def chosen(row: Sequence[str]) -> list[str]:
        return [row[0], *(row[place] for place in places)]

    return grid(chosen(headings), map(chosen, rows), title)


@contextmanager
def live_bar(console: Console, text: str) -> Iterator[Show | None]:
    """A bar on a terminal, None elsewhere."""
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
        yield lambda share, beside: bar.update(task, completed=share, description=beside)


def reporting(show: Show | None, what: str = "runs") -> Callable[[Standing], None] | None:
    """How far several runs have come, on a bar where there is one."""
    if show is None:
        return None
    return lambda at: show(at.share, f"{at.finished} of {at.total} {what}{at.beside}")


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """On Ctrl-C, say that the same command continues in the folder."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        words = str(error).split(";")[0] or "stopped"
        again = f"the same command with --out {shlex.quote(str(folder))} goes on"
        raise Interrupted(f"{words}; {again}") from None


def command_line() -> str:
    """The command as it was given."""
    return shlex.join(["vertizo", *sys.argv[1:]])
