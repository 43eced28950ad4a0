"""The trials of one search, kept by Optuna in a file that any number of processes may use.

Proposals depend on the search's seed, on the trial's number and on the trials that ended before: a
search that is stopped and resumed proposes the same values as one that is not.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vertizo.core import digests
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.plugins.lazy_import import Deferred
from vertizo.core.randomness import Stream
from vertizo.lab.tuning.space import Space
from vertizo.lab.tuning.trial import STAGES, Ended, Objective, Outcome, Score, Watch

if TYPE_CHECKING:
    import optuna.storages.journal
else:
    optuna = Deferred("optuna")

FILE = "trials.journal"
STARTING = 8
"""Number of random trials before proposals learn from those that ended."""
PATIENCE = STAGES // 4
"""Number of stages before which no trial is stopped."""
ENOUGH = 12
"""Smallest number of finished trials from which importances are computed."""
PrunerName = Literal["median", "halving", "none"]


@dataclass(frozen=True)
class Record:
    """The record of one trial."""

    number: int
    values: Mapping[str, str]
    """Key → the value in place of the configured one, as text."""
    outcome: Outcome | Literal["begun"] = "begun"
    score: Score | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the trial's entry in ``results.json``."""
        value, loss = self.score or (None, None)
        return {
            "trial": self.number,
            "outcome": self.outcome,
            "value": value,
            "validation_loss": loss,
            "values": dict(self.values),
            "reason": self.reason,
        }


def check_library() -> None:
    """Silence Optuna's log; raise a `ConfigError` if Optuna is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune needs Optuna; pip install 'vertizo[tune]'") from None
    optuna.logging.set_verbosity(logging.WARNING)


class Journal:
    """Optuna's journal, in which each line has a digest of itself; RunError if one does not fit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = optuna.storages.journal.JournalFileBackend(str(path))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append log entries, each with its digest; part of Optuna's backend interface."""
        self._file.append_logs([digests.with_digest(log) for log in logs])

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """Read and check log entries from a number on; part of Optuna's backend interface."""
        try:
            return [digests.without_digest(log) for log in self._file.read_logs(log_number_from)]
        except ValueError as error:  # also of JSON and of Unicode
            raise RunError(
                f"{self._path} is damaged: {error}; put a copy of it back, or name another --out"
            ) from None


@dataclass(frozen=True)
class Study:
    """The trials of a search; its file is opened when it is first needed."""

    folder: Path
    space: Space
    objective: Objective
    seed: int
    pruner: PrunerName
    """Rule by which trials are stopped early: ``median``, those below the median of the others at
    the same stage; ``halving``, the worse half at a quarter and at a half of a run; or ``none``."""

    @cached_property
    def _storage(self) -> optuna.storages.JournalStorage:
        journal: Any = Journal(self.folder / FILE)
        return optuna.storages.JournalStorage(journal)

    @cached_property
    def _study(self) -> optuna.Study:
        check_library()
        made: dict[str, optuna.pruners.BasePruner] = {
            "median": optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=PATIENCE),
            "halving": optuna.pruners.SuccessiveHalvingPruner(PATIENCE, reduction_factor=2),
            "none": optuna.pruners.NopPruner(),
        }
        name, pruner = "vertizo", made[self.pruner]
        if self._storage.get_all_studies():  # `create_study` would write, as if it were new
            return optuna.load_study(study_name=name, storage=self._storage, pruner=pruner)
        return optuna.create_study(
            study_name=name,
            storage=self._storage,
            pruner=pruner,
            direction="maximize" if self.objective.maximised else "minimize",
        )

    def mend(self) -> None:
        """Cut off an incomplete last line, which a crash or a full disk left."""
        path = self.folder / FILE
        content = path.read_bytes() if path.is_file() else b""
        if content and not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)

    def _trials(self, *states: str) -> list[optuna.trial.FrozenTrial]:
        """Return Optuna's trials in these states; all trials if no state is given."""
        wanted = tuple(optuna.trial.TrialState[state] for state in states) or None
        return self._study.get_trials(deepcopy=False, states=wanted)

    def folder_of(self, number: int) -> Path:
        """Return a trial's run folder."""
        return self.folder / "trials" / f"{number:03d}"

    def unfinished(self) -> list[Record]:
        """Return trials that were begun and did not end."""
        return [self._proposed(self._open(trial.number)) for trial in self._trials("RUNNING")]

    def propose(self, fixed: Mapping[str, str]) -> Record:
        """Begin a trial that has the ``fixed`` values; Optuna proposes the others.

        For the first trial these are all values, or none if they are not all in the space.
        """
        if not self._trials("WAITING"):  # else a process died before it began the trial
            values = {key: self.space[key].stored(text) for key, text in fixed.items()}
            outside = not (fixed or self._trials())
            self._study.enqueue_trial(values, user_attrs={"outside": outside})
        return self._proposed(self._study.ask())

    def _proposed(self, trial: optuna.Trial) -> Record:
        """Complete a trial's values; values that were proposed before stay.

        Each key has a seed of its own: a process may have died when some were proposed.
        """
        for key, domain in self.space.items() if not trial.user_attrs.get("outside") else ():
            stream = Stream.from_seed(self.seed).child("tune", "proposals", key)
            self._study.sampler = optuna.samplers.TPESampler(
                seed=stream.seed(trial.number) % 2**32, n_startup_trials=STARTING
            )
            domain.suggest(trial, key)
        return Record(trial.number, self._values(trial))

    def _values(self, trial: optuna.Trial | optuna.trial.FrozenTrial) -> dict[str, str]:
        """Return a trial's values as text; none for trial 0, which is as configured."""
        return {k: self.space[k].text(v) for k, v in trial.params.items() if trial.number}

    def _open(self, number: int) -> optuna.Trial:
        """Open a trial that was begun, by this process or another one."""
        storage = self._storage
        study = storage.get_study_id_from_name(self._study.study_name)
        own = storage.get_trial_id_from_study_id_trial_number(study, number)
        return optuna.trial.Trial(self._study, own)

    def watched(self, number: int) -> Watch:
        """Return the watch that reports a trial's progress to Optuna."""
        return Watch(self._open(number), self._trials()[number].intermediate_values)

    def end(self, number: int, ended: Ended) -> None:
        """Record how a trial ended.

        Optuna takes a trial that diverged as one that was stopped, and learns that it was bad; from
        a failed one it learns nothing.
        """
        trial, states = self._open(number), optuna.trial.TrialState
        trial.set_user_attr("ended", json.dumps([ended.outcome, ended.reason]))
        if ended.score is not None:
            trial.set_user_attr("standing", list(ended.score))
        if ended.outcome == "finished" and ended.score is not None:
            self._study.tell(number, ended.score.value)
        else:
            stopped = ended.outcome in ("stopped early", "diverged")
            self._study.tell(number, state=states.PRUNED if stopped else states.FAIL)

    def records(self) -> list[Record]:
        """Return all trials that were begun, by number."""
        found = []
        for trial in self._trials("RUNNING", "COMPLETE", "PRUNED", "FAIL"):
            attributes = trial.user_attrs
            ended = trial.state.is_finished() and "ended" in attributes
            outcome, reason = json.loads(attributes["ended"] if ended else '["begun", ""]')
            score = Score(*attributes["standing"]) if "standing" in attributes else None
            found.append(Record(trial.number, self._values(trial), outcome, score, reason))
        return found

    def ranked(self) -> list[Record]:
        """Return the finished trials, the best first; among equals, the one with the lower loss."""
        order, ended = self.objective.better_first, self.records()
        scored = [(e.score, e) for e in ended if e.outcome == "finished" and e.score]
        return [each for *_, each in sorted((order(score), e.number, e) for score, e in scored)]

    def importances(self) -> dict[str, float]:
        """Compute each key's share in explaining what sets the best quarter of trials apart.

        The shares add to 1. Empty if too few trials finished, or too many are equal.
        """
        trials = self._trials("COMPLETE")
        comparable = [t for t in trials if t.params.keys() >= self.space.keys()]
        if len(comparable) < ENOUGH:
            return {}
        # Apart from the others: a first trial outside the space would count as a case of its own.
        apart = optuna.create_study(direction=self._study.direction)
        apart.add_trials(comparable)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        with warnings.catch_warnings(category=UserWarning, action="error"):
            try:
                return optuna.importance.get_param_importances(
                    apart, evaluator=evaluator, params=list(self.space)
                )
            except UserWarning:  # the worst is as good as the last of the quarter
                return {}
