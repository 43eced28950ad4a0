"""A live bar for commands that make many runs or trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from vertizo.studies.comparison import Standing

Show = Callable[[float, str], None]
"""Called with the share that is done, from 0 to 1, and what to write beside the bar."""


@contextmanager
def live_bar(console: Console, text: str) -> Iterator[Show | None]:
    """A bar on a terminal, nothing elsewhere."""
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


def reporting(show: Show | None) -> Callable[[Standing], None] | None:
    """How far several runs have come, on a bar where there is one."""
    if show is None:
        return None
    return lambda here: show(here.share, f"{here.finished} of {here.total} runs")
