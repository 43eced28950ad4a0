"""The loop of one run: train, evaluate, keep the best, checkpoint, stop and go on, sum up."""

from __future__ import annotations

import math
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import BudgetError, Interrupted, NonFiniteError, RunError
from vertizo.core.version import VERSION
from vertizo.models.base import copied
from vertizo.models.losses import Classification
from vertizo.party.metrics import Scores, quality
from vertizo.run import summary_figures
from vertizo.run.federation import Federation
from vertizo.run.folder import RunFolder
from vertizo.run.tracking import Tracker, Trackers


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for a display."""

    round: int
    total: int
    seconds: float
    megabytes: float
    loss: float | None
    """Mean training loss since the last evaluation."""
    accuracy: float | None
    """Accuracy at the last evaluation, on validation records or else test records."""
    epsilon: float | None
    """ε of the whole run, where a guarantee holds."""


@dataclass(repr=False)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    federation: Federation | None
    """None where the figures and parameters alone were kept."""
    folder: Path | None
    parameters: Any = None
    """Of the model that the summary calls ``model``: best on the validation records, or last."""

    def __repr__(self) -> str:
        return summary_figures.line(self.summary)

    def _repr_html_(self) -> str:
        """For notebooks: the figures, and what is guaranteed."""
        return summary_figures.html(self.summary)


@dataclass
class _Standing:
    """What the loop itself knows, and a checkpoint must hold."""

    seconds: float = 0.0
    training_seconds: float = 0.0
    best: dict[str, Any] | None = None
    last: dict[str, Any] = field(default_factory=dict)


class Training:
    """One run of a federation, new or resumed."""

    def __init__(
        self,
        config: ExperimentConfig,
        federation: Federation,
        folder: RunFolder | None,
        progress: Callable[[Progress], None] | None,
        tracker: Tracker | None = None,
    ) -> None:
        self._tracker = tracker or Trackers([])
        self._config = config
        self._federation = federation
        self._folder = folder
        self._progress = progress
        self._standing = _Standing()
        self._best_parameters: Any = None
        self._metrics: list[dict[str, Any]] = []
        self._statement = federation.statement()
        per_epoch = federation.clients[0].batches.per_epoch
        clients = 1 if config.simulation.timing == "synchronous" else len(federation.clients)
        self._every = config.evaluate_every or per_epoch * clients

    @property
    def federation(self) -> Federation:
        """Whose training it is."""
        return self._federation

    def run(self, *, resume: bool) -> Result:
        """Train, from the start or the last checkpoint, and sum up."""
        with stop_requests() as stopped, self._explained():
            self._begin(resume=resume)
            self._train(stopped)
            return self._end(stopped)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What ends training is said in words that help."""
        try:
            with np.errstate(all="ignore"):
                yield
        except BudgetError as error:
            raise RunError(f"the privacy budget ended the run: {error}") from None
        except NonFiniteError as error:
            raise RunError(
                f"training diverged in round {self._federation.server.round}: {error}; "
                "lower client.optimizer.learning_rate or server.optimizer.learning_rate, or raise "
                "method.smoothing if it is very small"
            ) from None

    def _begin(self, *, resume: bool) -> None:
        """Start, or go on from the last checkpoint if there is one and ``resume``."""
        folder = self._folder
        if resume and folder is not None and folder.has("last"):
            self._load(folder)
            self._tracker.begin(self._federation.server.round)
            return
        self._tracker.begin(-1 if resume else None)
        if folder is not None:
            folder.rewind_metrics(-1)
        self._federation.start(upload_table=self._config.simulation.table == "upload")
        self._evaluate()

    def _end(self, stopped: threading.Event) -> Result:
        """Sum up, unless somebody asked to stop."""
        folder = self._folder
        summary = folder.summary() if folder is not None else None
        if summary is None:
            self._save()
            summary = self._summary()
            self._check_stop(stopped)
        if folder is not None:
            folder.write_summary(summary)
        self._tracker.end(summary)
        path = folder.path if folder else None
        parameters = self._best_parameters or self._federation.parameters()
        return Result(summary, self._metrics, self._federation, path, parameters)

    def _train(self, stopped: threading.Event) -> None:
        federation, standing = self._federation, self._standing
        server, simulator = federation.server, federation.simulator
        started = shown = saved = time.perf_counter()
        before = standing.seconds
        self._check_stop(stopped)
        while server.round < federation.total_rounds:
            step_started = time.perf_counter()
            going = simulator.step()
            now = time.perf_counter()
            standing.training_seconds += now - step_started
            standing.seconds = before + now - started
            if not going:
                break
            round_ = server.round
            if round_ % self._every == 0 or round_ == federation.total_rounds:
                self._evaluate()
            if self._progress is not None and now - shown > 0.1:
                shown = now
                self._progress(self._where())
            self._check_stop(stopped)
            if now - saved > self._config.checkpoint_seconds:
                self._save()
                saved = time.perf_counter()
        standing.seconds = before + time.perf_counter() - started
        if self._progress is not None:
            self._progress(self._where())

    def _check_stop(self, stopped: threading.Event) -> None:
        """Leave a checkpoint and stop, if somebody asked for it."""
        if stopped.is_set():
            if self._federation.server.round < self._federation.total_rounds:
                self._save()
            raise Interrupted(f"stopped in round {self._federation.server.round}")

    def _where(self) -> Progress:
        meter, simulator = self._federation.server.side.meter, self._federation.simulator
        scores = self._standing.last
        return Progress(
            round=self._federation.server.round,
            total=self._federation.total_rounds,
            seconds=self._standing.seconds,
            megabytes=(simulator.traffic.up + simulator.traffic.down) / 1e6,
            loss=meter.loss / meter.records if meter.records else None,
            accuracy=scores.get("validation_accuracy", scores.get("test_accuracy")),
            epsilon=self._statement.epsilon,
        )

    def _score(self, purpose: Any) -> Scores:
        labels = self._federation.data.labels[purpose]
        if not labels.shape[0]:
            return {}
        self._federation.simulator.upload(purpose, labels.shape[0])
        found = self._federation.server.score(purpose)
        if not math.isfinite(found["loss"]):
            raise NonFiniteError(f"the {purpose} loss is {found['loss']}")
        return found

    def _evaluate(self) -> None:
        federation, standing = self._federation, self._standing
        server, simulator = federation.server, federation.simulator
        meter = server.side.meter
        row: dict[str, Any] = {
            "round": server.round,
            "epoch": server.round / self._rounds_per_epoch(),
            "seconds": standing.seconds,
            "virtual_seconds": simulator.now,
            "bytes_up": simulator.traffic.up,
            "bytes_down": simulator.traffic.down,
            "train_loss": meter.loss / meter.records if meter.records else None,
        }
        if isinstance(server.side.model.task, Classification):
            seen = meter.records
            row["train_accuracy"] = meter.correct / seen if seen else None
        meter.reset()
        row |= federation.so_far(self._statement)
        server.staleness.mark()
        purposes = ["validation"] if federation.data.labels["validation"].numel() else ["test"]
        for purpose in purposes:
            for name, value in self._score(purpose).items():
                row[f"{purpose}_{name}"] = value
        standing.last = row
        self._metrics.append(row)
        if self._folder is not None:
            self._folder.append_metrics(row)
        self._tracker.row(row)
        if purposes == ["validation"] and server.round and self._improved(row):
            standing.best = {k: row[k] for k in row if k.startswith("validation_")}
            standing.best["round"] = server.round
            self._best_parameters = _copied(federation.parameters())
            if self._folder is not None:
                self._folder.save("best", {**self._best_parameters, "round": server.round})

    def _improved(self, row: dict[str, Any]) -> bool:
        best = self._standing.best
        if best is None:
            return True
        return quality(row) > quality(best)

    def _rounds_per_epoch(self) -> int:
        federation = self._federation
        synchronous = self._config.simulation.timing == "synchronous"
        clients = 1 if synchronous else len(federation.clients)
        return federation.clients[0].batches.per_epoch * clients

    def _save(self) -> None:
        """Leave a checkpoint."""
        if self._folder is not None:
            state = self._federation.state()
            state["standing"] = asdict(self._standing)
            state["best_parameters"] = self._best_parameters
            self._folder.save("last", state)

    def _load(self, folder: RunFolder) -> None:
        state = folder.load("last")
        with folder.going_on_from("last"):
            self._federation.load(state)
            self._standing = _Standing(**state["standing"])
            self._best_parameters = state["best_parameters"]
        folder.rewind_metrics(self._federation.server.round)
        self._metrics = folder.metrics()
        if self._best_parameters is not None and self._standing.best is not None:
            round_ = self._standing.best["round"]
            folder.save("best", {**self._best_parameters, "round": round_})

    def _summary(self) -> dict[str, Any]:
        federation, standing, config = self._federation, self._standing, self._config
        server, simulator = federation.server, federation.simulator
        side, rounds = server.side, server.round
        last_scores = self._score("test")
        selected, scores = "last", last_scores
        if self._best_parameters is not None:
            current = _copied(federation.parameters())
            federation.load_parameters(self._best_parameters)
            selected, scores = "best", self._score("test")
            federation.load_parameters(current)
        activations = simulator.activations
        return {
            "version": VERSION,
            "method": config.method.name,
            "dataset": federation.data.name,
            "parties": list(federation.data.parties),
            "clients": len(federation.clients),
            "records": federation.data.records,
            "classes": federation.data.class_names and list(federation.data.class_names),
            "control": config.control,
            "timing": config.simulation.timing,
            "rounds": rounds,
            "epochs": rounds / self._rounds_per_epoch(),
            "seed": config.seed,
            "model": selected,
            **{f"test_{name}": value for name, value in scores.items()},
            "last": {f"test_{name}": value for name, value in last_scores.items()},
            "best": standing.best,
            "bytes_up": simulator.traffic.up,
            "bytes_down": simulator.traffic.down,
            "bytes_table": simulator.traffic.table,
            "bytes_evaluation": simulator.traffic.evaluation,
            "messages_lost": simulator.traffic.lost,
            "seconds": standing.seconds,
            "virtual_seconds": simulator.now,
            "rounds_per_second": rounds / standing.training_seconds if rounds else 0.0,
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "parameters": {
                "clients": [model.parameters.numel() for model in federation.models],
                "server": side.model.parameters.numel(),
            },
            "learning_rates": {
                "clients": federation.learning_rates,
                "server": side.learning_rate,
            },
            "staleness": {
                "mean": server.staleness.mean,
                "max": server.staleness.largest,
            },
            "activation_shares": [count / max(sum(activations), 1) for count in activations],
            "clip_fraction": side.plan.clip_fraction,
            "server_evaluations_per_round": self._evaluations(),
            "privacy": federation.privacy(),
        }

    def _evaluations(self) -> int:
        """Evaluations of the server model a round: of the queries, the table, the update."""
        synchronous = self._config.simulation.timing == "synchronous"
        queries = len(self._federation.clients) if synchronous else 1
        method = self._config.method
        replaced = queries * method.evaluations_per_query
        update = self._federation.server.side.update
        return replaced + method.server_steps * (1 + update.evaluations)


def _copied(models: dict[str, Any]) -> dict[str, Any]:
    """Of `Federation.parameters`, as they are now."""
    clients = [copied(state) for state in models["clients"]]
    return {"clients": clients, "server": copied(models["server"])}


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Ctrl-C asks to stop after the current round; a second one stops at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
