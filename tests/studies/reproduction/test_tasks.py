"""Work in processes of its own whose figures are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vertizo.core.errors import ConfigError, RunError
from vertizo.studies.comparison import Standing
from vertizo.studies.reproduction import kinds, memory
from vertizo.studies.reproduction.kinds import attack_trial
from vertizo.studies.reproduction.runs import Order, Task, configure, results
from vertizo.studies.reproduction.study import AttackConfig, MemoryConfig

SUM = {
    "epochs": 1,
    "evaluate_every": 10**9,
    "data": {"name": "digits", "parties": 2, "validation": 0.0, "limit": 300},
    "client": {"model": {"name": "mlp", "outputs": 10}},
    "server": {"model": {"name": "sum"}, "optimizer": {"learning_rate": 0.01}},
}


def trial(seed: int, attack: str = "direct-client") -> Task:
    config = configure("x", [SUM, {"method": {"name": "vafl"}, "seed": seed}])
    return Task("a", attack_trial, (attack, (), config.model_dump(mode="json")))


@pytest.mark.processes
def test_figures_are_kept_and_not_made_again(tmp_path: Path) -> None:
    standings: list[Standing] = []
    tasks = {"a": Task("a", dict, ([["x", 1]],)), "b": Task("b", dict, ([["x", 2]],))}
    found = results(tasks, tmp_path, 2, standings.append)
    assert found == {"a": {"x": 1}, "b": {"x": 2}}
    assert standings[-1] == Standing(2, 2, 1.0)
    tasks["a"].file(tmp_path).write_text('{"kept": 1}')
    assert results(tasks, tmp_path, 2) == {"a": {"kept": 1}, "b": {"x": 2}}
    others = {trial(seed).file(tmp_path) for seed in (0, 1, 0)}
    assert len(others) == 2, "other arguments are another task"


def test_a_trial_of_an_attack() -> None:
    found = attack_trial(*trial(0).arguments)
    assert found["figures"]["accuracy"]["trials"] == [1.0]
    with pytest.raises(ConfigError, match="there is no attack 'direct'"):
        attack_trial(*trial(0, "direct").arguments)


@pytest.mark.processes
def test_a_task_that_fails_leaves_what_is_finished(tmp_path: Path) -> None:
    good, bad = Task("a", dict, ([["x", 1]],)), Task("b", dict, (7,))
    with pytest.raises(TypeError):
        results({1: good, 2: bad}, tmp_path, 1)
    assert good.file(tmp_path).is_file()
    assert not bad.file(tmp_path).is_file()
    with pytest.raises(RunError, match="was killed"):
        results({1: Task("a", os._exit, (9,))}, tmp_path, 1)  # type: ignore[arg-type]


def test_a_study_of_what_there_is_not(tmp_path: Path) -> None:
    order = Order(tmp_path, None)  # type: ignore[arg-type]
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
    rows = {"a": {"words": "a", "client": {}, "batch": [2, 3]}}
    keys = {"title": "x", "paper": "x", "methods": {"dpzvv": "x"}, "rows": rows}
    with pytest.raises(ConfigError, match="there is no method 'dpzvv'"):
        kinds.run(MemoryConfig.model_validate(keys), order)


@pytest.mark.skipif(not memory.PEAK_RESET.exists(), reason="peak memory is measured on Linux")
@pytest.mark.processes
def test_back_propagation_takes_more_memory_than_evaluating(tmp_path: Path) -> None:
    """Four layers of a million parameters each: gradients double what the weights take."""
    client = {"model": {"name": "mlp", "hidden": [1024, 1024, 1024], "outputs": 1024}}
    tasks = {
        method: Task(method, memory.peak, (client, [16, 1024], None, method, 0))
        for method in ("inference", "dpzv", "vafl")
    }
    found = results(tasks, tmp_path, 1)
    weights = found["dpzv"]["weights"]
    assert weights == pytest.approx(4 * 1024 * 1025 * 4 / 2**20)
    ratios = {name: each["peak"] / weights for name, each in found.items()}
    assert 0.9 < ratios["inference"] < 1.8
    assert ratios["dpzv"] < ratios["inference"] + 0.5
    assert ratios["vafl"] > ratios["dpzv"] + 0.5
