"""One trial: its stages, when it is stopped early, and what trials are compared by."""

from __future__ import annotations

from pathlib import Path

import pytest

from vertizo.config import schema
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder
from vertizo.studies.tuning.objective import Objective, Standing, choose
from vertizo.studies.tuning.space import Choices, Domain, Range
from vertizo.studies.tuning.study import ENOUGH, Study
from vertizo.studies.tuning.trial import STAGES, Ended, Outcome, run_trial, without_tests

SMALL = ("data.limit=120", "data.parties=2", "batch_size=27", "epochs=4")


def settings(*more: str) -> ExperimentConfig:
    return schema.load(None, (*SMALL, *more))


class Told:
    """A watch that keeps what it is told, and stops a trial after some stage."""

    def __init__(self, hopeless: int = STAGES) -> None:
        self.stages: list[tuple[int, float]] = []
        self._hopeless = hopeless

    def stage(self, number: int, value: float) -> None:
        self.stages.append((number, value))

    def is_hopeless(self) -> bool:
        return self.stages[-1][0] >= self._hopeless if self.stages else False

    def share(self, done: float) -> None:
        assert 0 <= done <= 1


def test_stages_are_the_same_whatever_the_batch(tmp_path: Path) -> None:
    for size in (18, 27, 54):
        own = settings(f"batch_size={size}")
        told, data = Told(), without_tests(Experiment(own).data())
        ended = run_trial(own, data, tmp_path / f"run{size}", Objective("accuracy"), told)
        assert [number for number, _ in told.stages] == list(range(5, STAGES + 1))
        assert ended.outcome == "finished"
        assert ended.standing is not None
        assert told.stages[-1][1] == ended.standing.value


def test_a_hopeless_trial_stops_and_leaves_no_summary(tmp_path: Path) -> None:
    own, told = settings(), Told(hopeless=10)
    data = without_tests(Experiment(own).data())
    ended = run_trial(own, data, tmp_path / "run", Objective("accuracy"), told)
    assert ended.outcome == "stopped early"
    assert ended.standing is not None
    assert told.stages[-1][0] == 10
    assert RunFolder(tmp_path / "run").summary() is None


def test_a_trial_below_the_median_is_stopped_and_one_above_is_not(tmp_path: Path) -> None:
    space = {"method.smoothing": Range(0.1, 1.0)}
    study = Study(tmp_path, space, Objective("accuracy"), 0, "median")
    for value in (0.8, 0.82, 0.84, 0.86):
        begun = study.propose({})
        watched = study.watched(begun.number)
        for stage in range(1, STAGES + 1):
            watched.stage(stage, value)
            assert not watched.is_hopeless()
        study.end(begun.number, Ended("finished", Standing(value, 0.5)))
    poor, good = (study.watched(study.propose({}).number) for _ in range(2))
    for stage in range(1, 8):
        poor.stage(stage, 0.5)
        good.stage(stage, 0.85)
        assert poor.is_hopeless() == (stage >= STAGES // 4)
        assert not good.is_hopeless()


def test_where_less_is_better_the_greater_half_is_stopped(tmp_path: Path) -> None:
    space = {"method.smoothing": Range(0.1, 1.0)}
    study = Study(tmp_path, space, Objective("loss"), 0, "halving")
    stopped = {}
    for value in (0.2, 0.9, 0.1, 0.8):
        begun = study.propose({})
        watched = study.watched(begun.number)
        stopped[value] = False
        for stage in range(1, STAGES + 1):
            watched.stage(stage, value)
            if watched.is_hopeless():
                stopped[value] = True
                break
        outcome: Outcome = "stopped early" if stopped[value] else "finished"
        study.end(begun.number, Ended(outcome, Standing(value, value)))
    assert stopped == {0.2: False, 0.9: True, 0.1: False, 0.8: True}


def test_a_trial_that_goes_on_tells_nothing_twice(tmp_path: Path) -> None:
    study = Study(tmp_path, {"method.smoothing": Range(0.1, 1.0)}, Objective("loss"), 0, "median")
    begun = study.propose({})
    study.watched(begun.number).stage(1, 0.5)
    (again,) = study.unfinished()
    assert again == begun
    study.watched(again.number).stage(1, 0.7)  # a warning of Optuna's would be an error
    study.end(again.number, Ended("finished", Standing(0.5, 0.5)))
    assert study.unfinished() == []


def test_importances_tell_what_matters_once_there_are_enough_trials(tmp_path: Path) -> None:
    space: dict[str, Domain] = {
        "method.smoothing": Range(0.1, 1.0),
        "batch_size": Choices(("8", "16")),
    }
    study = Study(tmp_path, space, Objective("loss"), 0, "none")
    for number in range(30):
        begun = study.propose({})
        value = (float(begun.values.get("method.smoothing", 0.9)) - 0.4) ** 2
        study.end(begun.number, Ended("finished", Standing(value, value)))
        # the first is as configured, which the space does not hold
        if number in (ENOUGH - 2, ENOUGH - 1):
            assert study.importances() == {}
    found = study.importances()
    assert next(iter(found)) == "method.smoothing"
    assert found["method.smoothing"] > 0.7
    assert sum(found.values()) == pytest.approx(1)


def test_objectives() -> None:
    rows = [
        {"round": 0, "validation_accuracy": 0.9, "validation_loss": 0.1},
        {"round": 5, "validation_accuracy": 0.7, "validation_loss": 0.6},
        {"round": 9, "validation_accuracy": 0.8, "validation_loss": 0.7},
        {"round": 12, "validation_accuracy": 0.8, "validation_loss": 0.65},
        {"round": 15, "validation_accuracy": 0.75, "validation_loss": 0.5},
    ]
    found = Objective("loss").standing(rows)
    assert found is not None
    assert (found.value, found.loss) == (0.65, 0.65)
    assert Objective("accuracy").standing(rows[:1]) is None


def test_the_usual_objective_is_the_tasks() -> None:
    for name, usual in (("digits", "accuracy"), ("breast-cancer", "auc"), ("diabetes", "rmse")):
        data = Experiment(schema.load(None, (f"data.name={name}",))).data()
        assert choose(None, data).name == usual
        assert choose("loss", data).name == "loss"
        with pytest.raises(ConfigError, match=r"validation records of .* have"):
            choose("rmse" if usual != "rmse" else "auc", data)
