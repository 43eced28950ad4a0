"""Where the runs of a comparison are made: in processes of this machine, or on a Ray cluster.

Either way a run's folder is here when it is finished.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError, UserError
from vertizo.core.version import VERSION
from vertizo.data.datasets.catalog import ROOT_VARIABLE
from vertizo.run import checkpoint
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder
from vertizo.studies.ray import gather

EngineName = Literal["local", "ray"]
Made = Generator["Run | None", None, None]
Files = Mapping[str, bytes]
"""The files of a folder, by their path in it."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a comparison; equal to itself only."""

    label: str
    """What it is called in the table."""
    control: str
    config: ExperimentConfig
    folder: Path


class Engine(Protocol):
    """Makes runs."""

    def make(self, runs: Sequence[Run]) -> Made:
        """Begin runs, or go on with them, each in its folder.

        Yields:
            Each run as it ends, and None about twice a second.

        Raises:
            UserError: a run failed; the others that were going are finished first.
        """


@dataclass(frozen=True)
class Processes:
    """Runs in processes of this machine."""

    jobs: int
    """At a time."""
    reused: bool = False
    """Whether a process makes one run after another, which saves the seconds that starting one
    takes; else every run has its own, and so a peak memory of its own."""

    def make(self, runs: Sequence[Run]) -> Made:
        """As of an `Engine`; what was going when it ends early can be gone on with."""
        # spawn: a forked child would share the parent's threads and its memory's high-water mark
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            self.jobs,
            mp_context=context,
            initializer=end_with_parent,
            max_tasks_per_child=None if self.reused else 1,
        ) as pool:
            waiting, going = iter(runs), dict[Future[None], Run]()
            try:
                while True:
                    # The pool would begin what it has queued even when it is told to stop.
                    with ctrl_c_waits():
                        for run in itertools.islice(waiting, self.jobs - len(going)):
                            going[pool.submit(_in_child, run)] = run
                    if not going:
                        return
                    done, _ = wait(going, timeout=0.5, return_when=FIRST_COMPLETED)
                    for future in done:
                        run = going.pop(future)
                        future.result()
                        yield run
                    yield None
            except BrokenProcessPool:
                raise RunError(
                    "the process of a run was killed, by lack of memory perhaps; the same command "
                    "goes on with what is not finished"
                ) from None
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Hold Ctrl-C back in this process, and in the children and threads that begin inside.

    Children inherit the signal mask and lift it when they can stop in order. This process replaces
    its handler as well: one of its other threads may take the signal, which the mask of this one
    does not hinder, and a child whose beginning is broken off finds half of what it was to read.
    """
    held_back: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    # only the main thread may set handlers, and only it would be interrupted
    replaced = threading.current_thread() is threading.main_thread() and callable(before)
    if replaced:
        signal.signal(signal.SIGINT, lambda number, _: held_back.append(number))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if replaced:
            signal.signal(signal.SIGINT, before)
        if held_back:
            signal.raise_signal(signal.SIGINT)


def end_with_parent() -> None:
    """Let this child end at once when its parent is killed: nobody would gather its work."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, name="end-with-parent", daemon=True).start()


def _in_child(run: Run) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    _begin_or_go_on(run.config, run.folder)


def _begin_or_go_on(config: ExperimentConfig, folder: Path) -> None:
    Experiment(config).run(folder, resume=(folder / "config.yaml").is_file())


@dataclass(frozen=True)
class RayCluster:
    """Runs on a Ray cluster, whose machines are trusted and have disks of their own.

    A run's folder is carried there and back, so that one that was begun elsewhere is gone on with.
    What was going when it ends early is begun anew the next time. A machine finds the files of a
    data set where its own VERTIZO_DATA says, or else where this machine's does.
    """

    address: str | None = None
    """None for that of the environment variable RAY_ADDRESS, or else this machine."""
    jobs: int | None = None
    """At a time; None for as many as there are cores for."""

    def make(self, runs: Sequence[Run]) -> Made:
        """As of an `Engine`."""
        if not runs:
            return
        charged = next((run for run in runs if run.config.privacy.ledger is not None), None)
        if charged is not None:
            raise ConfigError(
                f"privacy.ledger is {charged.config.privacy.ledger}, a file of this machine, which "
                "a cluster cannot charge; use --engine local"
            )
        problems: list[UserError] = []
        variables = {key: os.environ[key] for key in (ROOT_VARIABLE,) if key in os.environ}

        def calls() -> Iterator[tuple[ExperimentConfig, Files, Path, Mapping[str, str], str]]:
            for run in runs:
                if problems:
                    return
                if not (run.folder / "config.yaml").is_file():
                    RunFolder(run.folder).check_is_new()
                yield run.config, _files(run.folder), Path.cwd(), variables, VERSION

        cpus = max(run.config.threads for run in runs)
        for ended in gather(
            _elsewhere, calls(), cpus=cpus, address=self.address, at_once=self.jobs
        ):
            if ended is None:
                yield None
                continue
            place, outcome = ended
            if isinstance(outcome, UserError):
                problems.append(outcome)
                continue
            _put(runs[place].folder, outcome)
            yield runs[place]
        if problems:
            raise problems[0]


def _elsewhere(
    config: ExperimentConfig, files: Files, home: Path, variables: Mapping[str, str], version: str
) -> Files | UserError:
    """On a machine of the cluster: make a run in a folder that is then carried back.

    Args:
        config: of the run.
        files: what there is of its folder.
        home: what relative paths of the configuration are relative to, if it is there.
        variables: of the environment; those that the machine has itself stay.
        version: of vertizo, which must be this machine's.
    """
    if version != VERSION:
        return RunError(f"a machine of the cluster has vertizo {VERSION}, this one {version}")
    for key, value in variables.items():
        os.environ.setdefault(key, value)
    if home.is_dir():
        os.chdir(home)
    with tempfile.TemporaryDirectory(prefix="vertizo-") as place:
        folder = Path(place) / "run"
        _put(folder, files)
        try:
            _begin_or_go_on(config, folder)
        except UserError as error:
            return error
        return _files(folder)


def _files(folder: Path) -> Files:
    """All that a run left in its folder; nothing where there is no run."""
    if not (folder / "config.yaml").is_file():
        return {}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock" and path.suffix != ".partial"
    }


def _put(folder: Path, files: Files) -> None:
    """Write a folder's files; the summary last, since it says that all is there."""
    if not files:
        return
    place = RunFolder(folder)
    place.make()
    with place.locked():
        for name in sorted(files, key=lambda name: name == place.summary_file.name):
            target = folder / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                checkpoint.write_atomically(target, files[name])
            except OSError as error:
                raise RunError(f"{target} cannot be written: {error.strerror}") from None
