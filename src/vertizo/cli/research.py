"""The commands of studies: report, reproduce and tune."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from vertizo.cli.engine_options import Engine, EngineName, RayAddress
from vertizo.core.errors import ConfigError, Interrupted


def register(app: typer.Typer) -> None:
    """Add the commands to the program's."""
    commands: tuple[Callable[..., None], ...] = (report, reproduce, tune)
    for command in commands:
        app.command()(command)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Folders of train, compare, serve or attack --out."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The page; without it, report.html in the one RUN, or here."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Make one HTML page of runs: curves, tables, clients, privacy, attacks."""
    from vertizo.cli.report import report as make

    try:
        make(runs, out, title, open_it=open_)
    except KeyboardInterrupt:
        raise Interrupted("stopped; nothing was written") from None


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A table or figure of a paper (--list), or a YAML file of that form."),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Show what can be reproduced, and stop.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="The small form, which takes minutes.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each entry; without it, the study's own.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key in every run."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of all runs; what is finished in it is kept."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; without it, one a core.")
    ] = None,
    engine: Engine = EngineName.LOCAL,
    ray_address: RayAddress = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Make a table or figure of the papers again, and print it beside the published one."""
    from vertizo.cli import reproduce as command

    if show_list:
        command.listing(as_json=as_json)
        return
    if name is None:
        raise ConfigError("which table or figure? `vertizo reproduce --list` shows all")
    try:
        command.reproduce(
            name,
            settings or [],
            out,
            quick=quick,
            seeds=seeds,
            jobs=jobs,
            engine=engine.value,
            ray_address=ray_address,
            as_json=as_json,
        )
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None


def tune(
    config: Annotated[
        Path | None, typer.Argument(help="YAML configuration that is searched around.")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="How many runs, the one as configured included.")
    ] = 30,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the search; what is there is gone on with."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=SPEC",
            help="A key that is searched: low..high, low..high:log or value,value,…; repeat. "
            "Without any, what the method has to be told.",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Validation figure: accuracy, auc, average_precision, loss, rmse; without it, auc "
            "for two classes, accuracy for more, rmse for a regression.",
        ),
    ] = None,
    pruner: Annotated[
        str,
        typer.Option(metavar="median|halving|none", help="Which trials are stopped early."),
    ] = "median",
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of what is tried; runs have their own.")] = 0,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Begin no trial after so long."),
    ] = None,
    total_epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="E", help="Give each trial so much less ε that all together stay within this."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
) -> None:
    """Search hyperparameters on validation records, and say what all trials cost in privacy."""
    from vertizo.cli.tune import tune as run
    from vertizo.studies.tuning.search import Options

    if pruner not in ("median", "halving", "none"):
        raise ConfigError(f"--pruner {pruner} is none of median, halving, none")
    if total_epsilon is not None and total_epsilon <= 0:
        raise ConfigError(f"--total-epsilon is {total_epsilon:g}; it must be above 0")
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
    try:
        run(config, settings or [], out, options, as_json=as_json)
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None
