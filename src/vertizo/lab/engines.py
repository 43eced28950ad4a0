"""Engines that make runs: in processes of this machine, or on a Ray cluster.

Either way a finished run's folder is on this machine.
"""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vertizo.config.schema import ExperimentConfig
from vertizo.core import digests
from vertizo.core.errors import ConfigError, RunError, UserError
from vertizo.core.version import VERSION
from vertizo.data.datasets.catalog import ROOT_VARIABLE
from vertizo.lab import cards
from vertizo.lab.processes import Inline, Pool, processes
from vertizo.lab.ray import gather
from vertizo.run.experiment import Experiment
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

EngineName = Literal["local", "ray"]
Made = Generator["Run | None", None, None]
Files = Mapping[str, bytes]
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a comparison; equal to itself only."""

    label: str
    control: str
    config: ExperimentConfig
    folder: Path


Forgive = Callable[[Run, UserError], bool]
"""Callback that decides whether the other runs go on after a failure; without it they do not."""


def share_done(folder: Path, config: ExperimentConfig) -> float:
    """Return a run's finished share in [0, 1], by the last evaluation that it wrote."""
    place = RunFolder(folder)
    if place.summary_file.is_file():
        return 1.0
    rows = place.metrics()
    return min(0.999, rows[-1]["epoch"] / config.epochs) if rows else 0.0


def check_jobs(config: ExperimentConfig, jobs: int | None) -> None:
    """Raise a `ConfigError` for several runs at a time that charge one ledger."""
    if config.privacy.ledger is not None and (jobs or 1) > 1:
        raise ConfigError(
            f"--jobs is {jobs} but privacy.ledger {config.privacy.ledger} is for one run at a "
            "time; leave --jobs out"
        )


@dataclass(frozen=True)
class Processes:
    """An engine that makes runs in processes of this machine (`vertizo.lab.processes`)."""

    jobs: int | None
    """Number of runs at a time; None for one after the other in this process."""
    reused: bool = False
    runs_per_card: int = cards.RUNS_PER_CARD

    def make(self, runs: Sequence[Run], forgive: Forgive | None = None) -> Made:
        """Begin or resume runs, each in its folder; those that are interrupted can be resumed.

        Yields:
            Each run as it ends, and None about twice a second.

        Raises:
            UserError: a run failed unforgiven; the others that were going are finished first.
        """
        calls = ((run, _begin_or_resume, (run.config, run.folder)) for run in runs)
        pool: AbstractContextManager[Pool[Run]] = nullcontext(Inline[Run]())
        if self.jobs is not None:
            places = cards.places((run.config for run in runs), self.runs_per_card)
            pool = processes(self.jobs, reused=self.reused, places=places)
        with pool as going:
            for ended in going.make(calls):
                if ended is None:
                    yield None
                    continue
                run, future = ended
                try:
                    future.result()
                except UserError as error:
                    if forgive is None or not forgive(run, error):
                        if str(run.folder) in str(error):
                            raise
                        raise type(error)(f"{run.folder}: {error}") from None
                yield run


def _begin_or_resume(config: ExperimentConfig, folder: Path) -> None:
    Experiment(config).run(folder, resume=(folder / "config.yaml").is_file())


@dataclass(frozen=True)
class RayCluster:
    """An engine that makes runs on a Ray cluster of trusted machines with disks of their own.

    A run's folder is copied there and back, so that one that was begun elsewhere is resumed. A run
    that is interrupted begins anew the next time. A machine finds the files of a data set where its
    own VERTIZO_DATA says, or else where this machine's does.
    """

    address: str | None = None
    """The cluster's address; None for that in RAY_ADDRESS, or else a cluster of this machine."""
    jobs: int | None = None
    """Number of runs at a time; None for as many as there is room for."""
    notice: Callable[[str], None] = log.warning
    """Callback for a line that a run begins anew, since its process or machine was lost."""
    runs_per_card: int = cards.RUNS_PER_CARD

    def make(self, runs: Sequence[Run], forgive: Forgive | None = None) -> Made:
        """Begin or resume runs on the cluster, as `Processes` does here.

        ConfigError if a run charges a ledger, which is a file of this machine.
        """
        if not runs:
            return
        charged = next((run for run in runs if run.config.privacy.ledger is not None), None)
        if charged is not None:
            raise ConfigError(
                f"privacy.ledger is {charged.config.privacy.ledger}, a file of this machine, which "
                "a cluster cannot charge; use --engine local"
            )
        problems: list[UserError] = []

        def calls() -> Iterator[tuple[str, bytes]]:
            for run in runs:
                if problems:
                    return
                if not (run.folder / "config.yaml").is_file():
                    RunFolder(run.folder).check_is_new()
                data = os.environ.get(ROOT_VARIABLE)
                yield VERSION, pickle.dumps((run.config, _files(run.folder), Path.cwd(), data))

        def lost(place: int, why: str) -> None:
            self.notice(f"note: {runs[place].folder}: {why}; it is begun anew")

        configs = [run.config for run in runs]
        cpus = max(config.threads for config in configs)
        for ended in gather(
            _elsewhere,
            calls(),
            cpus=cpus,
            address=self.address,
            at_once=self.jobs,
            runs_per_card=self.runs_per_card if any(map(cards.uses_card, configs)) else None,
            lost=lost,
        ):
            if ended is None:
                yield None
                continue
            run, outcome = runs[ended[0]], ended[1]
            if not isinstance(outcome, UserError):
                _put(run.folder, outcome)
            elif forgive is None or not forgive(run, outcome):
                problems.append(outcome)
                continue
            yield run
        if problems:
            raise problems[0]


Engine = Processes | RayCluster


def _elsewhere(version: str, packed: bytes) -> Files | UserError:
    """Make a run on a machine of the cluster, and return the files of its folder, or its error.

    ``packed`` is unpickled only if the versions are the same. It holds the configuration, the
    folder's files so far, the working directory for relative paths (used if it exists there), and
    the root of data sets, for a machine that has set none.
    """
    if version != VERSION:
        from ray.util import get_node_ip_address

        here: str = get_node_ip_address()  # type: ignore[no-untyped-call, unused-ignore]
        return RunError(
            f"the machine {here} of the cluster has vertizo {VERSION} and this one {version}; "
            "install the same at all"
        )
    config, files, home, data = pickle.loads(packed)
    if data is not None:
        os.environ.setdefault(ROOT_VARIABLE, data)
    if home.is_dir():
        os.chdir(home)
    with tempfile.TemporaryDirectory(prefix="vertizo-") as place:
        folder = Path(place) / "run"
        _put(folder, files)
        try:
            _begin_or_resume(config, folder)
        except UserError as error:
            return error
        return _files(folder)


def _files(folder: Path) -> Files:
    """Read all files of a run's folder; nothing where there is no run."""
    if not (folder / "config.yaml").is_file():
        return {}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", digests.NAME) and path.suffix != ".partial"
    }


def _put(folder: Path, files: Files) -> None:
    """Write a folder's files, the summary last, since it marks the run as finished."""
    if not files:
        return
    place = RunFolder(folder)
    place.make()
    with place.locked():
        for name in sorted(files, key=lambda name: name == place.summary_file.name):
            with checkpoint.writing(folder / name):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            checkpoint.keep(folder / name, files[name])
