"""The training runs of a study: planned and made by `vertizo.studies.comparison`, and read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertizo.config import schema as configuration
from vertizo.config import tree as config_tree
from vertizo.config.error_lines import override
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import UserError
from vertizo.run.folder import RunFolder
from vertizo.studies import comparison
from vertizo.studies.comparison import Standing
from vertizo.studies.engines import Engine, Run
from vertizo.studies.reproduction.figures import Finished

Tree = dict[str, Any]
FAILED = "diverged.txt"
"""In the folder of a run that diverged: the line that says so."""


@dataclass(frozen=True)
class Order:
    """How a study is to be run."""

    folder: Path
    """Of its runs."""
    engine: Engine
    seeds: int | None = None
    """Unset: the study's own number."""
    overrides: tuple[str, ...] = ()
    """``key=value``, applied to every configuration last."""
    report: Callable[[Standing], None] | None = None
    jobs: int = 1
    """Tasks at a time, of what is no training run."""


@dataclass(frozen=True)
class Case:
    """One configuration, and how often it is run."""

    label: str
    config: ExperimentConfig
    seeds: int
    controls: bool = False


@dataclass(frozen=True)
class Made:
    """What became of a case: a finished run for each seed, None for those that diverged."""

    runs: tuple[Finished | None, ...]
    controls: Mapping[str, tuple[Finished | None, ...]]
    config: ExperimentConfig

    @property
    def finished(self) -> list[Finished]:
        """Those that came to their end."""
        return [run for run in self.runs if run is not None]


def configure(where: str, trees: Sequence[Tree], overrides: Sequence[str] = ()) -> ExperimentConfig:
    """A configuration from trees, each with its keys in place of those before.

    Args:
        where: what they are, for errors.
        trees: the first is a whole one; a null in another takes a key away.
        overrides: ``key=value``, applied last.

    Raises:
        ConfigError: names the key and what would be right.
    """
    whole: Tree = {}
    for tree in trees:
        method = whole.get("method", {})
        whole = config_tree.with_entry(whole, tree, str(method.get("name", "dpzv")))
    override(whole, overrides, ExperimentConfig())
    # A study names seeds: it is gone on with where it was stopped.
    return configuration.parse({"seed": 0, **_without_nulls(whole)}, where)


def _without_nulls(tree: Tree) -> Tree:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def make(cases: Sequence[Case], order: Order) -> dict[str, Made]:
    """Make what is not finished, and read everything back: label → what became of it.

    A run that diverges is a result: it is noted, the others go on, and it is not tried again.

    Raises:
        UserError: a case cannot start, or a run failed otherwise than by diverging.
        Interrupted: stopped; what is finished is kept.
    """
    runs = [
        run
        for case in cases
        for run in comparison.plan(
            {case.label: case.config}, case.seeds, order.folder, controls=case.controls
        )
    ]
    comparison.check(runs)
    left = [run for run in runs if not (run.folder / FAILED).is_file()]
    comparison.execute(left, order.engine, order.report, _noted)
    found = {}
    for case in cases:
        own = [run for run in runs if run.label == case.label]
        kinds = comparison.CONTROLS if case.controls else ()
        plain, *controls = (
            tuple(_read(run) for run in own if run.control == kind) for kind in ("none", *kinds)
        )
        found[case.label] = Made(plain, dict(zip(kinds, controls, strict=True)), case.config)
    return found


def _noted(run: Run, error: UserError) -> bool:
    """Keep that a run diverged; another failure ends the study."""
    if "diverged" not in str(error):
        return False
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / FAILED).write_text(f"{error}\n", encoding="utf-8")
    return True


def _read(run: Run) -> Finished | None:
    folder = RunFolder(run.folder)
    summary = folder.summary()
    return None if summary is None else Finished(summary, folder.metrics(), run.folder)
