"""``vertizo tune``: search hyperparameters on validation records, and say what that costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vertizo.cli.console import grid, is_wider, live_bar, reporting, resumable, say
from vertizo.cli.options import AsJson, Settings
from vertizo.core.errors import ConfigError

if TYPE_CHECKING:
    from vertizo.studies.tuning.results import Results

SHOWN = 4
"""Trials beside the configured one in the table."""


def tune(
    config: Annotated[
        Path | None, typer.Argument(help="YAML configuration to search around.")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Number of runs; the first is the configuration as it is.")
    ] = 30,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the search; an unfinished search is continued. Default: a folder "
            "under runs/.",
        ),
    ] = None,
    settings: Settings = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=SPEC",
            help="Search this key over low..high, low..high:log or value,value,… Can be repeated. "
            "Default: the method's usual keys.",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Validation figure to optimise: accuracy, auc, average_precision, loss or rmse. "
            "Default: auc for two classes, accuracy for more, rmse for a regression.",
        ),
    ] = None,
    pruner: Annotated[
        str,
        typer.Option(metavar="median|halving|none", help="Rule that stops bad trials early."),
    ] = "median",
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search; runs have their own.")] = 0,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Begin no trial after this time."),
    ] = None,
    total_epsilon: Annotated[
        float | None,
        typer.Option(metavar="E", help="Reduce each trial's ε so that all together cost this ε."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search hyperparameters on validation records and report what all trials cost in privacy."""
    if pruner not in ("median", "halving", "none"):
        raise ConfigError(f"--pruner {pruner} is none of median, halving, none")
    if total_epsilon is not None and total_epsilon <= 0:
        raise ConfigError(f"--total-epsilon is {total_epsilon:g}; it must be above 0")
    from vertizo.config import schema

    chosen = schema.load(config, settings or [])
    folder = out or Path("runs") / f"tune-{chosen.data.name}-{chosen.method.name}"
    with resumable(folder):
        from vertizo.studies.tuning.search import Options
        from vertizo.studies.tuning.search import tune as run

        options = Options(
            trials=trials,
            search=tuple(search or ()),
            objective=objective,
            pruner=pruner,  # type: ignore[arg-type]
            seed=seed,
            jobs=jobs,
            timeout=timeout,
            total_epsilon=total_epsilon,
        )
        with live_bar(Console(stderr=True), "starting") as show:
            found = run(chosen, folder, options, reporting(show, "trials"))
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        _show(found, folder)


def _show(found: Results, folder: Path) -> None:
    from vertizo.studies.tuning.results import BEST, lines, notes

    console = Console()
    title = f"{found.method} on {found.dataset}"
    best = [record for record in found.ranked if record.number][:SHOWN]
    while True:
        headings, *rows = lines(found, best)
        table = grid(headings, rows, title)
        if len(best) < 2 or not is_wider(table, console.width):
            break
        best.pop()
    table.rows[1].end_section = True
    console.print(table)
    say(
        [
            *notes(found),
            f"best configuration: {folder / BEST}",
            f"its run: {folder / 'trials' / f'{found.best.number:03d}'}",
        ]
    )
