"""Where trials are made: one after the other in this process, or several in other processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Protocol

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import Interrupted, RunError
from vertizo.data.vertical import VerticalData
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder
from vertizo.studies.engines import ctrl_c_waits, end_with_parent
from vertizo.studies.tuning.objective import Objective
from vertizo.studies.tuning.space import Space
from vertizo.studies.tuning.study import PrunerName, Study, Watched
from vertizo.studies.tuning.trial import Ended, run_trial, without_tests


@dataclass(frozen=True)
class Setting:
    """What every trial of a search is made with; goes to each process."""

    folder: Path
    space: Space
    objective: Objective
    seed: int
    pruner: PrunerName

    def study(self) -> Study:
        """The trials, as this process opens them."""
        return Study(self.folder, self.space, self.objective, self.seed, self.pruner)

    def folder_of(self, number: int) -> Path:
        """A trial's run folder."""
        return self.folder / "trials" / f"{number:03d}"


@dataclass(frozen=True)
class Task:
    """A trial to be made."""

    number: int
    config: ExperimentConfig


class Workers(Protocol):
    """Make trials."""

    room: int
    """Trials at a time."""

    def start(self, task: Task) -> None:
        """Begin a trial, or go on with it."""

    def ended(self) -> Sequence[tuple[int, Ended]]:
        """Trials that ended since the last call, after half a second at most."""

    def share(self) -> float:
        """How many trials' worth of those that are going is done."""


class Inline:
    """One trial at a time, in this process.

    Args:
        setting: of the search.
        study: its trials.
        data: without test records.
        show: called with the share of a trial that is done.
    """

    room = 1

    def __init__(
        self, setting: Setting, study: Study, data: VerticalData, show: Callable[[float], None]
    ) -> None:
        self._setting = setting
        self._study = study
        self._data = data
        self._show = show
        self._ended: list[tuple[int, Ended]] = []

    def start(self, task: Task) -> None:
        """Make the whole trial."""
        watch = _Watch(self._study.watched(task.number), self._show)
        folder = self._setting.folder_of(task.number)
        ended = run_trial(task.config, self._data, folder, self._setting.objective, watch)
        self._ended.append((task.number, ended))

    def ended(self) -> Sequence[tuple[int, Ended]]:
        """The trial that was made."""
        found, self._ended = self._ended, []
        return found

    def share(self) -> float:
        """Nothing is going between calls."""
        return 0.0


@dataclass
class _Watch:
    """A `vertizo.studies.tuning.trial.Watch`."""

    watched: Watched
    shown: Callable[[float], None] | None = None
    stop: Event | None = None

    def stage(self, number: int, value: float) -> None:
        """Told to Optuna."""
        self.watched.stage(number, value)

    def is_hopeless(self) -> bool:
        """As Optuna's pruner says."""
        return self.watched.is_hopeless()

    def must_stop(self) -> bool:
        """Whether the process that started this one wants it to."""
        return self.stop is not None and self.stop.is_set()

    def share(self, done: float) -> None:
        """Shown where somebody looks."""
        if self.shown is not None:
            self.shown(done)


@contextmanager
def pool(setting: Setting, jobs: int) -> Iterator[Workers]:
    """Processes that make so many trials at a time; those going are stopped in order at the end."""
    # spawn: a forked child would share the parent's threads and its memory's high-water mark
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin, initargs=(setting, stop)
    ) as executor:
        try:
            yield _Pool(setting, executor, jobs)
        except BrokenProcessPool:
            raise RunError(
                "the process of a trial was killed, by lack of memory perhaps; the same command "
                "goes on with what is not finished"
            ) from None
        except BaseException:
            stop.set()
            executor.shutdown(wait=True, cancel_futures=True)
            raise


class _Pool:
    def __init__(self, setting: Setting, executor: ProcessPoolExecutor, jobs: int) -> None:
        self.room = jobs
        self._setting = setting
        self._executor = executor
        self._going: dict[Future[Ended], Task] = {}

    def start(self, task: Task) -> None:
        with ctrl_c_waits():  # this process tells them to stop
            self._going[self._executor.submit(_make, task)] = task

    def ended(self) -> Sequence[tuple[int, Ended]]:
        done, _ = wait(self._going, timeout=0.5, return_when=FIRST_COMPLETED)
        return [(self._going.pop(future).number, future.result()) for future in done]

    def share(self) -> float:
        total = 0.0
        for task in self._going.values():
            rows = RunFolder(self._setting.folder_of(task.number)).metrics()
            total += min(1.0, rows[-1]["epoch"] / task.config.epochs) if rows else 0.0
        return total


_held: dict[str, object] = {}
"""What a process keeps from one trial to the next."""


def _begin(setting: Setting, stop: Event) -> None:
    end_with_parent()
    _held.update(setting=setting, stop=stop, study=setting.study())


def _make(task: Task) -> Ended:
    setting, stop, study = _held["setting"], _held["stop"], _held["study"]
    assert isinstance(setting, Setting)
    assert isinstance(stop, Event)
    assert isinstance(study, Study)
    if stop.is_set():
        raise Interrupted("stopped")
    if "data" not in _held:
        _held["data"] = without_tests(Experiment(task.config).data())
    data = _held["data"]
    assert isinstance(data, VerticalData)
    watch = _Watch(study.watched(task.number), stop=stop)
    return run_trial(task.config, data, setting.folder_of(task.number), setting.objective, watch)
