"""Several methods side by side: the same data, models, batches and seeds.

Every random stream of a run comes from its seed and from a name that does not mention the method,
so that runs of one seed share their records for validation, initial parameters and delays, and
those of one timing their batches: asynchronous clients draw their own, a synchronous server draws
for all.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vertizo.config import schema as configuration
from vertizo.config import tree as config_tree
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, Interrupted, RunError
from vertizo.run import checkpoint
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder
from vertizo.studies.engines import Engine, Forgive, Run, nothing_is_forgiven, share_done

Measure = Literal["validation", "train"]
CONTROLS = {"frozen": "frozen clients", "random": "random updates"}
"""The runs that an accuracy is held against, and what they are called."""


@dataclass(frozen=True)
class Standing:
    """How far a comparison has come."""

    finished: int
    total: int
    share: float
    """Of all runs' rounds, in [0, 1]."""


def plan(
    configs: Mapping[str, ExperimentConfig], seeds: int, folder: Path, *, controls: bool
) -> list[Run]:
    """All runs: every method and seed, and its controls.

    Args:
        configs: label → configuration; its seed is the first.
        seeds: how many seeds, counted up from the first.
        folder: where the runs' own folders go: label/seedN, label/seedN-frozen.
        controls: also with frozen clients, and with random updates.

    Raises:
        ConfigError: a configuration is a control itself.
    """
    controlled = next((c for c in configs.values() if c.control != "none"), None)
    if controlled is not None:
        raise ConfigError(
            f"control is {controlled.control!r}; a comparison runs controls itself (--controls)"
        )
    kinds = ("none", *CONTROLS) if controls else ("none",)
    runs = []
    for label, config in configs.items():
        for seed in range(config.seed, config.seed + seeds):
            for control in kinds:
                suffix = "" if control == "none" else f"-{control}"
                changed = config.model_copy(update={"seed": seed, "control": control})
                runs.append(Run(label, control, changed, folder / label / f"seed{seed}{suffix}"))
    return runs


def check(runs: Sequence[Run]) -> list[str]:
    """Build each method's parties once, so that what does not fit fails before anything runs.

    Returns:
        What the data sets are remarkable for (`vertizo.data.vertical.VerticalData.notes`).

    Raises:
        UserError: the first run that cannot start; or its folder holds another run.
    """
    seen = set()
    data: dict[tuple[int, str], Any] = {}
    for run in runs:
        if (run.folder / "config.yaml").is_file():
            try:
                Experiment(run.config).check_same(RunFolder(run.folder))
            except RunError:
                raise RunError(
                    f"{run.folder} holds a run of another configuration; name another --out"
                ) from None
        if run.label in seen:
            continue
        seen.add(run.label)
        key = run.config.seed, run.config.data.model_dump_json()
        experiment = Experiment(run.config, data.get(key))
        data[key] = experiment.data()
        experiment.check()
    return list(dict.fromkeys(note for each in data.values() for note in each.notes))


def execute(
    runs: Sequence[Run],
    engine: Engine,
    progress: Callable[[Standing], None] | None = None,
    forgive: Forgive = nothing_is_forgiven,
) -> dict[Run, dict[str, Any]]:
    """Make all runs that are not finished, and return every run's summary.

    Args:
        runs: from `plan`.
        engine: makes them.
        progress: called about twice a second.
        forgive: whether the others go on after one failed, whose summary is then empty.

    Raises:
        UserError: a run failed; the others that were going are finished first.
        Interrupted: stopped; what is finished is kept.
    """
    summaries = {run: known for run in runs if (known := _summary(run)) is not None}
    try:
        with closing(engine.make([run for run in runs if run not in summaries], forgive)) as made:
            for run in made:
                if run is not None:
                    summaries[run] = _summary(run) or {}
                elif progress is not None:
                    shares = [share_done(run.folder, run.config) for run in runs]
                    progress(Standing(shares.count(1.0), len(runs), sum(shares) / len(runs)))
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None
    return summaries


def _summary(run: Run) -> dict[str, Any] | None:
    folder = RunFolder(run.folder)
    return folder.summary() if (run.folder / "config.yaml").is_file() else None


def bytes_to(
    metrics: Sequence[Mapping[str, Any]], target: float, by: Measure, table: int = 0
) -> int | None:
    """Bytes sent in both directions until accuracy first reached ``target``; None if it did not.

    Args:
        metrics: a run's evaluations in order.
        target: accuracy in [0, 1].
        by: on validation records (test records where none were set aside), or the running accuracy
            on the training records between two evaluations.
        table: bytes that filled the table beforehand.
    """
    names = ("train_accuracy",) if by == "train" else ("validation_accuracy", "test_accuracy")
    for row in metrics:
        found = next((row[name] for name in names if row.get(name) is not None), None)
        if found is not None and found >= target:
            return int(row["bytes_up"] + row["bytes_down"] + table)
    return None


@dataclass(frozen=True)
class Row:
    """One method's figures over its seeds."""

    label: str
    summaries: tuple[dict[str, Any], ...]
    controls: Mapping[str, tuple[dict[str, Any], ...]]
    bytes_to: Mapping[float, tuple[int | None, ...]]
    """Accuracy → bytes of each seed."""

    def figures(self, key: str, control: str = "none") -> list[float]:
        """One figure of every seed's summary; empty where it has none."""
        chosen = self.summaries if control == "none" else self.controls.get(control, ())
        return [summary[key] for summary in chosen if summary.get(key) is not None]

    def as_dict(self) -> dict[str, Any]:
        """For ``comparison.json``."""
        scores = [key for key in self.summaries[0] if key.startswith("test_")]
        sizes = ["bytes_up", "bytes_down", "bytes_table", "rounds", "epochs", "seconds"]
        keys = [*scores, *sizes, "peak_memory_mib"]
        return {
            "seeds": [summary["seed"] for summary in self.summaries],
            **{key: self.figures(key) for key in keys},
            "controls": {
                control: {key: self.figures(key, control) for key in scores}
                for control in self.controls
            },
            "bytes_to": {f"{100 * t:g} %": list(each) for t, each in self.bytes_to.items()},
            "privacy": self.summaries[0]["privacy"]["guarantee"],
        }


def rows(
    runs: Sequence[Run],
    summaries: Mapping[Run, dict[str, Any]],
    targets: Sequence[float],
    by: Measure,
) -> list[Row]:
    """One row for each label, in the order of the runs."""
    found = []
    for label in dict.fromkeys(run.label for run in runs):
        own = [run for run in runs if run.label == label]
        plain = [run for run in own if run.control == "none"]
        controls = {
            control: tuple(summaries[run] for run in own if run.control == control)
            for control in CONTROLS
            if any(run.control == control for run in own)
        }
        metrics = [(RunFolder(run.folder).metrics(), summaries[run]) for run in plain]
        reached = {
            target: tuple(bytes_to(m, target, by, s["bytes_table"]) for m, s in metrics)
            for target in targets
        }
        found.append(Row(label, tuple(summaries[run] for run in plain), controls, reached))
    return found


def mean_and_spread(figures: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and standard deviation where there are several."""
    spread = statistics.stdev(figures) if len(figures) > 1 else None
    return statistics.fmean(figures), spread


def write(folder: Path, found: Sequence[Row], settings: Mapping[str, Any]) -> None:
    """Leave the figures in ``comparison.json``."""
    content = {**settings, "methods": {row.label: row.as_dict() for row in found}}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    checkpoint.write_atomically(folder / "comparison.json", text.encode())


def configurations(
    path: Path | None, overrides: Sequence[str], labels: Sequence[str]
) -> dict[str, ExperimentConfig]:
    """The configuration of every label; without labels, those of the file's ``methods``.

    Runs of a comparison have seeds, given or not: it is gone on with where it was stopped.

    Raises:
        ConfigError: an unknown method, or one that does not fit; names it.
    """
    wanted = list(labels) or (config_tree.labels(path) if path is not None else [])
    source = "--set" if path is None else str(path)
    trees = {
        label: config_tree.read(path, overrides, label, ExperimentConfig()) for label in wanted
    }
    return {
        label: configuration.parse({"seed": 0, **tree}, source) for label, tree in trees.items()
    }
