"""``vertizo compare``: methods side by side, one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from vertizo.cli.console import command_line, live_bar, print_table, reporting, resumable, say
from vertizo.cli.options import (
    AsJson,
    Engine,
    RayAddress,
    Settings,
    StudyFolder,
    check_engine,
    complete_methods,
)
from vertizo.core.errors import ConfigError
from vertizo.core.version import VERSION

if TYPE_CHECKING:
    from vertizo.studies.comparison import Row

Measure = Literal["validation", "train"]


def compare(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="YAML configuration of all methods; its section `methods` may change it for each."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Methods, or entries of the section `methods`. Default: all of that section.",
            autocompletion=complete_methods,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 1,
    settings: Settings = None,
    out: StudyFolder = None,
    targets: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Accuracies in %; the table counts the bytes until each is reached.",
        ),
    ] = "60,80,90,95",
    by: Annotated[
        Measure,
        typer.Option(help="Which accuracy counts; train is the running one."),
    ] = "validation",
    controls: Annotated[
        bool,
        typer.Option(help="Also run every method with frozen clients and with random updates."),
    ] = True,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs at a time. Default: 1, or what the Ray cluster has room for."
        ),
    ] = None,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Run several methods on the same data and print one table."""
    check_engine(engine, ray_address)
    labels = [name.strip() for name in (methods or "").split(",") if name.strip()]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"--methods {methods} names a method twice")
    reached = _targets(targets)
    from vertizo.config import schema, tree

    for label in labels or (tree.labels(config) if config is not None else []):
        schema.load(config, settings or [], label)  # refused before PyTorch is imported
    from vertizo.studies import comparison
    from vertizo.studies.engines import Processes, RayCluster

    configs = comparison.configurations(config, settings or [], labels)
    if not configs:
        from vertizo.methods.choice import METHODS

        raise ConfigError(
            "--methods is missing and the configuration has no section 'methods'; name some of "
            f"{', '.join(METHODS)}, separated by commas"
        )
    first = next(iter(configs.values()))
    folder = out or Path("runs") / f"compare-{first.data.name}"
    runs = comparison.plan(configs, seeds, folder, controls=controls)
    remarks = comparison.check(runs)
    made_by = RayCluster(ray_address, jobs) if engine == "ray" else Processes(jobs or 1)
    errors = Console(stderr=True)
    say((f"note: {remark}" for remark in remarks), errors)
    with resumable(folder), live_bar(errors, "starting") as show:
        summaries = comparison.execute(runs, made_by, reporting(show))
    found = comparison.rows(runs, summaries, reached, by)
    said = {
        "command": command_line(),
        "version": VERSION,
        "dataset": summaries[runs[0]]["dataset"],
        "bytes_by": by,
    }
    comparison.write(folder, found, said)
    if as_json:
        print(json.dumps({row.label: row.as_dict() for row in found}))
    else:
        _show(found, by, folder, seeds)


def _targets(text: str) -> list[float]:
    """Accuracies from ``60,80`` or ``0.6,0.8``, in [0, 1]."""
    found = []
    for part in filter(None, (part.strip().rstrip("%") for part in text.split(","))):
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 < value <= 100:
            raise ConfigError(f"--targets {text}: {part!r} is not an accuracy; write 60,80,90,95")
        found.append(value / 100 if value > 1 else value)
    return found


def _show(found: Sequence[Row], by: Measure, folder: Path, seeds: int) -> None:
    """One column a method: quality with its controls, bytes, rounds, seconds, memory."""
    from vertizo.studies.comparison import lines

    summary = found[0].first
    each = "1 seed" if seeds == 1 else f"{seeds} seeds"
    parties = "1 client" if summary["clients"] == 1 else f"{summary['clients']} clients"
    title = f"{summary['dataset']}, {parties}, {each}"
    print_table(["", *(row.label for row in found)], lines(found), title)
    notes = [
        "± is the standard deviation over seeds."
        if seeds > 1
        else "One seed: no spread; --seeds 3 shows it.",
        "privacy: what holds for labels in this run; each run's summary.json says it in words.",
        f"runs: {folder}",
    ]
    if found[0].bytes_to and "test_accuracy" in summary:
        notes.insert(
            1, f"bytes to: both directions, until {by} accuracy first was that high when evaluated."
        )
    say(notes)
