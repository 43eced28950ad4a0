"""Early stopping: when, what is kept, and that a run that was killed stops where it would have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import deployments as dep
from tests.rows import each
from tests.same import same

from vertizo.config.schema import ExperimentConfig, parse
from vertizo.config.sections.early_stopping import EarlyStopping
from vertizo.core.errors import ConfigError
from vertizo.run.experiment import Experiment
from vertizo.run.loop.job_state import Stopping
from vertizo.run.loop.training import Training
from vertizo.run.results.folder import RunFolder

SAVED_OFTEN: dict[str, Any] = {
    "seed": 0,
    "epochs": 30,
    "evaluate_every": 4,
    "batch_size": 27,
    "checkpoint_seconds": 0,
    "data": {"limit": 60},
    "client": {"optimizer": {"learning_rate": 0.02}},
    "server": {"optimizer": {"learning_rate": 0.1}},
}


def config(**stopping: Any) -> ExperimentConfig:
    return parse(SAVED_OFTEN | {"early_stopping": stopping})


@each(
    "figure, min_delta, patience, waited",
    [
        ("validation_auc", 0.0, 2, [0, 0, 1, 0, 1, 2]),
        ("validation_accuracy", 0.05, 3, [0, 0, 1, 2, 3]),
        ("validation_loss", 0.05, 2, [0, 0, 1, 2]),
    ],
)
def test_patience_is_counted_from_the_last_that_was_better(
    figure: str, min_delta: float, patience: int, waited: list[int]
) -> None:
    stopping = Stopping(EarlyStopping(patience=patience, min_delta=min_delta))
    for value, expected in zip((0.5, 0.6, 0.6, 0.62, 0.61, 0.6), waited, strict=False):
        row = {figure: value, "validation_loss": 1.0}
        if figure == "validation_loss":
            row = {figure: 1 - value}
        elif figure == "validation_auc":
            row["validation_accuracy"] = 0.5
        assert not stopping.is_due
        stopping.hear(row)
        assert stopping.waited == expected, value
    assert stopping.is_due
    again = Stopping(stopping.options)
    again.load(json.loads(json.dumps(stopping.state())))
    assert again == stopping


def test_it_ends_once_a_goal_is_reached_and_stays_so() -> None:
    stopping = Stopping(EarlyStopping(accuracy=0.9))
    for value in (0.5, 0.4, 0.4, 0.8999, 0.9):
        assert not stopping.is_due
        stopping.hear({"validation_accuracy": value, "validation_loss": 1.0})
    again = Stopping(stopping.options)
    again.load(json.loads(json.dumps(stopping.state())))
    for one in (stopping, again):
        one.hear({"validation_accuracy": 0.1, "validation_loss": 2.0})
        assert one.is_due


def test_training_ends_at_the_first_evaluation_with_that_accuracy() -> None:
    whole = Experiment(config()).run()
    accuracies = [row["validation_accuracy"] for row in whole.metrics]
    goal = max(accuracies[:20])
    first = next(i for i, value in enumerate(accuracies) if value >= goal and i)
    assert config(accuracy=goal).digest != config().digest, "they would share noise"
    ended = Experiment(config(accuracy=goal)).run()
    assert ended.summary["stopped_early"]
    assert [row["validation_accuracy"] for row in ended.metrics] == accuracies[: first + 1]


def test_a_regression_has_no_accuracy_to_end_at() -> None:
    regression = SAVED_OFTEN | {"data": {"name": "diabetes"}, "early_stopping": {"accuracy": 0.9}}
    with pytest.raises(ConfigError, match=r"accuracy is 0\.9 but .* is a regression.*patience"):
        Experiment(parse(regression)).run()


@pytest.mark.full
def test_training_ends_and_one_that_was_killed_ends_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Experiment(config(patience=3)).run(tmp_path / "whole")
    summary, metrics = whole.summary, whole.metrics
    assert summary["stopped_early"]
    # The last evaluations are no better than the best, and no round follows them.
    assert metrics[-1]["round"] == summary["rounds"] < 30 * 2 * 4
    assert summary["best"]["round"] == metrics[-1 - 3]["round"]
    assert len({row["round"] for row in metrics}) == len(metrics)
    assert summary["last"]["test_loss"] > 0
    assert not Experiment(config(patience=100)).run().summary["stopped_early"]

    save: Callable[[Training], None] = Training._save

    def dies_after(training: Training) -> None:
        save(training)
        if training._job.party.round >= whole.summary["rounds"] - at:
            raise KeyboardInterrupt

    for at in (12, 0):
        out = tmp_path / f"killed{at}"
        with monkeypatch.context() as patch:
            patch.setattr(Training, "_save", dies_after)
            with pytest.raises(KeyboardInterrupt):
                Experiment(config(patience=3)).run(out)
        again = Experiment(config(patience=3)).run(out, resume=True)
        assert again.summary["rounds"] == whole.summary["rounds"], at
        assert same(again.parameters, whole.parameters), at
        assert len(RunFolder(out).metrics()) == len(whole.metrics), at


@pytest.mark.full
@each("stopping", [{"patience": 2}, {"accuracy": 0.6}])
@each("timing", ["asynchronous", "synchronous"])
def test_a_served_job_ends_early(tmp_path: Path, timing: str, stopping: dict[str, Any]) -> None:
    """Asynchronous evaluations wait for every client, while dozens of so small epochs go by.

    With momentum, clients that far apart can make the server forget what it had learnt.
    """
    keys = {"simulation": {"timing": timing}, "early_stopping": stopping, "epochs": 1000}
    plain = {"optimizer": {"learning_rate": 0.05, "momentum": 0.0}}
    served = dep.serve_config(tmp_path, **keys, client=dep.SMALL["client"] | plain, server=plain)
    done = dep.served(tmp_path, served)
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["stopped_early"]
    assert summary["epochs"] < 1000
    assert summary["last"]["test_loss"] > 0
    if "patience" in stopping:
        assert summary["best"]["round"] < summary["rounds"]
    else:
        assert summary["best"]["validation_accuracy"] >= 0.6
    assert len(done) == len(dep.MEMBERS)
