"""Trackers: evaluations of a run, passed on to TensorBoard or MLflow as they are made.

No number of a run depends on them. A resumed run goes on in the same place, and no evaluation is
shown twice.

=======================  ==============================================================
``tensorboard=DIR``      event files, in a folder of the run's own below DIR
``mlflow=DIR``           an SQLite store ``DIR/mlflow.db``, with files in ``DIR/artifacts``
``mlflow=URI``           a tracking server or store, e.g. ``http://…`` or ``sqlite:///…``
``package.mod:C=PLACE``  a `Callback` of one's own, made as ``C(place, tracked)``
=======================  ==============================================================
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.plugins.registry import Registry
from vertizo.core.text import strict_json
from vertizo.run.loop.callbacks import Callback, Listeners, Tracked, named
from vertizo.run.loop.callbacks import check as check_callback

EXPERIMENT = "vertizo"
"""MLflow's experiment that all runs belong to."""
RUN_TAG = "vertizo.run"
"""MLflow's tag by which a resumed run is found again."""


@contextmanager
def opened(
    targets: Sequence[str], tracked: Tracked, callbacks: Sequence[Any] = ()
) -> Iterator[Listeners]:
    """Yield trackers for ``--track`` values (the table above) and ``callbacks``; close them after.

    Raises:
        ConfigError: an unknown kind, a package is missing, or an object is no callback.
        RunError: a tracker failed.
    """
    for callback in callbacks:
        check_callback(callback)
    trackers = {spec: _make(spec, tracked) for spec in dict.fromkeys(targets)}
    listeners = Listeners(trackers, callbacks)
    try:
        yield listeners
    except BaseException:
        listeners.tell("on_close", finished=False)
        raise
    listeners.tell("on_close", finished=True)


def check(targets: Sequence[str]) -> None:
    """Raise ConfigError, before a run begins, for an unknown kind, a place that cannot be used, or
    a missing package."""
    for spec in targets:
        kind, _, place = spec.partition("=")
        if not TRACKERS.knows(kind) or not place.strip():
            raise ConfigError(
                f"--track {spec} is not understood; write tensorboard=DIR, mlflow=DIR or mlflow=URI"
            )
        try:
            if kind == "tensorboard":
                import torch.utils.tensorboard  # noqa: F401

                _check_folder(spec, place)
            elif kind == "mlflow":
                _import_mlflow()
                if "://" not in place or place.startswith("sqlite"):
                    import alembic  # noqa: F401
                    import sqlalchemy  # noqa: F401
                if "://" not in place:
                    _check_folder(spec, place)
            else:
                TRACKERS.find(kind, "--track")
        except ImportError:
            raise ConfigError(
                f"--track {spec} needs packages that are not here; pip install 'vertizo[tracking]'"
            ) from None


def _check_folder(spec: str, place: str) -> None:
    """Raise ConfigError unless a folder exists or can be made; do not make it yet."""
    folder = Path(place).absolute()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        raise ConfigError(f"--track {spec}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--track {spec}: {there} cannot be written; name another folder")


def _make(spec: str, tracked: Tracked) -> Callback:
    check([spec])
    kind, _, place = spec.partition("=")
    with named(spec):
        tracker = TRACKERS.find(kind, "--track")(place, tracked)
        check_callback(tracker)
        return tracker


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row by grouped name; other values are left out.

    >>> figures({"round": 3, "test_loss": 0.5, "train_loss": None, "queries": [2, 1]})
    {'round': 3.0, 'test/loss': 0.5, 'queries/client0': 2.0, 'queries/client1': 1.0}
    """
    numbers: dict[str, float] = {}
    for key, value in row.items():
        group, _, rest = key.partition("_")
        grouped = group in ("validation", "test", "train", "staleness", "bytes") and rest
        name = f"{group}/{rest}" if grouped else key
        if isinstance(value, list):
            numbers |= figures({f"{name}/client{place}": each for place, each in enumerate(value)})
        elif isinstance(value, (int, float)) and math.isfinite(value):
            numbers[name] = float(value)
    return numbers


class _TensorBoard(Callback):
    """Writes a run's event files for TensorBoard, in a folder of many runs."""

    def __init__(self, place: str, tracked: Tracked) -> None:
        self._folder = Path(place) / f"{tracked.title}-{tracked.name[:8]}"
        self._config = tracked.config
        self._writer: Any = None
        self._last = 0

    def on_start(self, run: Tracked, round_: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter
        # What an earlier process wrote of later rounds is passed over by whoever reads the files.
        self._writer = make(str(self._folder), purge_step=None if round_ is None else round_ + 1)

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._last = row["round"]
        for name, value in figures(row).items():
            self._writer.add_scalar(name, value, self._last)
        self._writer.flush()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        for name, value in _closing(summary).items():
            self._writer.add_scalar(name, value, summary["rounds"])
        for name, _, text in _texts(self._config, summary):
            indented = "".join(f"    {line}\n" for line in text.splitlines())  # code, in Markdown
            self._writer.add_text(name, indented, summary["rounds"])

    def on_close(self, *, finished: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class _MlFlow(Callback):
    """Records a run in MLflow, in a folder or at the address of a store."""

    def __init__(self, place: str, tracked: Tracked) -> None:
        _import_mlflow()
        from mlflow import MlflowClient

        self._tracked = tracked
        self._artifacts: str | None = None
        if "://" not in place:
            folder = Path(place).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            place = f"sqlite:///{folder / 'mlflow.db'}"
            self._artifacts = (folder / "artifacts").as_uri()
        self._client: Any = MlflowClient(tracking_uri=place)
        self._run = ""
        self._known = -1
        """The last round whose evaluation is in the store."""

    def on_start(self, run: Tracked, round_: int | None) -> None:
        client, tracked = self._client, self._tracked
        known = client.get_experiment_by_name(EXPERIMENT)
        experiment = known and known.experiment_id
        experiment = experiment or client.create_experiment(EXPERIMENT, self._artifacts)
        asked = f"tags.`{RUN_TAG}` = '{tracked.name}'"
        runs = [] if round_ is None else client.search_runs([experiment], asked, max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            history = client.get_metric_history(self._run, "round")
            self._known = max((point.step for point in history), default=-1)
            return
        made = client.create_run(experiment, run_name=tracked.title, tags={RUN_TAG: tracked.name})
        self._run = made.info.run_id
        config = tracked.config
        chosen = {"method": config.method.name, "dataset": config.data.name}
        chosen |= {key: getattr(config, key) for key in ("seed", "epochs", "batch_size", "control")}
        for key, value in chosen.items():
            client.log_param(self._run, key, value)

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        if row["round"] > self._known:
            self._log(figures(row), row["round"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._log(_closing(summary), summary["rounds"])
        for _, file, text in _texts(self._tracked.config, summary):
            self._client.log_text(self._run, text, file)
        self._client.set_tag(self._run, "vertizo.guarantee", summary["privacy"]["guarantee"])

    def on_close(self, *, finished: bool) -> None:
        if self._run:
            self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        points = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=points)


def _import_mlflow() -> None:
    """Import MLflow, with its reports of usage to its makers turned off."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow  # noqa: F401

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


TRACKERS: Registry[Callable[[str, Tracked], Callback]] = Registry(
    "tracker", {"tensorboard": _TensorBoard, "mlflow": _MlFlow}
)


def _closing(summary: Mapping[str, Any]) -> dict[str, float]:
    """Figures of the summary, under ``final/``, apart from those of evaluations."""
    chosen = {key: value for key, value in summary.items() if key.startswith("test_")}
    chosen |= {key: summary.get(key) for key in ("rounds_per_second", "peak_memory_mib")}
    chosen["epsilon"] = summary["privacy"].get("epsilon")
    return figures({f"final/{key}": value for key, value in chosen.items()})


def _texts(config: ExperimentConfig, summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, file, content) of the configuration and of the summary."""
    text = strict_json.text(summary, indent=2)
    return [("configuration", "config.yaml", config.to_yaml()), ("summary", "summary.json", text)]
