"""One trial: its stages, when it is stopped early, and what trials are compared by."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.conftest import settings

from vertizo.core.errors import ConfigError
from vertizo.lab.tuning import trial
from vertizo.lab.tuning.space import Choices, Range
from vertizo.lab.tuning.study import ENOUGH, PrunerName, Study
from vertizo.lab.tuning.trial import STAGES, Ended, Objective, ObjectiveName, Score
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder

SMALL = ("data.limit=120", "data.parties=2", "epochs=4")


class Told:
    """A watch that keeps what it is told, and stops a trial after some stage."""

    def __init__(self, hopeless: int = STAGES) -> None:
        self.stages: list[tuple[int, float]] = []
        self._hopeless = hopeless

    @property
    def told(self) -> int:
        return self.stages[-1][0] if self.stages else 0

    def stage(self, number: int, value: float) -> None:
        self.stages.append((number, value))

    def is_hopeless(self) -> bool:
        return self.told >= self._hopeless

    def share(self, done: float) -> None:
        assert 0 <= done <= 1


def ended(folder: Path, told: Told, batch: int) -> tuple[Ended, float]:
    """How a trial ended, and what it was worth then."""
    own = settings(*SMALL, f"batch_size={batch}")
    data = trial.without_tests(Experiment(own).data())
    found = trial.run_trial(own, data, folder, Objective("accuracy"), told)
    return found, found.score.value


def study(folder: Path, objective: ObjectiveName, pruner: PrunerName) -> Study:
    return Study(folder, {"method.smoothing": Range(0.1, 1.0)}, Objective(objective), 0, pruner)


def test_stages_are_the_same_whatever_the_batch(tmp_path: Path) -> None:
    for size in (18, 27, 54):
        told = Told()
        found, value = ended(tmp_path / f"run{size}", told, size)
        assert [number for number, _ in told.stages] == list(range(5, STAGES + 1))
        assert (found.outcome, told.stages[-1][1]) == ("finished", value)


def test_a_hopeless_trial_stops_and_leaves_no_summary(tmp_path: Path) -> None:
    told = Told(hopeless=10)
    found, value = ended(tmp_path / "run", told, 27)
    assert (found.outcome, told.stages[-1]) == ("stopped early", (10, value))
    assert RunFolder(tmp_path / "run").summary() is None


def is_stopped(made: Study, value: float) -> bool:
    """Make a trial that has this value at every stage; whether it is hopeless before its end."""
    number = made.propose({}).number
    watched = made.watched(number)
    for stage in range(1, STAGES + 1):
        watched.stage(stage, value)
        if stopped := watched.is_hopeless():
            break
    made.end(number, Ended("stopped early" if stopped else "finished", Score(value, value)))
    return stopped


def test_a_trial_below_the_median_is_stopped_and_one_above_is_not(tmp_path: Path) -> None:
    made = study(tmp_path, "accuracy", "median")
    assert not any(is_stopped(made, value) for value in (0.8, 0.82, 0.84, 0.86))
    poor, good = (made.watched(made.propose({}).number) for _ in range(2))
    for stage in range(1, 8):
        poor.stage(stage, 0.5)
        good.stage(stage, 0.85)
        assert poor.is_hopeless() == (stage >= STAGES // 4)
        assert not good.is_hopeless()


def test_where_less_is_better_the_greater_half_is_stopped(tmp_path: Path) -> None:
    made = study(tmp_path, "loss", "halving")
    stopped = {value: is_stopped(made, value) for value in (0.2, 0.9, 0.1, 0.8)}
    assert stopped == {0.2: False, 0.9: True, 0.1: False, 0.8: True}


def test_a_resumed_trial_tells_nothing_twice(tmp_path: Path) -> None:
    made = study(tmp_path, "loss", "median")
    begun = made.propose({})
    made.watched(begun.number).stage(1, 0.5)
    assert made.unfinished() == [begun]
    made.watched(begun.number).stage(1, 0.7)  # a warning of Optuna's would be an error
    made.end(begun.number, Ended("finished", Score(0.5, 0.5)))
    assert made.unfinished() == []


def test_importances_tell_what_matters_once_there_are_enough_trials(tmp_path: Path) -> None:
    space = {"method.smoothing": Range(0.1, 1.0), "batch_size": Choices(("8", "16"))}
    made = Study(tmp_path, space, Objective("loss"), 0, "none")
    for number in range(30):
        begun = made.propose({})
        value = (float(begun.values.get("method.smoothing", 0.9)) - 0.4) ** 2
        made.end(begun.number, Ended("finished", Score(value, value)))
        # the first is as configured, which the space does not hold
        if number in (ENOUGH - 2, ENOUGH - 1):
            assert made.importances() == {}
    found = made.importances()
    assert next(iter(found)) == "method.smoothing"
    assert found["method.smoothing"] > 0.7
    assert sum(found.values()) == pytest.approx(1)


def test_importances_are_not_told_where_most_trials_are_as_good_as_the_best_quarter(
    tmp_path: Path,
) -> None:
    made = study(tmp_path, "accuracy", "none")
    for value in (0.9, 0.8, *[0.5] * ENOUGH):
        made.end(made.propose({}).number, Ended("finished", Score(value, 0.5)))
    assert made.importances() == {}


def test_a_trial_is_worth_what_its_best_evaluation_is() -> None:
    figures = [(0, 0.9, 0.1), (5, 0.7, 0.6), (9, 0.8, 0.7), (12, 0.8, 0.65), (15, 0.75, 0.5)]
    names = ("round", "validation_accuracy", "validation_loss")
    rows = [dict(zip(names, row, strict=True)) for row in figures]
    assert Objective("loss").score(rows) == (0.65, 0.65)
    assert Objective("accuracy").score(rows[:1]) is None


def test_the_usual_objective_is_the_tasks() -> None:
    for name, usual in (("digits", "accuracy"), ("breast-cancer", "auc"), ("diabetes", "rmse")):
        data = Experiment(settings(f"data.name={name}")).data()
        assert trial.choose(None, data).name == usual
        assert trial.choose("loss", data).name == "loss"
        with pytest.raises(ConfigError, match=r"validation records of .* have"):
            trial.choose("rmse" if usual != "rmse" else "auc", data)
