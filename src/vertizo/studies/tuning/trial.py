"""One trial: a run without test records, watched, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import BudgetError, ConfigError, NonFiniteError, RunError
from vertizo.data.vertical import Holding, VerticalData
from vertizo.run.experiment import Experiment, Progress
from vertizo.run.folder import RunFolder
from vertizo.studies.tuning.objective import Objective, Standing

if TYPE_CHECKING:
    import optuna

STAGES = 20
"""Parts of a run; trials are compared at the ends of these, whatever their batches' size."""
Outcome = Literal["finished", "stopped early", "diverged", "failed", "out of budget"]


@dataclass(frozen=True)
class Ended:
    """How a trial ended."""

    outcome: Outcome
    standing: Standing | None = None
    """Of the model it kept; None where it kept none."""
    reason: str = ""


class Watch:
    """Sees a trial get on, tells Optuna, and may stop the trial."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial
        # A trial that goes on tells again what it told before.
        self._told = set(trial.storage.get_trial(trial._trial_id).intermediate_values)
        self.share: Callable[[float], None] = lambda done: None
        """Called with how much of it is done, from 0 to 1."""

    def stage(self, number: int, value: float) -> None:
        """What the trial is worth after so many of `STAGES`."""
        if number not in self._told:
            self._told.add(number)
            self._trial.report(value, number)

    def is_hopeless(self) -> bool:
        """Whether the pruner would stop it, by what was told of it so far."""
        return bool(self._trial.should_prune())


class _Hopeless(Exception):  # noqa: N818 - it is no error
    """Ends a run from within."""


def without_tests(data: VerticalData) -> VerticalData:
    """The data without any test record, so that nothing can be chosen by them."""
    labels = {**data.labels, "test": data.labels["test"][:0]}
    features = tuple({**own, "test": own["test"][:0]} for own in data.features)
    held = data.own
    if held is not None:
        values = {**held.values, "test": held.values["test"][:0]}
        held = Holding(held.name, values, held.cardinalities)
    return replace(data, labels=labels, features=features, own=held)


def run_trial(
    config: ExperimentConfig,
    data: VerticalData,
    folder: Path,
    objective: Objective,
    watch: Watch,
) -> Ended:
    """Make a trial's run on data without test records in its folder, or go on with it.

    Raises:
        UserError: what no other trial would do better: a folder or a ledger that cannot be used.
        Interrupted: stopped after a checkpoint was written.
    """
    place = RunFolder(folder)
    resume = (folder / "config.yaml").is_file()
    if resume and config.privacy.noise == "secure" and place.summary() is None:
        return Ended("failed", reason="interrupted; secure noise cannot be repeated")
    try:
        progress = _reporting(place, objective, watch)
        Experiment(config, data).run(folder, resume=resume, progress=progress)
    except _Hopeless:
        return Ended("stopped early", objective.standing(place.metrics()))
    except ConfigError as error:
        return Ended("failed", reason=str(error))
    except RunError as error:
        # The cause is what tells a run that failed from a folder that cannot be used.
        if isinstance(error.__context__, NonFiniteError):
            return Ended("diverged", reason=str(error).split(";")[0])
        if isinstance(error.__context__, BudgetError):
            return Ended("out of budget", reason=str(error))
        raise
    return Ended("finished", objective.standing(place.metrics()))


def _reporting(place: RunFolder, objective: Objective, watch: Watch) -> Callable[[Progress], None]:
    """Tells a watch what a run has evaluated, and ends the run where that is hopeless.

    Stages are told one by one, in order, with what was known at their ends, so that nothing depends
    on how often this is called.
    """
    read, told, size = 0, 0, -1

    def report(here: Progress) -> None:
        nonlocal read, told, size
        watch.share(here.round / here.total)
        file = place.metrics_file
        before_size, size = size, file.stat().st_size if file.is_file() else 0
        rows = place.metrics() if size != before_size else []
        for count in range(read + 1, len(rows) + 1):
            stage = STAGES * rows[count - 1]["round"] // here.total
            before = objective.standing(rows[: count - 1])
            now = objective.standing(rows[:count])
            while told < stage:
                told += 1
                standing = now if told == stage else before
                if standing is not None:
                    watch.stage(told, standing.value)
            if now is not None and stage < STAGES and watch.is_hopeless():
                raise _Hopeless
        read = max(read, len(rows))

    return report
