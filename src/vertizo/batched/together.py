"""Trainings that are advanced together: what `Training.run` does for one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vertizo.batched.kinds import shape_of
from vertizo.batched.lockstep import Lockstep
from vertizo.batched.members import Member
from vertizo.config import ExperimentConfig
from vertizo.data.vertical import VerticalData
from vertizo.errors import Interrupted, UserError
from vertizo.experiment import Experiment, Result
from vertizo.federation import Federation, build
from vertizo.training import Training, stop_requests

MEMORY = 2**30
"""Bytes of records and tables that runs which are made together may have, more or less."""


@dataclass(frozen=True)
class Wanted:
    """A run to be made, or gone on with if its folder holds one."""

    config: ExperimentConfig
    folder: Path


Outcome = Result | UserError | None
"""None where the run has to be made alone."""


def records_of(config: ExperimentConfig) -> tuple[int, str]:
    """What runs have in common whose records are the same; not for those with a ledger."""
    chosen = config.data.validation > 0 or config.data.limit is not None
    return (config.seed if chosen else 0), config.data.model_dump_json()


def train_together(wanted: Sequence[Wanted]) -> list[Outcome]:
    """Make runs of one kind (`vertizo.batched.kinds`), as many at once as fit the memory.

    Returns:
        What became of each: a run that fails does not keep the others from their end.

    Raises:
        ConfigError, DataError: the first run cannot start.
        Interrupted: stopped by SIGINT after checkpoints were written.
    """
    first = Experiment(wanted[0].config)
    data = first.data()
    federation = build(first.config, data)
    shape = shape_of(federation, first.config)
    if shape is None:
        return [None] * len(wanted)
    own = len({records_of(each.config) for each in wanted}) / len(wanted)
    at_once = max(1, int(MEMORY // _bytes(federation, own)))
    outcomes: list[Outcome] = []
    with stop_requests() as stopped:
        for start in range(0, len(wanted), at_once):
            some = wanted[start : start + at_once]
            outcomes += _Group(some, shape, stopped).made() if len(some) > 1 else [None]
    return outcomes


def _bytes(federation: Federation, own: float) -> float:
    """What one run takes: its table, and of the records the share that is its own."""
    table = federation.server.side.table
    parts = (values for held in federation.data.features for values in held.values())
    records = sum(values.nbytes for values in parts)
    return table.values.nbytes + table.refreshed.nbytes + own * records


@dataclass
class _Going:
    """A run on its way."""

    place: int
    """Among those that are wanted."""
    training: Training
    member: Member


class _Group:
    """Runs that are made at once.

    Args:
        wanted: the runs.
        shape: what they have in common; a run of another shape has to be made alone.
        stopped: set where somebody asked to stop.
    """

    def __init__(
        self, wanted: Sequence[Wanted], shape: tuple[object, ...], stopped: threading.Event
    ) -> None:
        self._wanted = wanted
        self._shape = shape
        self._stopped = stopped
        self._outcomes: list[Outcome] = [None] * len(wanted)
        self._records: dict[tuple[int, str], VerticalData] = {}
        self._going: dict[int, _Going] = {}
        """By number in the lockstep."""
        self._lockstep: Lockstep

    def made(self) -> list[Outcome]:
        """What became of each."""
        with ExitStack() as stack:
            opened = []
            for place, wanted in enumerate(self._wanted):
                with self._failing(place):
                    going = self._open(place, wanted, stack)
                    if going is not None:
                        opened.append(going)
            begun = []
            for going in opened:
                with self._failing(going.place):
                    going.training.begin(resume=True, at_once=len(opened))
                    begun.append(going)
            if begun:
                self._going = dict(enumerate(begun))
                self._lockstep = Lockstep([going.member for going in begun])
                self._advance()
        return self._outcomes

    def _open(self, place: int, wanted: Wanted, stack: ExitStack) -> _Going | None:
        """A run, its folder held open; None where it is of another shape."""
        key = records_of(wanted.config)
        experiment = Experiment(wanted.config, self._records.get(key))
        self._records[key] = experiment.data()
        resume = (wanted.folder / "config.yaml").is_file()
        training = stack.enter_context(experiment.opened(wanted.folder, resume=resume))
        if shape_of(training.federation, experiment.config) != self._shape:
            return None
        return _Going(place, training, Member(training.federation, experiment.config))

    @contextmanager
    def _failing(self, place: int) -> Iterator[None]:
        """A run that fails inside is one of the outcomes."""
        try:
            yield
        except UserError as error:
            self._outcomes[place] = error

    def _advance(self) -> None:
        """Round after round, until every run is at its end."""
        saved = time.perf_counter()
        often = min(going.member.config.checkpoint_seconds for going in self._going.values())
        for run in list(self._going):
            self._close_if_done(run)
        self._check_stop()
        while self._going:
            started = time.perf_counter()
            runs, failures = self._lockstep.step()
            share = (time.perf_counter() - started) / len(runs)
            for run in runs:
                going = self._going[run]
                going.training.spend(share, training=True)
                with self._failing(going.place), going.training.explained():
                    if run in failures:
                        raise failures[run]
                    self._evaluate_if_due(going)
                if self._outcomes[going.place] is not None:
                    self._lockstep.drop(run)
                    del self._going[run]
                else:
                    self._close_if_done(run)
            self._check_stop()
            if time.perf_counter() - saved > often:
                self._save()
                saved = time.perf_counter()

    def _evaluate_if_due(self, going: _Going) -> None:
        if going.training.is_due:
            started = time.perf_counter()
            going.member.rest()
            going.training.evaluate()
            going.training.spend(time.perf_counter() - started)

    def _close_if_done(self, run: int) -> None:
        """Sum up a run that has no rounds left."""
        going = self._going[run]
        if going.member.going and going.member.due() is not None:
            return
        del self._going[run]
        going.member.rest()
        with self._failing(going.place), suppress(Interrupted):  # which the others are as well
            self._outcomes[going.place] = going.training.end(self._stopped)

    def _check_stop(self) -> None:
        """Leave checkpoints and stop, if somebody asked for it."""
        if self._stopped.is_set():
            self._save()
            rounds = [going.member.federation.server.round for going in self._going.values()]
            raise Interrupted(f"stopped in round {min(rounds, default=0)}")

    def _save(self) -> None:
        for going in self._going.values():
            going.member.rest()
            going.training.save()
