"""``vertizo train``: a live bar while it runs, a table when it is done."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vertizo.config import schema as configuration
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, Interrupted, RunError
from vertizo.run import live, summary_figures, tracking
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder

CONTROLS = ("frozen", "random")


def train(
    path: Path | None,
    settings: Sequence[str],
    out: Path | None,
    resume: Path | None,
    *,
    controls: bool,
    as_json: bool,
    track: Sequence[str] = (),
) -> None:
    """Run, or go on with, one experiment and its controls.

    Raises:
        UserError: one line that says what is wrong.
    """
    errors = Console(stderr=True)
    tracking.check(track)
    if resume is not None:
        if path is not None or settings or out is not None:
            raise ConfigError("--resume goes on as configured; leave out CONFIG, --set and --out")
        config = RunFolder(resume).config()
        place: AbstractContextManager[Path] = nullcontext(resume)
        controls = controls or (resume / "controls").is_dir()
    else:
        config = configuration.load(path, settings)
        place = _new_folder(config) if out is None else nullcontext(out)
    with place as folder:
        if resume is None:
            RunFolder(folder).check_is_new()
        summaries = _all(config, folder, resume is not None, controls, errors, track)
    if as_json:
        print(json.dumps(summaries[0]))
    else:
        _show(summaries, folder)


@contextmanager
def _new_folder(config: ExperimentConfig) -> Iterator[Path]:
    """A folder below ``runs``, taken at once, so that no other run picks it; removed if unused."""
    base = Path("runs") / f"{config.data.name}-{config.method.name}-seed{config.seed}"
    names = chain([base], (base.with_name(f"{base.name}-{number}") for number in count(2)))
    begun = base.parent.exists()
    try:
        base.parent.mkdir(exist_ok=True)
        folder = next(each for each in names if _made(each))
    except OSError as error:
        raise RunError(
            f"{base} cannot be made: {error.strerror}; name a folder with --out"
        ) from None
    try:
        yield folder
    finally:
        with suppress(OSError):  # there is something in it
            folder.rmdir()
            if not begun:
                base.parent.rmdir()


def _made(folder: Path) -> bool:
    """Make a folder, unless it is there already."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _all(
    config: ExperimentConfig,
    folder: Path,
    resume: bool,
    controls: bool,
    errors: Console,
    track: Sequence[str],
) -> list[dict[str, Any]]:
    """The run, and its controls."""
    try:
        summaries = [_run(config, folder, resume, "", errors, track)]
        for control in CONTROLS if controls else ():
            (folder / "controls").mkdir(exist_ok=True)
            place = folder / "controls" / control
            controlled = config.model_copy(update={"control": control})
            begun = (place / "config.yaml").is_file()
            summaries.append(_run(controlled, place, begun, f"{control} clients", errors, track))
    except Interrupted as error:
        if not (folder / "config.yaml").is_file():
            raise
        hint = f"continue with --resume {shlex.quote(str(folder))}"
        if config.privacy.noise == "secure":
            hint = "secret noise cannot be repeated: start again, or with a seed (--set seed=0)"
        raise Interrupted(f"{error}; {hint}") from None
    return summaries


def _run(
    config: ExperimentConfig,
    folder: Path,
    resume: bool,
    label: str,
    errors: Console,
    track: Sequence[str],
) -> dict[str, Any]:
    known = RunFolder(folder).summary() if resume else None
    if known is not None:
        return known
    experiment = Experiment(config)
    for note in experiment.data().notes if config.control == "none" else ():
        errors.print(f"note: {note}", soft_wrap=True, highlight=False, markup=False)
    with (
        live.bar(label or config.method.name, errors) as show,
        experiment.opened(folder, resume=resume, progress=show, track=track) as training,
    ):
        for note in training.federation.notes if config.control == "none" else ():
            errors.print(f"note: {note}", soft_wrap=True, highlight=False, markup=False)
        return training.run(resume=resume).summary


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
    for same in zip(*map(summary_figures.rows, summaries), strict=True):
        table.add_row(same[0][0], *(text for _, text in same))
    console.print(table)
    for line in (f"privacy: {summaries[0]['privacy']['words']}", f"run folder: {folder}"):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
