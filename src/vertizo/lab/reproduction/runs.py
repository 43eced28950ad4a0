"""Make a study's training runs (by `vertizo.lab.comparison`) and its other tasks.

Both are kept, so that the same command continues after Ctrl-C.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from vertizo.config import schema as configuration
from vertizo.config import tree as config_tree
from vertizo.config.error_lines import override
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import Interrupted, UserError
from vertizo.core.names import CONTROLS
from vertizo.lab import cards, comparison, made_by
from vertizo.lab.comparison import Standing
from vertizo.lab.engines import Engine, Run
from vertizo.lab.processes import processes
from vertizo.lab.reproduction.figures import Finished
from vertizo.run.build.label_free import is_private
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

Tree = dict[str, Any]
Figures = Mapping[str, Any]
Key = TypeVar("Key", bound=Hashable)
FAILED = "diverged.txt"
"""Name of the file in a diverged run's folder that says so in a line."""
FORMAT = 2
"""Version of a task's file, which holds its figures and what made them."""


@dataclass(frozen=True)
class Order:
    """How a study is run: folder, engine, seeds and overrides."""

    folder: Path
    engine: Engine
    seeds: int | None = None
    """Number of seeds; None for the study's own number."""
    overrides: tuple[str, ...] = ()
    """``key=value``, applied to every configuration last."""
    report: Callable[[Standing], None] | None = None
    jobs: int = 1
    """Number of tasks at a time that are no training runs."""
    runs_per_card: int = cards.RUNS_PER_CARD


@dataclass(frozen=True)
class Case:
    """One configuration with its number of seeds and its controls."""

    label: str
    config: ExperimentConfig
    seeds: int
    controls: tuple[str, ...] = ()
    """Controls to run; without any, a private run still has the label-free one."""


@dataclass(frozen=True)
class Made:
    """The runs of a case: a finished run for each seed, None for those that diverged."""

    runs: tuple[Finished | None, ...]
    controls: Mapping[str, tuple[Finished | None, ...]]

    @property
    def finished(self) -> list[Finished]:
        """The runs that finished."""
        return [run for run in self.runs if run is not None]

    @property
    def everything(self) -> Mapping[str, tuple[Finished | None, ...]]:
        """The runs by control; the case's own under ``none``."""
        return {"none": self.runs, **self.controls}


def configure(where: str, trees: Sequence[Tree], overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Build a configuration from trees, whose keys each replace those of the trees before.

    The first tree is a whole one; a null in another removes a key. ConfigErrors begin with
    ``where``.
    """
    whole: Tree = {}
    for tree in trees:
        method = whole.get("method", {})
        whole = config_tree.with_entry(whole, tree, str(method.get("name", "dpzv")))
    override(whole, overrides, ExperimentConfig())
    # A study names seeds: it is resumed where it was stopped.
    return configuration.parse({"seed": 0, **_without_nulls(whole)}, where)


def _without_nulls(tree: Tree) -> Tree:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def make(cases: Sequence[Case], order: Order) -> dict[str, Made]:
    """Make the runs that are not finished, and read all of them back, by label.

    A run that diverges is a result: it is recorded, the others go on, and it is not tried again.
    Finished runs are kept when a run fails otherwise, and on Interrupted.
    """
    runs: list[Run] = []
    for case in cases:
        kinds = case.controls or (("label-free",) if is_private(case.config) else ())
        own = {case.label: case.config}
        runs += comparison.plan(own, case.seeds, order.folder, controls=kinds)
    comparison.check(runs)
    left = [run for run in runs if not (run.folder / FAILED).is_file()]
    comparison.execute(left, order.engine, order.report, _noted)
    read: dict[tuple[str, str], tuple[Finished | None, ...]] = {}
    for run in runs:
        at = run.label, run.control
        read[at] = *read.get(at, ()), _read(run)
    found = {}
    for label in (case.label for case in cases):
        controls = {kind: read[label, kind] for kind in CONTROLS if (label, kind) in read}
        found[label] = Made(read[label, "none"], controls)
    return found


def makers(made: Mapping[str, Made]) -> dict[str, Any]:
    """Sum up what made all runs, controls included (`vertizo.lab.made_by`)."""
    runs = [run for case in made.values() for each in case.everything.values() for run in each]
    return made_by.runs(run.folder for run in runs if run is not None)


def _noted(run: Run, error: UserError) -> bool:
    """Record that a run diverged, and return True; False for another failure."""
    if "diverged" not in str(error):
        return False
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / FAILED).write_text(f"{error}\n", encoding="utf-8")
    return True


def _read(run: Run) -> Finished | None:
    folder = RunFolder(run.folder)
    summary = folder.summary()
    return None if summary is None else Finished(summary, folder.metrics(), run.folder)


@dataclass(frozen=True)
class Task:
    """A call of a module's function with plain values, for work that is no training run."""

    name: str
    function: Callable[..., Figures]
    arguments: tuple[Any, ...]

    def file(self, folder: Path) -> Path:
        """Return the file of its figures, which depends on the function and its arguments."""
        call = [FORMAT, self.function.__name__, *self.arguments]
        said = json.dumps(call, sort_keys=True, default=str)
        digest = hashlib.sha256(said.encode()).hexdigest()[:12]
        return folder / "tasks" / f"{self.name}-{digest}.json"


def results(
    tasks: Mapping[Key, Task],
    folder: Path,
    jobs: int,
    report: Callable[[Standing], None] | None = None,
    *,
    reused: bool = False,
    runs_per_card: int = cards.RUNS_PER_CARD,
) -> tuple[dict[Key, Figures], dict[str, Any]]:
    """Do the tasks that are left, each in a fresh process, and keep their figures in a folder.

    With ``reused``, a process does one task after another, so that its peak memory is no task's
    own. Finished tasks are kept when one fails or all are interrupted.

    Returns:
        The figures by key, and what made them.
    """
    left = [task for task in tasks.values() if not task.file(folder).is_file()]
    finished = len(tasks) - len(left)
    calls = ((task.file(folder), _timed, (task.function, task.arguments)) for task in left)
    try:
        given = (argument for task in left for argument in task.arguments)
        places = cards.places(given, runs_per_card)
        with processes(jobs, reused=reused, places=places) as pool:
            for ended in pool.make(calls):
                if ended is not None:
                    file, future = ended
                    done = future.result()
                    with checkpoint.writing(file):
                        file.parent.mkdir(parents=True, exist_ok=True)
                    checkpoint.keep(file, json.dumps(done).encode())
                    finished += 1
                elif report is not None:
                    report(Standing(finished, len(tasks), finished / len(tasks)))
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None
    kept = {key: json.loads(checkpoint.kept(task.file(folder))) for key, task in tasks.items()}
    figures = {key: each["figures"] for key, each in kept.items()}
    return figures, made_by.together(each["made_by"] for each in kept.values())


def _timed(function: Callable[..., Figures], arguments: tuple[Any, ...]) -> dict[str, Any]:
    began = perf_counter()
    figures = function(*arguments)
    return {"figures": figures, "made_by": made_by.this(perf_counter() - began)}
