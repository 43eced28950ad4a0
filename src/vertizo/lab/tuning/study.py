"""The trials of one search as Optuna keeps them, in a file that any number of processes may use.

What is proposed to a trial depends on the search's seed, on the trial's number and on the trials
that ended before: a search that is stopped and resumed proposes what it would have.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from vertizo.core import digests
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.randomness import Stream
from vertizo.lab.tuning.space import Space
from vertizo.lab.tuning.trial import STAGES, Ended, Objective, Outcome, Score, Watch

if TYPE_CHECKING:
    import optuna

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


def library() -> Any:
    """Optuna, whose own log is silenced; ConfigError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune needs Optuna; pip install 'vertizo[tune]'") from None
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna


class Journal:
    """Optuna's file of a search, in which each line has a digest of itself.

    Raises:
        RunError: one of them is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = library().storages.journal.JournalFileBackend(str(path))

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
    def _study(self) -> optuna.Study:
        found = library()
        pruners = found.pruners
        made = {
            "median": lambda: pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=PATIENCE),
            "halving": lambda: pruners.SuccessiveHalvingPruner(PATIENCE, reduction_factor=2),
            "none": pruners.NopPruner,
        }
        journal = Journal(self.folder / FILE)
        return cast(
            "optuna.Study",
            found.create_study(
                storage=found.storages.JournalStorage(journal),
                study_name="vertizo",
                direction="maximize" if self.objective.maximised else "minimize",
                load_if_exists=True,
                pruner=made[self.pruner](),
            ),
        )

    def _trials(self, *states: str) -> list[Any]:
        """As Optuna has them, in these states; in all without any."""
        wanted = tuple(library().trial.TrialState[state] for state in states) or None
        return list(self._study.get_trials(deepcopy=False, states=wanted))

    def folder_of(self, number: int) -> Path:
        """A trial's run folder."""
        return self.folder / "trials" / f"{number:03d}"

    def unfinished(self) -> list[Record]:
        """Trials that were begun and did not end."""
        return [
            Record(trial.number, self._values(self._open(trial.number)))
            for trial in self._trials("RUNNING")
        ]

    def propose(self, fixed: Mapping[str, str]) -> Record:
        """Begin a trial that has the ``fixed`` values; the others are proposed.

        For the first trial, which is as configured, these are all values, or none where the space
        does not hold them.
        """
        if fixed and not self._trials("WAITING"):
            self._study.enqueue_trial({k: self.space[k].stored(text) for k, text in fixed.items()})
        trial = self._study.ask()
        if trial.number == 0 and not fixed:
            trial.set_user_attr("outside", True)
        return Record(trial.number, self._values(trial))

    def _values(self, trial: optuna.Trial) -> dict[str, str]:
        """What a trial is proposed; what was proposed before stays.

        Each key has a seed of its own: a process may have died when some were proposed.
        """
        if trial.user_attrs.get("outside"):
            return {}
        found = {}
        for key, domain in self.space.items():
            stream = Stream.from_seed(self.seed).child("tune", "proposals", key)
            self._study.sampler = library().samplers.TPESampler(
                seed=stream.seed(trial.number) % 2**32, n_startup_trials=STARTING
            )
            found[key] = domain.suggested(trial, key)
        if trial.number == 0:
            return {}
        if "values" not in trial.user_attrs:
            trial.set_user_attr("values", found)
        return found

    def _open(self, number: int) -> optuna.Trial:
        own = self._trials()[number]._trial_id
        return cast("optuna.Trial", library().trial.Trial(self._study, own))

    def watched(self, number: int) -> Watch:
        """What tells Optuna how a trial gets on."""
        return Watch(self._open(number))

    def end(self, number: int, ended: Ended) -> None:
        """Keep how a trial ended.

        One that diverged is kept as one that was stopped, from which Optuna learns that it was bad;
        of one that failed it learns nothing.
        """
        trial, states = self._open(number), library().trial.TrialState
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
            values = attributes.get("values", {})
            found.append(Record(trial.number, values, outcome, score, reason))
        return found

    def ranked(self) -> list[Record]:
        """Trials that ran to their ends, the best first; of equals, the one with the lower loss."""
        keyed = {
            (*self.objective.better_first(record.score), record.number): record
            for record in self.records()
            if record.outcome == "finished" and record.score is not None
        }
        return [keyed[key] for key in sorted(keyed)]

    def importances(self) -> dict[str, float]:
        """How much of the difference between the best quarter and the rest each key explains.

        They add to 1. Empty where too few trials ended to tell.
        """
        trials = self._trials("COMPLETE")
        comparable = [t for t in trials if t.params.keys() >= self.space.keys()]
        if len(comparable) < ENOUGH or len({t.value for t in comparable}) == 1:
            return {}
        # Apart from the others: a first trial outside the space would count as a case of its own.
        optuna = library()
        apart = optuna.create_study(direction=self._study.direction)
        apart.add_trials(comparable)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        found = optuna.importance.get_param_importances(
            apart, evaluator=evaluator, params=list(self.space)
        )
        return {key: float(found[key]) for key in sorted(found, key=lambda k: -found[k])}
