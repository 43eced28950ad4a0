"""``vertizo tune``: search hyperparameters on validation records, and say what that costs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vertizo.cli.bar import Show, live_bar
from vertizo.config import schema as configuration
from vertizo.core.errors import Interrupted
from vertizo.studies.tuning.results import BEST, Results
from vertizo.studies.tuning.search import Options, Standing
from vertizo.studies.tuning.search import tune as search
from vertizo.studies.tuning.study import Record

SHOWN = 4
"""Trials beside the configured one in the table."""


def tune(
    path: Path | None,
    settings: Sequence[str],
    out: Path | None,
    options: Options,
    *,
    as_json: bool,
) -> None:
    """Make the trials that are left, then print the best.

    Raises:
        UserError: one line that says what is wrong.
    """
    config = configuration.load(path, settings)
    folder = (
        out if out is not None else Path("runs") / f"tune-{config.data.name}-{config.method.name}"
    )
    try:
        with live_bar(Console(stderr=True), "starting") as show:
            found = search(config, folder, options, _reporting(show))
    except (Interrupted, KeyboardInterrupt):
        again = f"the same command with --out {shlex.quote(str(folder))} goes on"
        raise Interrupted(f"stopped; {again}") from None
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        _show(found, folder)


def _reporting(show: Show | None) -> Callable[[Standing], None] | None:
    """A search's standing on a bar, where there is one."""
    if show is None:
        return None

    def report(here: Standing) -> None:
        best = here.best
        beside = ""
        if best is not None and best.standing is not None:
            beside = f", best {best.standing.value:.4f} (trial {best.number})"
        show(here.share, f"{here.ended} of {here.total} trials{beside}")

    return report


def _show(found: Results, folder: Path) -> None:
    console = Console()
    console.print(_fitting(found, console.width))
    for line in (
        _counts(found),
        _gain(found),
        f"test, of trial {found.best.number}: {_test(found)}",
        *(f"privacy: {words}" for words in found.privacy.words),
        f"best configuration: {folder / BEST}",
        f"its run: {folder / 'trials' / f'{found.best.number:03d}'}",
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _fitting(found: Results, width: int) -> Table:
    """The table with as many of the best trials as the terminal has room for; at least one."""
    endless = Console(width=10_000)
    for count in range(SHOWN, 1, -1):
        table = _table(found, count)
        if endless.measure(table).maximum <= width:
            return table
    return _table(found, 1)


def _table(found: Results, count: int) -> Table:
    """A column for each of so many of the best trials, and for the configured one."""
    first = found.records[0]
    columns = [record for record in found.ranked if record.number][:count]
    table = Table(title=f"{found.method} on {found.dataset}", title_style="bold")
    table.add_column("", no_wrap=True)
    for record in columns:
        table.add_column(f"trial {record.number}", justify="right", no_wrap=True)
    table.add_column("configured", justify="right", no_wrap=True)
    if found.importances:
        table.add_column("weight", justify="right", no_wrap=True)
    shown = [*columns, first]
    rest = [""] if found.importances else []
    table.add_row(f"validation {found.objective}", *(_value(record) for record in shown), *rest)
    table.add_row("validation loss", *(_loss(record) for record in shown), *rest, end_section=True)
    for key in [*found.importances, *(k for k in found.configured if k not in found.importances)]:
        cells = [_short(record.values.get(key, "")) for record in columns]
        cells.append(_short(found.configured[key]))
        if found.importances:
            share = found.importances.get(key)
            cells.append("" if share is None else f"{100 * share:.0f} %")
        table.add_row(key, *cells)
    return table


def _value(record: Record) -> str:
    standing = record.standing
    if record.outcome != "finished" or standing is None:
        return record.outcome
    return f"{standing.value:.4f}"


def _loss(record: Record) -> str:
    standing = record.standing
    return "" if record.outcome != "finished" or standing is None else f"{standing.loss:.4f}"


def _short(text: str) -> str:
    """A number to three digits; what is no number as it is."""
    if text == "None":
        return "automatic"
    try:
        return f"{float(text):.3g}"
    except ValueError:
        return text


def _counts(found: Results) -> str:
    """How many trials ended in which way."""
    outcomes = [record.outcome for record in found.records]
    parts = [f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes)]
    return f"trials: {len(outcomes)} of {found.planned} ({', '.join(parts)})"


def _gain(found: Results) -> str:
    """What the best has over the configured one, on validation records."""
    best, first = found.best, found.records[0]
    if best.number == first.number:
        return f"no trial was better on {found.validation:,} validation records than as configured"
    if first.outcome != "finished" or first.standing is None or best.standing is None:
        return f"the configuration as it is: {first.outcome}"
    was, now, name = first.standing.value, best.standing.value, found.objective
    if was == now:
        was, now, name = first.standing.loss, best.standing.loss, f"{name} is the same; loss"
    records = f"{found.validation:,} validation records"
    return f"validation {name}: {now:.4f}, as configured {was:.4f}; by {records}"


def _test(found: Results) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in found.test.items())
