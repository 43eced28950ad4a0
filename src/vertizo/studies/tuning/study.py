"""The trials of one search as Optuna keeps them, in a file that any number of processes may use.

What is proposed to a trial depends on the search's seed, on the trial's number and on the trials
that ended before: a search that is stopped and gone on with proposes what it would have.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.studies.tuning.objective import Objective, Standing
from vertizo.studies.tuning.space import Domain, Range, Space
from vertizo.studies.tuning.trial import STAGES, Ended, Outcome

if TYPE_CHECKING:
    import optuna

FILE = "trials.journal"
NAME = "vertizo"
STARTING = 8
"""Trials at random before any is proposed by those that ended."""
PATIENCE = STAGES // 4
"""Stages that no trial is stopped before."""

PrunerName = Literal["median", "halving", "none"]


@dataclass(frozen=True)
class Begun:
    """A trial that is to be made, or gone on with."""

    number: int
    values: Mapping[str, str]
    """In place of the configured ones, as they are written."""


@dataclass(frozen=True)
class Record:
    """A trial as it is kept."""

    number: int
    values: Mapping[str, str]
    outcome: Outcome | Literal["begun"]
    standing: Standing | None
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """For ``results.json``."""
        standing = self.standing
        return {
            "trial": self.number,
            "outcome": self.outcome,
            "value": None if standing is None else standing.value,
            "validation_loss": None if standing is None else standing.loss,
            "values": dict(self.values),
            "reason": self.reason,
        }


def library() -> Any:
    """Optuna, whose own log is silenced.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune needs Optuna; pip install 'vertizo[tune]'") from None
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna


class Study:
    """The trials of a search.

    Args:
        folder: of the search.
        space: what is searched.
        objective: what trials are compared by.
        seed: of the search.
        pruner: which trials are stopped early: those below the median of the others at the same
            stage, all but the better half at a quarter and at a half of a run, or none.
    """

    def __init__(
        self, folder: Path, space: Space, objective: Objective, seed: int, pruner: PrunerName
    ) -> None:
        self._optuna = library()
        self._space = space
        self._stream = Stream.from_seed(seed).child("tune", "proposals")
        pruners = self._optuna.pruners
        made = {
            "median": lambda: pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=PATIENCE),
            "halving": lambda: pruners.SuccessiveHalvingPruner(PATIENCE, reduction_factor=2),
            "none": pruners.NopPruner,
        }
        journal = self._optuna.storages.journal.JournalFileBackend(str(folder / FILE))
        self._study: optuna.Study = self._optuna.create_study(
            storage=self._optuna.storages.JournalStorage(journal),
            study_name=NAME,
            direction="maximize" if objective.maximised else "minimize",
            load_if_exists=True,
            pruner=made[pruner](),
        )

    def unfinished(self) -> list[Begun]:
        """Trials that were begun and did not end."""
        running = self._optuna.trial.TrialState.RUNNING
        return [
            Begun(trial.number, self._values(self._open(trial.number)))
            for trial in self._study.get_trials(deepcopy=False, states=(running,))
        ]

    def next_number(self) -> int:
        """Of the trial that `propose` would begin."""
        return len(self.records())

    def propose(self, fixed: Mapping[str, str]) -> Begun:
        """Begin a trial.

        Args:
            fixed: values that it has; the others are proposed. For the first trial, which is as
                configured: all values, or none where the space does not hold them.
        """
        number, waiting = self.next_number(), self._optuna.trial.TrialState.WAITING
        if fixed and not self._study.get_trials(deepcopy=False, states=(waiting,)):
            self._study.enqueue_trial(
                {key: _stored(self._space[key], text) for key, text in fixed.items()}
            )
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=self._stream.seed(number) % 2**32, n_startup_trials=STARTING
        )
        trial = self._study.ask()
        if number == 0 and not fixed:
            trial.set_user_attr("outside", True)
        return Begun(number, self._values(trial))

    def _values(self, trial: optuna.Trial) -> dict[str, str]:
        """What a trial is proposed; what was proposed before stays."""
        if trial.user_attrs.get("outside"):
            return {}
        found = {key: _suggested(trial, key, domain) for key, domain in self._space.items()}
        if trial.number == 0:
            return {}
        if "values" not in trial.user_attrs:
            trial.set_user_attr("values", found)
        return found

    def _open(self, number: int) -> optuna.Trial:
        trials = self._study.get_trials(deepcopy=False)
        trial = self._optuna.trial.Trial(self._study, trials[number]._trial_id)
        return cast("optuna.Trial", trial)

    def watched(self, number: int) -> Watched:
        """What tells Optuna how a trial gets on."""
        return Watched(self._open(number))

    def end(self, number: int, ended: Ended) -> None:
        """Keep how a trial ended.

        One that diverged is kept as one that was stopped, from which Optuna learns that it was bad;
        of one that failed it learns nothing.
        """
        trial, states = self._open(number), self._optuna.trial.TrialState
        trial.set_user_attr("ended", json.dumps([ended.outcome, ended.reason]))
        standing = ended.standing
        if standing is not None:
            trial.set_user_attr("standing", [standing.value, standing.loss])
        if ended.outcome == "finished" and standing is not None:
            self._study.tell(number, standing.value)
        elif ended.outcome in ("stopped early", "diverged"):
            self._study.tell(number, state=states.PRUNED)
        else:
            self._study.tell(number, state=states.FAIL)

    def records(self) -> list[Record]:
        """All trials that were begun, by number."""
        waiting = self._optuna.trial.TrialState.WAITING
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state == waiting:
                continue
            attributes = trial.user_attrs
            outcome: Outcome | Literal["begun"] = "begun"
            reason = ""
            if trial.state.is_finished() and "ended" in attributes:
                outcome, reason = json.loads(attributes["ended"])
            standing = Standing(*attributes["standing"]) if "standing" in attributes else None
            values = attributes.get("values", {})
            found.append(Record(trial.number, values, outcome, standing, reason))
        return found

    def importances(self) -> dict[str, float]:
        """How much of the difference between the best quarter and the rest each key explains.

        They add to 1. Empty where too few trials ended to tell.
        """
        complete = self._optuna.trial.TrialState.COMPLETE
        trials = self._study.get_trials(deepcopy=False, states=(complete,))
        comparable = [t for t in trials if t.params.keys() >= self._space.keys()]
        if len(comparable) < ENOUGH or len({t.value for t in comparable}) == 1:
            return {}
        # Apart from the others: a first trial outside the space would count as a case of its own.
        apart = self._optuna.create_study(direction=self._study.direction)
        apart.add_trials(comparable)
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        found = self._optuna.importance.get_param_importances(
            apart, evaluator=evaluator, params=list(self._space)
        )
        return {key: float(found[key]) for key in sorted(found, key=lambda k: -found[k])}


ENOUGH = 12
"""Finished trials that importances are told from, at least."""


class Watched:
    """Tells Optuna how a trial gets on; part of a `vertizo.studies.tuning.trial.Watch`."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial
        # A trial that goes on tells again what it told before.
        self._told = set(trial.storage.get_trial(trial._trial_id).intermediate_values)

    def stage(self, number: int, value: float) -> None:
        """What the trial is worth after so many stages."""
        if number not in self._told:
            self._told.add(number)
            self._trial.report(value, number)

    def is_hopeless(self) -> bool:
        """Whether the pruner would stop it."""
        return bool(self._trial.should_prune())


def _suggested(trial: optuna.Trial, key: str, domain: Domain) -> str:
    if not isinstance(domain, Range):
        return str(trial.suggest_categorical(key, list(domain.values)))
    if domain.whole:
        low, high = int(domain.low), int(domain.high)
        return domain.text(trial.suggest_int(key, low, high, log=domain.log))
    return domain.text(trial.suggest_float(key, domain.low, domain.high, log=domain.log))


def _stored(domain: Domain, text: str) -> Any:
    """A value as Optuna has it."""
    if not isinstance(domain, Range):
        return text
    return int(text) if domain.whole else float(text)
