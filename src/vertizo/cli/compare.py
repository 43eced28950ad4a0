"""``vertizo compare``: methods side by side, one table."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vertizo.cli.bar import live_bar, reporting
from vertizo.cli.figures import size_text
from vertizo.core.errors import ConfigError, Interrupted
from vertizo.core.version import VERSION
from vertizo.methods.choice import METHODS
from vertizo.studies import comparison
from vertizo.studies.comparison import Measure, Row, mean_and_spread
from vertizo.studies.engines import EngineName, Processes, RayCluster

CONTROLS = {"frozen": "frozen clients", "random": "random updates"}
"""Names of the runs that an accuracy is held against."""


def compare(
    path: Path | None,
    settings: Sequence[str],
    methods: str | None,
    seeds: int,
    out: Path | None,
    *,
    targets: str,
    by: Measure,
    controls: bool,
    jobs: int | None,
    as_json: bool,
    engine: EngineName = "local",
    ray_address: str | None = None,
) -> None:
    """Run what is not finished, then print the table.

    ``jobs`` runs are made at a time; None for one here, and for as many as there are cores for on a
    cluster.

    Raises:
        UserError: one line that says what is wrong.
    """
    if ray_address is not None and engine != "ray":
        raise ConfigError(f"--ray-address {ray_address} is for --engine ray")
    labels = [name.strip() for name in (methods or "").split(",") if name.strip()]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"--methods {methods} names a method twice")
    reached = _targets(targets)
    configs = comparison.configurations(path, settings, labels)
    if not configs:
        raise ConfigError(
            "--methods is missing and the configuration has no section 'methods'; name some of "
            f"{', '.join(METHODS)}, separated by commas"
        )
    first = next(iter(configs.values()))
    folder = out if out is not None else Path("runs") / f"compare-{first.data.name}"
    runs = comparison.plan(configs, seeds, folder, controls=controls)
    remarks = comparison.check(runs)
    made_by = RayCluster(ray_address, jobs) if engine == "ray" else Processes(jobs or 1)
    errors = Console(stderr=True)
    for remark in remarks:
        errors.print(f"note: {remark}", soft_wrap=True, highlight=False, markup=False)
    try:
        with live_bar(errors, "starting") as show:
            summaries = comparison.execute(runs, made_by, reporting(show))
    except Interrupted as error:
        again = f"the same command with --out {shlex.quote(str(folder))} goes on"
        raise Interrupted(f"{str(error).split(';')[0]}; {again}") from None
    found = comparison.rows(runs, summaries, reached, by)
    said = {
        "command": shlex.join(["vertizo", *sys.argv[1:]]),
        "version": VERSION,
        "dataset": summaries[runs[0]]["dataset"],
        "bytes_by": by,
    }
    comparison.write(folder, found, said)
    if as_json:
        print(json.dumps({row.label: row.as_dict() for row in found}))
        return
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
            raise ConfigError(f"--targets {text}: {part!r} is no accuracy; write 60,80,90,95")
        found.append(value / 100 if value > 1 else value)
    return found


def _show(found: Sequence[Row], by: Measure, folder: Path, seeds: int) -> None:
    """One column a method: quality with its controls, bytes, rounds, seconds, memory."""
    summary = found[0].summaries[0]
    each = "1 seed" if seeds == 1 else f"{seeds} seeds"
    console = Console()
    parties = "1 client" if summary["clients"] == 1 else f"{summary['clients']} clients"
    title = f"{summary['dataset']}, {parties}, {each}"
    for part in _parts(found, console.width):
        console.print(_table(part, found, title))
        title = "(continued)"
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
    for line in notes:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _table(part: Sequence[Row], found: Sequence[Row], title: str) -> Table:
    """The lines of all methods' figures, for some of them."""
    table = Table(title=title, title_style="bold")
    table.add_column("", no_wrap=True)
    for row in part:
        table.add_column(row.label, justify="right", no_wrap=True)
    for label, figure in _figures(found):
        table.add_row(label, *(figure(row) for row in part))
    return table


def _parts(found: Sequence[Row], width: int) -> Iterator[list[Row]]:
    """As many methods side by side as the terminal has room for; at least one."""
    endless, part = Console(width=10_000), list[Row]()
    for row in found:
        if part and endless.measure(_table([*part, row], found, "")).maximum > width:
            yield part
            part = []
        part.append(row)
    yield part


def _figures(found: Sequence[Row]) -> list[tuple[str, Callable[[Row], str]]]:
    """Labels, and what stands behind them for one method."""
    quality = _quality(found)
    lines: list[tuple[str, Callable[[Row], str]]] = [
        (heading, partial(_figure, key=key, scale=scale)) for key, heading, scale in quality
    ]
    key, _, scale = quality[0]
    for place, (control, name) in enumerate(CONTROLS.items(), 1):
        if any(control in row.controls for row in found):
            cell = partial(_figure, key=key, scale=scale, control=control)
            lines.insert(place, (f"  {name}", cell))
    if key == "test_accuracy":
        for target in found[0].bytes_to:
            lines.append((f"bytes to {100 * target:g} %", partial(_reached, target=target)))
    lines += [
        ("bytes up", lambda row: _mean_size(row, "bytes_up", "bytes_table")),
        ("bytes down", lambda row: _mean_size(row, "bytes_down")),
        ("rounds", lambda row: f"{mean_and_spread(row.figures('rounds'))[0]:,.0f}"),
        ("seconds", lambda row: f"{mean_and_spread(row.figures('seconds'))[0]:,.1f}"),
        ("peak MiB", lambda row: f"{mean_and_spread(row.figures('peak_memory_mib'))[0]:,.0f}"),
        ("privacy", lambda row: str(row.summaries[0]["privacy"]["guarantee"])),
    ]
    return lines


def _quality(found: Sequence[Row]) -> list[tuple[str, str, float]]:
    """(key, heading, scale) of the columns that say how good the predictions are."""
    known = [
        ("test_accuracy", "test accuracy %", 100.0),
        ("test_auc", "AUC", 1.0),
        ("test_average_precision", "avg. precision", 1.0),
        ("test_loss", "test loss", 1.0),
        ("test_rmse", "test RMSE", 1.0),
        ("test_r2", "R²", 1.0),
    ]
    return [entry for entry in known if found[0].figures(entry[0])]


def _figure(row: Row, *, key: str, scale: float, control: str = "none") -> str:
    """Mean and spread over seeds."""
    figures = row.figures(key, control)
    if not figures:
        return "-"
    mean, spread = mean_and_spread(figures)
    digits = 2 if scale == 100 else 4
    text = f"{scale * mean:.{digits}f}"
    return text if spread is None else f"{text} ± {scale * spread:.{digits}f}"


def _mean_size(row: Row, *keys: str) -> str:
    return size_text(sum(mean_and_spread(row.figures(key))[0] for key in keys))


def _reached(row: Row, *, target: float) -> str:
    """Mean bytes of the seeds that got there, and how many did where not all."""
    each = row.bytes_to[target]
    got = [count for count in each if count is not None]
    if not got:
        return "-"
    text = size_text(sum(got) / len(got))
    return text if len(got) == len(each) else f"{text} ({len(got)} of {len(each)})"
