"""``vertizo train``: a live bar while it runs, a table when it is done."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from vertizo import config as configuration
from vertizo.cli.figures import size_text
from vertizo.config import ExperimentConfig
from vertizo.errors import ConfigError, Interrupted
from vertizo.experiment import Experiment, Progress
from vertizo.run_folder import RunFolder

CONTROLS = ("frozen", "random")


def train(
    path: Path | None,
    settings: Sequence[str],
    out: Path | None,
    resume: Path | None,
    *,
    controls: bool,
    as_json: bool,
) -> None:
    """Run, or go on with, one experiment and its controls.

    Raises:
        UserError: one line that says what is wrong.
    """
    errors = Console(stderr=True)
    if resume is not None:
        if path is not None or settings or out is not None:
            raise ConfigError("--resume goes on as configured; leave out CONFIG, --set and --out")
        config, folder = RunFolder(resume).config(), resume
        controls = controls or (folder / "controls").is_dir()
    else:
        config = configuration.load(path, settings)
        folder = out if out is not None else _new_folder(config)
        RunFolder(folder).check_is_new()
    try:
        summaries = [_run(config, folder, resume is not None, "", errors)]
        for control in CONTROLS if controls else ():
            (folder / "controls").mkdir(exist_ok=True)
            place = folder / "controls" / control
            controlled = config.model_copy(update={"control": control})
            begun = (place / "config.yaml").is_file()
            summaries.append(_run(controlled, place, begun, f"{control} clients", errors))
    except Interrupted as error:
        if not (folder / "config.yaml").is_file():
            raise
        hint = f"continue with --resume {shlex.quote(str(folder))}"
        raise Interrupted(f"{error}; {hint}") from None
    if as_json:
        print(json.dumps(summaries[0]))
    else:
        _show(summaries, folder)


def _new_folder(config: ExperimentConfig) -> Path:
    base = Path("runs") / f"{config.data.name}-{config.method.name}-seed{config.seed}"
    folder, count = base, 1
    while folder.exists():
        count += 1
        folder = base.with_name(f"{base.name}-{count}")
    return folder


def _run(
    config: ExperimentConfig, folder: Path, resume: bool, label: str, errors: Console
) -> dict[str, Any]:
    known = RunFolder(folder).summary() if resume else None
    if known is not None:
        return known
    experiment = Experiment(config)
    with _bar(label or config.method.name, errors) as show:
        return experiment.run(folder, resume=resume, progress=show).summary


def _figures(here: Progress) -> str:
    """Rounds, loss, accuracy, megabytes and ε."""
    parts = [f"{here.round:,} of {here.total:,} rounds"]
    if here.seconds:
        parts.append(f"{here.round / here.seconds:,.0f}/s")
    if here.loss is not None:
        parts.append(f"loss {here.loss:.3f}")
    if here.accuracy is not None:
        parts.append(f"acc {100 * here.accuracy:.1f} %")
    parts.append(f"{here.megabytes:,.1f} MB")
    parts.append("no ε" if here.epsilon is None else f"ε {here.epsilon:.3g}")
    return " · ".join(parts)


@contextmanager
def _bar(label: str, console: Console) -> Iterator[Callable[[Progress], None] | None]:
    """A live bar and a line of figures on a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield None
        return
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        expand=True,
    )
    task, figures = bar.add_task(label, total=None), Text(style="dim", overflow="ellipsis")

    def show(here: Progress) -> None:
        bar.update(task, completed=here.round, total=here.total)
        figures.plain = _figures(here)

    with Live(Group(bar, figures), console=console, transient=True):
        yield show


def _show(summaries: list[dict[str, Any]], folder: Path) -> None:
    """The closing table: the run, and its controls beside it."""
    console = Console()
    table = Table(
        title=f"{summaries[0]['method']} on {summaries[0]['dataset']}", title_style="bold"
    )
    table.add_column("")
    for summary in summaries:
        control = summary["control"]
        table.add_column("run" if control == "none" else f"{control} clients", justify="right")
    for label, figure in _rows(summaries[0]):
        table.add_row(label, *(figure(summary) for summary in summaries))
    console.print(table)
    for line in (f"privacy: {summaries[0]['privacy']['words']}", f"run folder: {folder}"):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _rows(first: dict[str, Any]) -> list[tuple[str, Callable[[dict[str, Any]], str]]]:
    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = []
    if "test_accuracy" in first:
        rows.append(("test accuracy", lambda s: f"{100 * s['test_accuracy']:.2f} %"))
    if "test_auc" in first:
        rows.append(("test AUC", lambda s: f"{s['test_auc']:.4f}"))
        if first.get("classes"):
            rows.append(("  positive class", lambda s: str(s["classes"][1])))
        rows.append(("average precision", lambda s: f"{s['test_average_precision']:.4f}"))
    if "test_rmse" in first:
        rows.append(("test RMSE", lambda s: f"{s['test_rmse']:.4g}"))
        rows.append(("test R²", lambda s: f"{s['test_r2']:.4f}"))
    loss = "test log loss" if "test_accuracy" in first else "test loss"
    rows += [
        (loss, lambda s: f"{s['test_loss']:.4f}"),
        ("model", lambda s: "last" if s["model"] == "last" else _best(s)),
        ("clients", lambda s: str(s["clients"])),
        ("rounds", lambda s: f"{s['rounds']:,}"),
        ("rounds/s", lambda s: f"{s['rounds_per_second']:,.0f}"),
        ("seconds", lambda s: f"{s['seconds']:.1f}"),
        ("bytes up", lambda s: size_text(s["bytes_up"] + s["bytes_table"])),
        ("bytes down", lambda s: size_text(s["bytes_down"])),
        ("staleness", lambda s: "mean {mean:.0f}, max {max}".format(**s["staleness"])),
        ("peak memory", lambda s: f"{s['peak_memory_mib']:,.0f} MiB"),
        ("privacy", _privacy),
    ]
    return rows


def _best(summary: dict[str, Any]) -> str:
    return f"best, round {summary['best']['round']:,}"


def _privacy(summary: dict[str, Any]) -> str:
    privacy = summary["privacy"]
    if privacy["epsilon"] is None:
        return str(privacy["guarantee"])
    return f"{privacy['guarantee']}: ε {privacy['epsilon']:.3g}, δ {privacy['delta']:g}"
