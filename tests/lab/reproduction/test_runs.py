"""Runs and tasks of a study: what is finished is kept, what diverges is noted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vertizo.core.errors import ConfigError, Interrupted, RunError
from vertizo.lab.comparison import Standing
from vertizo.lab.engines import Forgive, Run
from vertizo.lab.engines import Made as Making
from vertizo.lab.reproduction import grid, kinds
from vertizo.lab.reproduction.runs import FAILED, Order, Task, configure, make, results
from vertizo.lab.reproduction.study import AttackConfig, GridConfig
from vertizo.run.experiment import Experiment
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

Study = Callable[..., GridConfig]
TWO = {name: {"words": name, "settings": {"method": {"name": name}}} for name in ("vafl", "split")}


@dataclass
class Here:
    """An engine that makes runs in this process, and may be told to fail."""

    diverges: str = ""
    problem: str = "training diverged in round 3: the loss is nan; lower the rate"
    stops_at: str = ""
    made: list[str] = field(default_factory=list)

    def make(self, runs: Sequence[Run], forgive: Forgive) -> Making:
        for run in runs:
            if run.label == self.stops_at:
                self.stops_at = ""
                raise KeyboardInterrupt
            if run.label == self.diverges:
                RunFolder(run.folder).create(run.config)
                if not forgive(run, RunError(self.problem)):
                    raise RunError(self.problem)
            else:
                self.made.append(run.label)
                Experiment(run.config).run(run.folder)
            yield run


def test_what_stopped_goes_on_and_nothing_is_made_twice(grid_study: Study, tmp_path: Path) -> None:
    engine = Here(stops_at="split")
    order = Order(tmp_path, engine)
    cases = grid.cases(grid_study(rows=TWO), order)
    with pytest.raises(Interrupted):
        make(cases, order)
    assert engine.made == ["vafl"]
    made = make(cases, order)
    assert engine.made == ["vafl", "split"]
    assert all(found.runs[0] is not None for found in made.values())
    assert make(cases, order).keys() == made.keys()
    assert engine.made == ["vafl", "split"]


def test_a_run_that_diverges_is_a_result_and_the_others_go_on(
    grid_study: Study, tmp_path: Path
) -> None:
    engine = Here(diverges="vafl")
    order = Order(tmp_path, engine)
    cases = grid.cases(grid_study(rows=TWO), order)
    made = make(cases, order)
    assert made["vafl"].runs == (None,)
    assert made["split"].finished
    assert "diverged in round 3" in (tmp_path / "vafl" / "seed0" / FAILED).read_text()
    engine.diverges = ""  # it is not tried again
    assert make(cases, order)["vafl"].runs == (None,)
    assert engine.made == ["split"]


def test_another_failure_is_raised_and_other_runs_are_refused(
    grid_study: Study, tmp_path: Path
) -> None:
    order = Order(tmp_path / "full", Here(diverges="vafl", problem="the disk is full"))
    with pytest.raises(RunError, match="the disk is full"):
        make(grid.cases(grid_study(), order), order)
    order = Order(tmp_path, Here())
    make(grid.cases(grid_study(), order), order)
    other = Order(tmp_path, Here(), overrides=("epochs=3",))
    with pytest.raises(RunError, match="another configuration"):
        make(grid.cases(grid_study(), other), other)


def test_later_trees_replace_keys_and_null_takes_them_away() -> None:
    first = {"epochs": 2, "privacy": {"mechanism": "gaussian", "clip": 1.0, "noise_std": 1.0}}
    second = {"method": {"name": "czofo", "num_directions": 7}, "client": {"model": {"outputs": 9}}}
    third = {"method": {"smoothing": 0.01}, "privacy": None}
    found = configure("x", [first, second, third], ["epochs=5"])
    assert found.method.num_directions == 7
    assert found.method.smoothing == 0.01
    assert found.privacy.mechanism == "none"
    assert found.epochs == 5
    # Another method forgets the first one's keys.
    assert configure("x", [second, {"method": {"name": "vafl"}}]).method.name == "vafl"
    with pytest.raises(ConfigError, match="Table 9: unknown key 'epoch'"):
        configure("Table 9", [{"epoch": 2}])


SUM = {
    "epochs": 1,
    "evaluate_every": 10**9,
    "data": {"name": "digits", "parties": 2, "validation": 0.0, "limit": 300},
    "client": {"model": {"name": "mlp", "outputs": 10}},
    "server": {"model": {"name": "sum"}, "optimizer": {"learning_rate": 0.01}},
}


def trial(seed: int, attack: str = "direct-client") -> Task:
    config = configure("x", [SUM, {"method": {"name": "vafl"}, "seed": seed}])
    return Task("a", kinds.attack_trial, (attack, (), config.model_dump(mode="json")))


@pytest.mark.full
def test_figures_are_kept_and_not_made_again(tmp_path: Path) -> None:
    standings: list[Standing] = []
    tasks = {"a": Task("a", dict, ([["x", 1]],)), "b": Task("b", dict, ([["x", 2]],))}
    found, by = results(tasks, tmp_path, 2, standings.append)
    assert found == {"a": {"x": 1}, "b": {"x": 2}}
    (commit,) = by["commits"]
    assert standings[-1] == Standing(2, 2, 1.0)
    kept = {"figures": {"kept": 1}, "made_by": {**by, "commits": ["older"], "seconds": 5.0}}
    checkpoint.keep(tasks["a"].file(tmp_path), json.dumps(kept).encode())
    found, again = results(tasks, tmp_path, 2)
    assert found == {"a": {"kept": 1}, "b": {"x": 2}}
    assert again["commits"] == sorted(["older", commit])
    assert again["seconds"] >= 5.0
    others = {trial(seed).file(tmp_path) for seed in (0, 1, 0)}
    assert len(others) == 2, "other arguments are another task"


def test_a_trial_of_an_attack() -> None:
    found = kinds.attack_trial(*trial(0).arguments)
    assert found["figures"]["accuracy"]["trials"] == [1.0]
    with pytest.raises(ConfigError, match="there is no attack 'direct'"):
        kinds.attack_trial(*trial(0, "direct").arguments)


@pytest.mark.full
def test_a_task_that_fails_leaves_what_is_finished(tmp_path: Path) -> None:
    good, bad = Task("a", dict, ([["x", 1]],)), Task("b", dict, (7,))
    with pytest.raises(TypeError):
        results({1: good, 2: bad}, tmp_path, 1)
    assert good.file(tmp_path).is_file()
    assert not bad.file(tmp_path).is_file()
    with pytest.raises(RunError, match="was killed"):
        results({1: Task("a", os._exit, (9,))}, tmp_path, 1)


def test_a_study_of_what_there_is_not(tmp_path: Path) -> None:
    order = Order(tmp_path, None)
    keys = {
        "title": "x",
        "paper": "x",
        "settings": SUM,
        "rows": {"a": {"words": "a", "methods": ["vafl"]}},
    }
    for column, words in (
        ({"words": "x", "attack": "direct"}, "there is no attack 'direct'"),
        ({"words": "x", "attack": "membership", "figure": "y"}, "has no figure 'y'"),
    ):
        study = AttackConfig.model_validate({**keys, "columns": {"c": column}})
        with pytest.raises(ConfigError, match=words):
            kinds.run(study, order)
