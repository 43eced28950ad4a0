"""Training: drives a simulated job through rounds, evaluations and checkpoints to its end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from vertizo.core.errors import BudgetError, Interrupted, NonFiniteError, RunError
from vertizo.core.memory import of_card
from vertizo.core.state import Stateful
from vertizo.models.base import State, copied
from vertizo.run.loop.callbacks import NOBODY, Listeners, Tracked
from vertizo.run.loop.evaluation import (
    HEAD,
    TESTED,
    diverged,
    evaluation_row,
    score,
    summary_of,
    tested,
)
from vertizo.run.loop.federation import Federation
from vertizo.run.loop.job_state import Job, JobState
from vertizo.run.results import checkpoint, summary_figures
from vertizo.run.results.folder import RunFolder

SAVED_EVERY = 30.0
"""Seconds between two checkpoints, at least, unless another interval is configured."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run, for a display."""

    round: int
    total: int
    seconds: float
    megabytes: float
    loss: float | None
    """Mean training loss since the last evaluation."""
    metric: str | None
    """The last evaluation's figure that models are chosen by, as text; None before it."""
    epsilon: float | None
    """ε of the whole run; None without a guarantee."""
    card: tuple[float, float] | None = None
    """GiB of a card that the run has held at most, and that it has; None where none is used."""


@dataclass(repr=False)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    """The closing figures, as ``summary.json`` has them."""
    metrics: list[dict[str, Any]]
    """The evaluations, as ``metrics.jsonl`` has them."""
    federation: Federation | None
    """None where the figures and parameters alone were kept."""
    folder: Path | None
    parameters: Any = None
    """State of the model that the summary calls ``model``: best on validation records, or last."""
    raw_head: State | None = None
    """State of the raw head; None if none was fitted."""

    def __repr__(self) -> str:
        return summary_figures.line(self.summary)

    def _repr_html_(self) -> str:
        """For notebooks: the figures, and what is guaranteed."""
        return summary_figures.html(self.summary)


class Training(Stateful):
    """One run of a federation, new or resumed; ``progress`` is called a few times a second.

    Without a folder everything is kept in memory. ``choice`` says how the method was chosen. Its
    own state does not hold that of the federation, nor the metrics.
    """

    STATE = (
        "_seconds",
        "_training_seconds",
        "_choice",
        "_state.last",
        "_state.evaluations.best",
        "_state.stopping",
    )

    def __init__(
        self,
        federation: Federation,
        folder: RunFolder | None = None,
        progress: Callable[[Progress], None] | None = None,
        listeners: Listeners = NOBODY,
        name: str = "",
        choice: Mapping[str, Any] | None = None,
    ) -> None:
        self.federation = federation
        self._choice = choice
        self._listeners, self._name = listeners, name
        self._folder = folder
        self._progress = progress
        server, statement = federation.server, federation.statement()
        self._job = Job(federation.config, federation.data, server, statement)
        self._state = JobState(self._job)
        self._seconds = self._training_seconds = 0.0
        self._best_parameters: Any = None
        self._head: State | None = None
        self._metrics: list[dict[str, Any]] = []

    def run(self, *, resume: bool) -> Result:
        """Train from the start or the last checkpoint; return figures and models.

        RunError if training diverged or the budget is spent, Interrupted after a SIGINT.
        """
        try:
            with stop_requests(signal.SIGINT) as stopped, np.errstate(all="ignore"):
                self._begin(resume=resume)
                self._train(stopped)
                return self._end(stopped)
        except BudgetError as error:
            raise RunError(f"the privacy budget ended the run: {error}") from None
        except NonFiniteError as error:
            raise diverged(self._job, error) from None

    def _begin(self, *, resume: bool) -> None:
        """Start, or go on from the last checkpoint if there is one and ``resume``."""
        folder = self._folder
        if resume and folder is not None and folder.has("last"):
            self._load(folder)
            self._started(self._job.party.round)
            return
        self._started(-1 if resume else None)
        if folder is not None:
            folder.rewind_metrics(-1)
        self.federation.start(upload_table=self._job.config.simulation.table == "upload")
        self._state.start()
        self._evaluate()

    def _started(self, round_: int | None) -> None:
        self._listeners.tell("on_start", Tracked(self._name, self._job.config), round_)

    def _train(self, stopped: threading.Event) -> None:
        state, simulator = self._state, self.federation.simulator
        started = shown = saved = time.perf_counter()
        asked = self._job.config.checkpoint_seconds
        pause = SAVED_EVERY if asked is None else asked
        before = self._seconds
        while state.phase == "training":
            self._check_stop(stopped)
            step_started = time.perf_counter()
            going = simulator.step()
            now = time.perf_counter()
            self._training_seconds += now - step_started
            self._seconds = before + now - started
            if going:
                state.stepped()
            else:
                state.close()
            if state.evaluations.purpose is not None:
                self._evaluate()
            if self._progress is not None and now - shown > 0.1:
                shown = now
                self._progress(self._where())
            if now - saved > pause:
                self._save()
                saved = time.perf_counter()
                if asked is None:
                    pause = max(SAVED_EVERY, (saved - now) / checkpoint.SHARE)
        self._seconds = before + time.perf_counter() - started
        if self._progress is not None:
            self._progress(self._where())

    def _check_stop(self, stopped: threading.Event) -> None:
        """Save a checkpoint and raise Interrupted, if somebody asked to stop."""
        if stopped.is_set():
            self._save()
            raise Interrupted(f"stopped in round {self._job.party.round}")

    def _end(self, stopped: threading.Event) -> Result:
        """Score the last evaluations and write the summary, unless somebody asked to stop."""
        folder = self._folder
        summary = folder.summary() if folder is not None else None
        if summary is None:
            self._check_stop(stopped)
            self._save()
            summary = self._summary()
            if stopped.is_set():
                raise Interrupted(f"stopped in round {self._job.party.round}")
        if folder is not None:
            folder.write_summary(summary)
            if self._head is None and folder.has(HEAD):  # of a run that was over before
                self._head = folder.load(HEAD, "head")["head"]
        self._listeners.tell("on_end", summary)
        path = folder.path if folder else None
        parameters = self._best_parameters or self.federation.parameters
        return Result(summary, self._metrics, self.federation, path, parameters, self._head)

    def _where(self) -> Progress:
        meter, traffic = self._job.party.side.meter.read(), self.federation.simulator.traffic
        scores = self._state.last
        loss = meter.loss / meter.records if meter.records else None
        metric = summary_figures.metric_text(scores)
        here, megabytes = self._job.party.round, (traffic.up + traffic.down) / 1e6
        of_all, card = self._job.statement.epsilon, of_card()
        done = here, self._job.rounds, self._seconds, megabytes
        return Progress(*done, loss, metric, of_all, card)

    def _evaluate(self) -> None:
        """Score the evaluation under way; one during training also becomes a row of the metrics."""
        federation, simulator, state = self.federation, self.federation.simulator, self._state
        purpose, model = state.evaluations.purpose, state.evaluations.model
        assert purpose is not None, "an evaluation is under way"
        now = _copied(federation.parameters) if model == "best" else None
        if now is not None:
            federation.parameters = self._best_parameters
        simulator.upload(purpose, len(self._job.data.labels[purpose]))
        closing = state.phase != "training"
        scores = score(self._job, purpose, closing=closing)
        if purpose == "train":
            self._keep_head()
        if closing and self._folder is not None and (kept := tested(self._job, model)):
            self._folder.save(TESTED, kept)
        if now is not None:
            federation.parameters = now
        times = {"seconds": self._seconds, "virtual_seconds": simulator.now}
        row = evaluation_row(self._job, purpose, scores, simulator.traffic, times)
        row |= federation.spent(self._job.statement)
        improved = state.is_best(row)
        if self._job.rounds and purpose == self._job.progress and model == "now":
            self._metrics.append(row)
            if self._folder is not None:
                self._folder.append_metrics(row)
            self._listeners.tell("on_evaluation", row)
        state.scored(row, improved=improved)
        if improved:
            best = {key: row[key] for key in row if key.startswith("validation_")}
            state.evaluations.best = best | {"round": row["round"]}
            self._best_parameters = _copied(federation.parameters)
            self._save_best()

    def _keep_head(self) -> None:
        head = self._job.party.head
        assert head is not None, "it was scored"
        self._head = head.state()
        self._write(HEAD, {"head": self._head})

    def _save_best(self) -> None:
        best = self._state.evaluations.best
        if best is not None:
            self._write("best", {**self._best_parameters, "round": best["round"]})

    def _save(self) -> None:
        """Save a checkpoint, if there is a folder."""
        if self._folder is not None:
            self._folder.sync_metrics()
            more = {
                "standing": self.state(),
                "metrics": len(self._metrics),
                "best_parameters": self._best_parameters,
            }
            self._write("last", self.federation.state() | more)

    def _write(self, name: str, state: Mapping[str, Any]) -> None:
        if self._folder is not None:
            path = self._folder.save(name, state)
            self._listeners.tell("on_checkpoint", self._job.party.round, path)

    def _load(self, folder: RunFolder) -> None:
        state = folder.load("last")
        with folder.going_on_from("last"):
            own, metrics = state.pop("standing"), state.pop("metrics")
            self._best_parameters = state.pop("best_parameters")
            self.federation.load(state)
            self.load(own)
            self._state.go_on()
        folder.rewind_metrics(self._job.party.round)
        self._metrics = folder.metrics(at_least=metrics)
        self._save_best()

    def _summary(self) -> dict[str, Any]:
        federation, job, state = self.federation, self._job, self._state
        simulator, rounds = federation.simulator, self._job.party.round
        while state.phase != "done":
            self._evaluate()
        summary = summary_of(state, simulator.traffic, self._seconds)
        sizes = [model.parameters.numel() for model in federation.models]
        answered = sum(simulator.activations)
        return summary | {
            "seed": job.config.seed,
            "messages_lost": simulator.traffic.lost,
            "virtual_seconds": simulator.now,
            "rounds_per_second": rounds / self._training_seconds if rounds else 0.0,
            "parameters": {"clients": sizes} | summary["parameters"],
            "learning_rates": {"clients": federation.learning_rates} | summary["learning_rates"],
            "activation_shares": [count / max(answered, 1) for count in simulator.activations],
            "server_evaluations_per_round": self._evaluations_per_round(),
            "privacy": federation.privacy(),
            **({} if self._choice is None else {"choice": self._choice}),
        }

    def _evaluations_per_round(self) -> int:
        """Evaluations of the server model in a round: for queries, the table and its update."""
        job, method = self._job, self._job.config.method
        replaced = (job.party.clients if job.synchronous else 1) * method.evaluations_per_query
        return replaced + method.server_steps * (1 + job.party.side.update.evaluations)


def _copied(models: dict[str, Any]) -> dict[str, Any]:
    """A copy of `Federation.parameters`."""
    clients = [copied(state) for state in models["clients"]]
    return {"clients": clients, "server": copied(models["server"])}


@contextmanager
def stop_requests(*signals: signal.Signals) -> Iterator[threading.Event]:
    """Yield an event that the first of these signals sets; a second one stops at once.

    Outside the main thread, the only one that signals reach, nothing sets it.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
