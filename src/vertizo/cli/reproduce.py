"""``vertizo reproduce``: a table or figure of a paper, measured beside published."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from vertizo.cli.console import command_line, live_bar, print_table, reporting, resumable, say
from vertizo.cli.options import (
    AsJson,
    Engine,
    RayAddress,
    Settings,
    StudyFolder,
    check_engine,
)
from vertizo.core.errors import ConfigError
from vertizo.core.version import VERSION

if TYPE_CHECKING:
    from vertizo.studies.reproduction.outcome import Outcome


def _complete_studies(incomplete: str) -> list[tuple[str, str]]:
    from vertizo.studies.reproduction import study

    return [(name, study.load(name).title) for name in study.names() if name.startswith(incomplete)]


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table or figure of a paper (see --list), or a YAML file of the same form.",
            autocompletion=_complete_studies,
        ),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List what can be reproduced, and stop.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run the small form, which takes minutes.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each entry. Default: the study's own number.")
    ] = None,
    settings: Settings = None,
    out: StudyFolder = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one for each core.")
    ] = None,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of a paper and print it beside the published one."""
    check_engine(engine, ray_address)
    if name is None and not show_list:
        raise ConfigError("which table or figure? `vertizo reproduce --list` shows all")
    from vertizo.studies.engines import Processes, RayCluster
    from vertizo.studies.reproduction import kinds, outcome, study
    from vertizo.studies.reproduction.runs import Order

    if name is None or show_list:
        _list_studies(as_json)
        return
    chosen = study.load(name, quick=quick)
    form = "-quick" if quick else ""
    short = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    folder = out or Path("runs") / f"reproduce-{study.runs_of(name)}{form}"
    cores = len(os.sched_getaffinity(0))
    with resumable(folder), live_bar(Console(stderr=True), "starting") as show:
        order = Order(
            folder=folder,
            # No figure here is a peak memory, so several runs may share a process.
            engine=RayCluster(ray_address, jobs)
            if engine == "ray"
            else Processes(jobs or cores, reused=True),
            seeds=seeds,
            overrides=tuple(settings or ()),
            report=reporting(show),
            jobs=jobs or cores,
        )
        found = kinds.run(chosen, order)
    content = {
        "name": short,
        "title": chosen.title,
        "paper": chosen.paper,
        "form": "quick" if quick else "full",
        "reduced": chosen.reduced,
        "command": command_line(),
        "version": VERSION,
        "seeds": seeds or chosen.seeds,
        "settings": settings or [],
        **found.as_dict(),
        "about": list(chosen.notes),
    }
    place = outcome.write(folder, f"{short}{form}", content)
    picture = _draw(found, place.with_suffix(".svg"))
    if as_json:
        print(json.dumps(content, ensure_ascii=False))
    else:
        _show(content, found, [str(place), *picture])


def _list_studies(as_json: bool) -> None:
    """Print all studies."""
    from vertizo.studies.reproduction import study

    found = [(name, study.load(name)) for name in study.names()]
    if as_json:
        entries = [
            {"name": name, "kind": each.kind, "paper": each.paper, "title": each.title}
            for name, each in found
        ]
        print(json.dumps(entries, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, each in found:
        table.add_row(name, f"{each.paper}: {each.title}")
    Console().print(table)


def _draw(found: Outcome, path: Path) -> list[str]:
    """The picture's place, or what is missing to draw it."""
    from vertizo.studies.reproduction import plots

    if not found.pictures:
        return []
    if not plots.available():
        return ["no picture: pip install 'vertizo[plots]'"]
    plots.draw(found.pictures, path)
    return [str(path)]


def _show(content: dict[str, Any], found: Outcome, places: Sequence[str]) -> None:
    for grid in found.grids:
        print_table(["", *grid.columns], grid.rows, grid.title)
    seeds = content["seeds"]
    notes = [content["paper"]]
    if content["reduced"]:
        notes.append(f"Reduced: {content['reduced']}")
    if content["settings"]:
        notes.append(f"Changed: {', '.join(content['settings'])}")
    notes.append(
        f"± is the standard deviation over {seeds} seeds." if seeds > 1 else "One seed: no spread."
    )
    say([*notes, *found.notes, *content["about"], f"figures: {', '.join(places)}"])
