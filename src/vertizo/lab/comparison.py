"""Compare several methods on the same data, models, batches and seeds.

Every random stream of a run comes from its seed and from a name that does not mention the method.
So runs of one seed share their validation records, initial parameters and delays, and those of one
timing their batches: asynchronous clients draw their own, a synchronous server draws for all.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vertizo.config import schema as configuration
from vertizo.config import tree as config_tree
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, Interrupted
from vertizo.core.names import CONTROLS
from vertizo.lab.engines import Engine, Forgive, Run, share_done
from vertizo.privacy.accounting import label_advantage
from vertizo.run.build.label_free import controls_of
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder
from vertizo.run.results.summary_figures import rows as summary_rows

Measure = Literal["validation", "train"]
MOST_POINTS = 50
"""Most points of a curve that is kept with a result."""
SIZES = (
    *("bytes_up", "bytes_down", "bytes_table", "rounds", "epochs", "seconds"),
    "peak_memory_mib",
)
"""Keys of a summary for a run's cost."""
Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Standing:
    """Progress of several runs."""

    finished: int
    total: int
    share: float
    """Finished share of all runs, in [0, 1]."""
    beside: str = ""
    """More text on the progress."""
    latest: str = ""
    """After a ``·``, the run that finished last, and its first figure."""


def configurations(
    path: Path | config_tree.Tree | None, overrides: Sequence[str], labels: Sequence[str]
) -> dict[str, ExperimentConfig]:
    """Load the configuration of every label; without labels, of those in section ``methods``.

    The default seed is 0, so that a stopped comparison can be resumed. ConfigError if a method is
    unknown or does not fit.
    """
    source = config_tree.called(path)
    found = {}
    for label in list(labels) or config_tree.labels(path):
        tree = config_tree.read(path, overrides, label, ExperimentConfig())
        found[label] = configuration.parse({"seed": 0, **tree}, source)
    return found


def plan(
    configs: Mapping[str, ExperimentConfig], seeds: int, folder: Path, *, controls: Collection[str]
) -> list[Run]:
    """List all runs: every method with every seed, and those of ``controls`` that it has.

    A configuration's seed is the first of ``seeds``. Runs have their own folders: label/seedN,
    label/seedN-frozen. ConfigError if a configuration is a control itself.
    """
    runs = []
    for label, config in configs.items():
        if config.control != "none":
            raise ConfigError(
                f"control is {config.control!r}; a comparison runs controls itself (--controls)"
            )
        kinds = ("none", *(name for name in controls_of(config) if name in controls))
        for seed in range(config.seed, config.seed + seeds):
            for control in kinds:
                suffix = "" if control == "none" else f"-{control}"
                changed = config.model_copy(update={"seed": seed, "control": control})
                runs.append(Run(label, control, changed, folder / label / f"seed{seed}{suffix}"))
    return runs


def check(runs: Sequence[Run]) -> list[str]:
    """Build each method's parties once, so that errors are raised before anything runs.

    Returns notes on the data sets (`vertizo.data.vertical.VerticalData.notes`). UserError if a run
    cannot start, or its folder holds another run.
    """
    seen = set()
    data: dict[tuple[int, str], Any] = {}
    for run in runs:
        key = run.config.seed, run.config.data.model_dump_json()
        experiment = Experiment(run.config, data.get(key))
        if (run.folder / "config.yaml").is_file():
            experiment.check_same(RunFolder(run.folder), "name another --out")
        if run.label in seen:
            continue
        seen.add(run.label)
        data[key] = experiment.data()
        experiment.check()
    return list(dict.fromkeys(note for each in data.values() for note in each.notes))


def execute(
    runs: Sequence[Run],
    engine: Engine,
    progress: Callable[[Standing], None] | None = None,
    forgive: Forgive | None = None,
) -> dict[Run, dict[str, Any]]:
    """Make all runs of a plan that are not finished, and return every run's summary.

    ``progress`` is called about twice a second. ``forgive`` decides whether the others go on after
    a failure; the failed run's summary is then empty. Finished runs are kept in any case.

    Raises:
        UserError: a run failed unforgiven; the others that were going are finished first.
        Interrupted: the runs were stopped by Ctrl-C.
    """
    summaries = {run: known for run in runs if (known := _summary(run)) is not None}
    latest = ""
    try:
        with closing(engine.make([run for run in runs if run not in summaries], forgive)) as made:
            for run in made:
                if run is not None:
                    summaries[run] = _summary(run) or {}
                    latest = _told(run, summaries[run])
                elif progress is not None:
                    shares = [share_done(run.folder, run.config) for run in runs]
                    share = sum(shares) / len(runs)
                    progress(Standing(shares.count(1.0), len(runs), share, latest=latest))
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None
    return summaries


def _summary(run: Run) -> dict[str, Any] | None:
    folder = RunFolder(run.folder)
    return folder.summary() if (run.folder / "config.yaml").is_file() else None


def _told(run: Run, summary: Summary) -> str:
    control = "" if run.control == "none" else f", {CONTROLS[run.control]}"
    name, text = summary_rows(summary)[0] if summary else ("failed", "")
    return f" · {run.label}, seed {run.config.seed}{control}: {name} {text}".rstrip()


def value_of(row: Mapping[str, Any], key: str) -> float | None:
    """Return an evaluation's figure, on validation records, or else on test records."""
    names = (key,) if key.startswith("train") else (f"validation_{key}", f"test_{key}")
    return next((row[name] for name in names if row.get(name) is not None), None)


def first_reaching(
    metrics: Sequence[Mapping[str, Any]], target: float, key: str = "accuracy"
) -> Mapping[str, Any] | None:
    """Return a run's first evaluation whose accuracy reached a target in [0, 1], or None."""
    values = ((row, value_of(row, key)) for row in metrics)
    return next((row for row, value in values if value is not None and value >= target), None)


def curve(metrics: Sequence[Mapping[str, Any]], key: str = "accuracy") -> list[list[float]]:
    """Return a run's evaluations as pairs of epoch and accuracy, or loss where it has no accuracy.

    Values have four decimals. There are about `MOST_POINTS` pairs at most, the last one always.
    """
    pairs = [(row["epoch"], value) for row in metrics if (value := value_of(row, key)) is not None]
    if not pairs and key != "loss":
        return curve(metrics, "loss")
    step = max(1, -(-len(pairs) // MOST_POINTS))
    kept = pairs[:-1:step] + pairs[-1:]
    return [[round(epoch, 4), round(value, 4)] for epoch, value in kept]


def bytes_to(
    metrics: Sequence[Mapping[str, Any]], target: float, by: Measure, table: int = 0
) -> int | None:
    """Return the bytes in both directions until accuracy first reached ``target``; None if never.

    The accuracy is that of `value_of`, or (``by`` train) the running one on training records
    between two evaluations. ``table`` are the bytes that filled the embedding table beforehand.
    """
    row = first_reaching(metrics, target, "train_accuracy" if by == "train" else "accuracy")
    return None if row is None else int(row["bytes_up"] + row["bytes_down"] + table)


@dataclass(frozen=True)
class Row:
    """The figures of one method over its seeds."""

    label: str
    summaries: Mapping[str, Sequence[Summary]]
    """Control → summaries of every seed; those of the method itself under ``none``."""
    bytes_to: Mapping[float, Sequence[int | None]]
    curves: Sequence[list[list[float]]] = ()
    """The `curve` of every seed."""

    @property
    def first(self) -> Summary:
        """The first seed's summary."""
        return self.summaries["none"][0]

    def figures(self, key: str, control: str = "none") -> list[float]:
        """Return a figure (``key`` or ``section.key``) of every summary that has it."""
        section, _, name = key.rpartition(".")
        summaries = self.summaries.get(control, ())
        found = [((one.get(section) or {}) if section else one).get(name) for one in summaries]
        return [value for value in found if value is not None]

    def records(self) -> list[dict[str, Any]]:
        """Return a dict for each run: method, control, seed, scores, sizes and ε."""
        found = []
        for control, summaries in self.summaries.items():
            for one in summaries:
                own = {"method": self.label, "control": control, "seed": one["seed"]}
                own |= {key: one[key] for key in one if key in SIZES or key.startswith("test_")}
                found.append(own | {"epsilon": one["privacy"]["epsilon"]})
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the method's entry in ``comparison.json``."""
        scores = [key for key in self.first if key.startswith("test_")]
        scores += [f"raw_head.{key}" for key in self.first.get("raw_head", {}) if "test_" in key]
        return {
            "seeds": self.figures("seed"),
            **{key: self.figures(key) for key in [*scores, *SIZES]},
            "controls": {
                control: {key: self.figures(key, control) for key in scores}
                for control in CONTROLS
                if control in self.summaries
            },
            "bytes_to": {f"{100 * t:g} %": list(each) for t, each in self.bytes_to.items()},
            "curves": list(self.curves),
            "privacy": self.first["privacy"]["guarantee"],
            **{key: self.first["privacy"].get(key) for key in ("epsilon", "delta")},
            "label_advantage": label_advantage.of(self.first["privacy"]),
        }


def rows(
    runs: Sequence[Run], summaries: Mapping[Run, Summary], targets: Sequence[float], by: Measure
) -> list[Row]:
    """Build one row for each label, in the order of the runs."""
    found = []
    for label in dict.fromkeys(run.label for run in runs):
        own: dict[str, list[Summary]] = {}
        evaluated = []
        for run in (run for run in runs if run.label == label):
            own.setdefault(run.control, []).append(summaries[run])
            if run.control == "none":
                evaluated.append((RunFolder(run.folder).metrics(), summaries[run]["bytes_table"]))
        reached = {
            target: tuple(bytes_to(metrics, target, by, table) for metrics, table in evaluated)
            for target in targets
        }
        found.append(Row(label, own, reached, [curve(metrics) for metrics, _ in evaluated]))
    return found


def mean_and_spread(figures: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of figures, and their standard deviation; None for that of a single one."""
    spread = statistics.stdev(figures) if len(figures) > 1 else None
    return statistics.fmean(figures), spread
