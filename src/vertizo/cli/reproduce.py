"""``vertizo reproduce``: a table or figure of a paper, measured beside published."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vertizo.cli.bar import live_bar, reporting
from vertizo.core.errors import ConfigError, Interrupted
from vertizo.core.version import VERSION
from vertizo.studies.engines import Engine, EngineName, Processes, RayCluster
from vertizo.studies.reproduction import kinds, outcome, plots, study
from vertizo.studies.reproduction.outcome import Grid, Outcome
from vertizo.studies.reproduction.runs import Order


def listing(*, as_json: bool) -> None:
    """Print all studies."""
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


def reproduce(
    name: str,
    settings: Sequence[str],
    out: Path | None,
    *,
    quick: bool,
    seeds: int | None,
    jobs: int | None,
    as_json: bool,
    engine: EngineName = "local",
    ray_address: str | None = None,
) -> None:
    """Make what is not made yet, print the table, leave figures and pictures.

    Raises:
        UserError: one line that says what is wrong.
    """
    if ray_address is not None and engine != "ray":
        raise ConfigError(f"--ray-address {ray_address} is for --engine ray")
    chosen = study.load(name, quick=quick)
    form = "-quick" if quick else ""
    short = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    folder = out if out is not None else Path("runs") / f"reproduce-{study.runs_of(name)}{form}"
    errors = Console(stderr=True)
    try:
        with live_bar(errors, "starting") as show:
            order = Order(
                folder=folder,
                engine=_engine(engine, ray_address, jobs),
                seeds=seeds,
                overrides=tuple(settings),
                report=reporting(show),
                jobs=jobs or _cores(),
            )
            found = kinds.run(chosen, order)
    except Interrupted as error:
        again = f"the same command with --out {shlex.quote(str(folder))} goes on"
        raise Interrupted(f"{str(error).split(';')[0]}; {again}") from None
    content = {
        "name": short,
        "title": chosen.title,
        "paper": chosen.paper,
        "form": "quick" if quick else "full",
        "reduced": chosen.reduced,
        "command": shlex.join(["vertizo", *sys.argv[1:]]),
        "version": VERSION,
        "seeds": seeds or chosen.seeds,
        "settings": list(settings),
        **outcome.as_dict(found),
        "about": list(chosen.notes),
    }
    place = outcome.write(folder, f"{short}{form}", content)
    picture = _draw(found, place.with_suffix(".svg"))
    if as_json:
        print(json.dumps(content, ensure_ascii=False))
        return
    _show(content, found, [str(place), *picture])


def _engine(name: EngineName, address: str | None, jobs: int | None) -> Engine:
    if name == "ray":
        return RayCluster(address, jobs)
    # No figure here is a peak memory, so that processes need not be one to a run.
    return Processes(jobs or _cores(), reused=True)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def _draw(found: Outcome, path: Path) -> list[str]:
    """The picture's place, or what is missing to draw it."""
    if not found.pictures:
        return []
    if not plots.available():
        return ["no picture: pip install 'vertizo[plots]'"]
    plots.draw(found.pictures, path)
    return [str(path)]


def _show(content: dict[str, Any], found: Outcome, places: Sequence[str]) -> None:
    console = Console()
    for grid in found.grids:
        title = grid.title
        for part in _parts(grid, console.width):
            console.print(_table(part, title))
            title = "(continued)"
    seeds = content["seeds"]
    notes = [content["paper"]]
    if content["reduced"]:
        notes.append(f"Reduced: {content['reduced']}")
    if content["settings"]:
        notes.append(f"Changed: {', '.join(content['settings'])}")
    notes.append(
        f"± is the standard deviation over {seeds} seeds." if seeds > 1 else "One seed: no spread."
    )
    for line in (*notes, *found.notes, *content["about"], f"figures: {', '.join(places)}"):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _table(grid: Grid, title: str) -> Table:
    table = Table(title=title, title_style="bold")
    table.add_column("", no_wrap=True)
    for column in grid.columns:
        table.add_column(column, justify="right", min_width=8)
    for line in grid.rows:
        table.add_row(*line)
    return table


def _parts(grid: Grid, width: int) -> Iterator[Grid]:
    """As many columns side by side as there is room for; at least one."""
    endless, chosen = Console(width=10_000), list[int]()
    for place in range(len(grid.columns)):
        if chosen and endless.measure(_table(_some(grid, [*chosen, place]), "")).maximum > width:
            yield _some(grid, chosen)
            chosen = []
        chosen.append(place)
    yield _some(grid, chosen)


def _some(grid: Grid, places: Sequence[int]) -> Grid:
    """A grid with some of its columns."""
    return Grid(
        grid.title,
        tuple(grid.columns[place] for place in places),
        tuple((line[0], *(line[1 + place] for place in places)) for line in grid.rows),
    )
