"""The trials of one search as Optuna keeps them, in a file that any number of processes may use.

What is proposed to a trial depends on the search's seed, on the trial's number and on the trials
that ended before: a search that is stopped and resumed proposes what it would have.
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
"""Trials at random before any is proposed by those that ended."""
PATIENCE = STAGES // 4
"""Stages that no trial is stopped before."""
ENOUGH = 12
"""Finished trials that importances are told from, at least."""
PrunerName = Literal["median", "halving", "none"]


@dataclass(frozen=True)
class Record:
    """A trial as it is kept."""

    number: int
    values: Mapping[str, str]
    """In place of the configured ones, as they are written."""
    outcome: Outcome | Literal["begun"] = "begun"
    score: Score | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``results.json``."""
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
    """Silence Optuna's own log; ConfigError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune needs Optuna; pip install 'vertizo[tune]'") from None
    optuna.logging.set_verbosity(logging.WARNING)


class Journal:
    """Optuna's file of a search, in which each line has a digest of itself.

    Raises:
        RunError: one of them is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = optuna.storages.journal.JournalFileBackend(str(path))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """As of Optuna's."""
        self._file.append_logs([digests.with_digest(log) for log in logs])

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """As of Optuna's."""
        try:
            return [digests.without_digest(log) for log in self._file.read_logs(log_number_from)]
        except ValueError as error:  # also of JSON and of Unicode
            raise RunError(
                f"{self._path} is damaged: {error}; put a copy of it back, or name another --out"
            ) from None


@dataclass(frozen=True)
class Study:
    """The trials of a search, whose file is opened when it is first needed."""

    folder: Path
    space: Space
    objective: Objective
    seed: int
    pruner: PrunerName
    """Which trials are stopped early: those below the median of the others at the same stage, all
    but the better half at a quarter and at a half of a run, or none."""

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
        """Cut off a last line that a crash or a full disk left torn: Optuna would go on in it."""
        path = self.folder / FILE
        content = path.read_bytes() if path.is_file() else b""
        if content and not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)

    def _trials(self, *states: str) -> list[optuna.trial.FrozenTrial]:
        """As Optuna has them, in these states; in all without any."""
        wanted = tuple(optuna.trial.TrialState[state] for state in states) or None
        return self._study.get_trials(deepcopy=False, states=wanted)

    def folder_of(self, number: int) -> Path:
        """A trial's run folder."""
        return self.folder / "trials" / f"{number:03d}"

    def unfinished(self) -> list[Record]:
        """Trials that were begun and did not end."""
        return [self._proposed(self._open(trial.number)) for trial in self._trials("RUNNING")]

    def propose(self, fixed: Mapping[str, str]) -> Record:
        """Begin a trial that has the ``fixed`` values; the others are proposed.

        For the first trial, which is as configured, these are all values, or none where the space
        does not hold them.
        """
        if not self._trials("WAITING"):  # else a process died before it began the trial
            values = {key: self.space[key].stored(text) for key, text in fixed.items()}
            outside = not (fixed or self._trials())
            self._study.enqueue_trial(values, user_attrs={"outside": outside})
        return self._proposed(self._study.ask())

    def _proposed(self, trial: optuna.Trial) -> Record:
        """A trial with all its values; what was proposed before stays.

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
        """In place of the configured ones, as they are written."""
        return {k: self.space[k].text(v) for k, v in trial.params.items() if trial.number}

    def _open(self, number: int) -> optuna.Trial:
        """A trial that was begun, in this process or by another one."""
        storage = self._storage
        study = storage.get_study_id_from_name(self._study.study_name)
        own = storage.get_trial_id_from_study_id_trial_number(study, number)
        return optuna.trial.Trial(self._study, own)

    def watched(self, number: int) -> Watch:
        """What tells Optuna how a trial gets on."""
        return Watch(self._open(number), self._trials()[number].intermediate_values)

    def end(self, number: int, ended: Ended) -> None:
        """Keep how a trial ended.

        One that diverged is kept as one that was stopped, from which Optuna learns that it was bad;
        of one that failed it learns nothing.
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
        """All trials that were begun, by number."""
        found = []
        for trial in self._trials("RUNNING", "COMPLETE", "PRUNED", "FAIL"):
            attributes = trial.user_attrs
            ended = trial.state.is_finished() and "ended" in attributes
            outcome, reason = json.loads(attributes["ended"] if ended else '["begun", ""]')
            score = Score(*attributes["standing"]) if "standing" in attributes else None
            found.append(Record(trial.number, self._values(trial), outcome, score, reason))
        return found

    def ranked(self) -> list[Record]:
        """Trials that ran to their ends, the best first; of equals, the one with the lower loss."""
        better_first = self.objective.better_first
        ended = [each for each in self.records() if each.outcome == "finished"]
        return [
            each
            for *_, each in sorted((better_first(e.score), e.number, e) for e in ended if e.score)
        ]

    def importances(self) -> dict[str, float]:
        """How much of the difference between the best quarter and the rest each key explains.

        They add to 1. Empty where too few trials ended to tell, or too many are equal.
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
