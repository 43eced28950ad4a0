"""One trial of a search: a run without test records, its score, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import BudgetError, ConfigError, NonFiniteError, RunError
from vertizo.data.vertical import Holding, VerticalData
from vertizo.models.losses import Classification, Huber, MultiLabel, Quantile
from vertizo.party.metrics import quality, varying
from vertizo.run.experiment import Experiment, Progress
from vertizo.run.loop.ledger_session import can_go_on
from vertizo.run.results.folder import RunFolder

if TYPE_CHECKING:
    import optuna

STAGES = 20
"""Number of equal parts of a run; trials are compared at their ends, whatever the batch size."""
ObjectiveName = Literal["accuracy", "auc", "average_precision", "loss", "rmse"]
Outcome = Literal["finished", "stopped early", "diverged", "failed", "out of budget"]


class Score(NamedTuple):
    """The validation score of the model that a run would keep so far."""

    value: float
    loss: float
    """Validation loss, which decides between equal values."""


@dataclass(frozen=True)
class Objective:
    """A figure on the validation records, of the model that a run keeps.

    That is the model of the evaluation with the highest validation accuracy, and the lowest loss
    among equals; for a regression that with the lowest loss.
    """

    name: ObjectiveName

    @property
    def maximised(self) -> bool:
        """Whether larger values are better."""
        return self.name not in ("loss", "rmse")

    def score(self, rows: Sequence[Mapping[str, Any]]) -> Score | None:
        """Score the model that is kept; None before the first evaluation after the start."""
        kept = max((row for row in rows if row["round"] > 0), key=quality, default=None)
        if kept is None:
            return None
        return Score(kept[f"validation_{self.name}"], kept["validation_loss"])

    def better_first(self, score: Score) -> tuple[float, float]:
        """Return a sort key that puts the best first, and among equals the lower loss."""
        return -score.value if self.maximised else score.value, score.loss


def choose(name: str | None, data: VerticalData) -> Objective:
    """Choose the objective by name, or the default one; ConfigError if there is no such figure.

    The default is the area under the ROC curve with two classes, accuracy with more, and for a
    regression the root of the mean squared error, or its own loss where that is another.
    """
    labels = data.labels["validation"]
    if not labels.numel():
        raise ConfigError(
            "data.validation is 0, or leaves no record; a search compares trials by validation "
            "records: use 0.1 or more"
        )
    offered: tuple[ObjectiveName, ...] = ("rmse", "loss")
    if type(data.task) in (Huber, Quantile):
        offered = ("loss", "rmse")
    if isinstance(data.task, MultiLabel):
        ranked = ("auc", "average_precision") if len(varying(labels)) else ()
        offered = (*ranked, "accuracy", "loss")
    if isinstance(data.task, Classification):
        both = data.task.outputs == 2 and 0 < int(labels.sum()) < labels.numel()
        offered = ("auc", "average_precision", "accuracy") if both else ("accuracy",)
        offered = (*offered, "loss")
    for each in offered:
        if name in (None, each):
            return Objective(each)
    raise ConfigError(
        f"--objective {name}: validation records of {data.name} have {', '.join(offered)}"
    )


class Ended(NamedTuple):
    """How a trial ended."""

    outcome: Outcome
    score: Score | None = None
    """Score of the model that it kept; None where it kept none."""
    reason: str = ""


class Watch:
    """A watch over one trial: it reports stages to Optuna and asks whether to stop."""

    def __init__(self, trial: optuna.Trial, told: Iterable[int]) -> None:
        self._trial = trial
        self.told = max(told, default=0)
        """The last stage that Optuna knows of; a resumed trial passes earlier ones again."""
        self.share: Callable[[float], None] = lambda done: None
        """Callback that takes the trial's finished share, from 0 to 1."""

    def stage(self, number: int, value: float) -> None:
        """Report the trial's value after stage ``number`` of `STAGES`, unless Optuna knows it."""
        if number > self.told:
            self.told = number
            self._trial.report(value, number)

    def is_hopeless(self) -> bool:
        """Whether the pruner would stop the trial, by the values reported so far."""
        return bool(self._trial.should_prune())


class _Hopeless(Exception):  # noqa: N818 - it is no error
    """Ends a run from within; carries its score so far."""


def without_tests(data: VerticalData) -> VerticalData:
    """Return the data without its test records, so that nothing can be chosen by them."""
    labels = {**data.labels, "test": data.labels["test"][:0]}
    features = tuple({**own, "test": own["test"][:0]} for own in data.features)
    held = data.own
    if held is not None:
        values = {**held.values, "test": held.values["test"][:0]}
        held = Holding(held.name, values, held.cardinalities)
    return replace(data, labels=labels, features=features, own=held)


def run_trial(
    config: ExperimentConfig, data: VerticalData, folder: Path, objective: Objective, watch: Watch
) -> Ended:
    """Make a trial's run on data without test records in its folder, or resume it.

    Failures of this trial alone are returned as its outcome. UserError where no other trial can
    succeed either: the folder or the ledger cannot be used.
    """
    place = RunFolder(folder)
    resume = (folder / "config.yaml").is_file()
    on = can_go_on(config, begun=place.has("last"))
    if resume and not on and place.summary() is None:
        return Ended("failed", reason="interrupted; secure noise cannot be repeated")
    try:
        progress = _reporting(place, objective, watch)
        Experiment(config, data).run(folder, resume=resume, progress=progress)
    except _Hopeless as stop:
        return Ended("stopped early", *stop.args)
    except ConfigError as error:
        return Ended("failed", reason=str(error))
    except RunError as error:
        # The cause is what tells a run that failed from a folder that cannot be used.
        if isinstance(error.__context__, NonFiniteError):
            return Ended("diverged", reason=str(error).split(";")[0])
        if isinstance(error.__context__, BudgetError):
            return Ended("out of budget", reason=str(error))
        raise
    return Ended("finished", objective.score(place.metrics()))


def _reporting(place: RunFolder, objective: Objective, watch: Watch) -> Callable[[Progress], None]:
    """Make a progress callback that reports a run's evaluations, and ends a hopeless run.

    Stages are reported one by one, in order, with the score at their ends, so that nothing depends
    on how often the callback is called.
    """
    read, told, size = 0, 0, -1

    def report(here: Progress) -> None:
        nonlocal read, told, size
        watch.share(here.round / here.total)
        file = place.metrics_file
        before, size = size, file.stat().st_size if file.is_file() else 0
        rows = place.metrics() if size != before else []
        for count in range(read + 1, len(rows) + 1):
            stage = STAGES * rows[count - 1]["round"] // here.total
            earlier, now = (objective.score(rows[:upto]) for upto in (count - 1, count))
            while told < stage:
                told += 1
                score = now if told == stage else earlier
                if score is not None:
                    watch.stage(told, score.value)
            if now is not None and watch.told <= stage < STAGES and watch.is_hopeless():
                raise _Hopeless(now)
        read = max(read, len(rows))

    return report
