"""Progress of a run: a live bar with a line of figures, or a line a minute in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from vertizo.core.text.messages import Minutely
from vertizo.privacy.epsilon_text import bound_text
from vertizo.run.experiment import Progress

Show = Callable[[Progress], None]


@contextmanager
def bar(label: str, console: Console) -> Iterator[Show]:
    """Yield a function that shows progress: on a terminal, in a notebook, or in lines of a log."""
    if console.is_jupyter:
        yield _in_a_notebook(label)
        return
    if not console.is_terminal:
        log = Minutely(console)
        yield lambda at: log(at.round / max(1, at.total), f"{label}: {figures(at)}")
        return
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        expand=True,
    )
    task, line = bar.add_task(label, total=None), Text(style="dim", overflow="ellipsis")

    def show(progress: Progress) -> None:
        bar.update(task, completed=progress.round, total=progress.total)
        line.plain = figures(progress)

    with Live(Group(bar, line), console=console, transient=True):
        yield show


def _in_a_notebook(label: str) -> Show:
    """Show progress as HTML that is replaced; rich's own display would need ipywidgets."""
    display = import_module("IPython.display")

    def html(share: str, words: str) -> Any:
        bar = f"<progress{share}></progress>"
        return display.HTML(f"<div>{escape(label)} {bar}{words}</div>")

    handle = display.display(html("", ""), display_id=True)

    def show(progress: Progress) -> None:
        share = f' value="{progress.round}" max="{progress.total}"'
        handle.update(html(share, f" <small>{escape(figures(progress))}</small>"))

    return show


def figures(progress: Progress) -> str:
    """One line of progress: rounds, loss, the figure that chooses models, megabytes and ε."""
    parts = [f"{progress.round:,} of {progress.total:,} rounds"]
    if progress.seconds:
        parts.append(f"{progress.round / progress.seconds:,.0f}/s")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3f}")
    if progress.metric is not None:
        parts.append(progress.metric)
    parts.append(f"{progress.megabytes:,.1f} MB")
    parts.append("no ε" if progress.epsilon is None else f"ε {bound_text(progress.epsilon, 3)}")
    if progress.card is not None:
        parts.append(f"card {progress.card[0]:.1f} of {progress.card[1]:.0f} GiB")
    return " · ".join(parts)
