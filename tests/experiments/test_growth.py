"""`experiments/growth.py`: rounds at each size's best rate, the exponent they grow with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import growth
import numpy as np
import pytest
import torch
from growth import Goal, best_rate, fit, grow, is_visible
from planted import LeastSquares, Planted, planted

from vertizo.config import schema as configuration
from vertizo.core.errors import RunError
from vertizo.lab.reproduction.runs import Task
from vertizo.run.experiment import Experiment

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
SMALL = {"columns": 6, "labels": 2, "records": 64, "validation": 32}


def tree(**keys: Any) -> dict[str, Any]:
    """One size: VAFL by plain SGD on whole batches, a server that adds up."""
    config = {
        "seed": 0,
        "epochs": 100,
        "rounds": 40,
        "batch_size": 64,
        "evaluate_every": 1,
        "data": {"name": "frame"},
        "method": {"name": "vafl"},
        "client": {
            "model": {"name": "mlp", "hidden": [], "outputs": 2, "last_layer": "zeros"},
            "optimizer": {"learning_rate": 1.0, "momentum": 0.0},
        },
        "server": {"update": "none", "model": {"name": "sum"}},
        **keys,
    }
    return {"config": config, "planted": SMALL}


def test_planted_records_have_a_loss_of_a_half_and_slopes_of_their_own() -> None:
    data = planted(Planted(columns=7, labels=3, parties=3, records=4000), seed=1)
    assert [part["train"].shape[1] for part in data.features] == [3, 2, 2]
    labels = data.labels["train"]
    task = data.task
    assert isinstance(task, LeastSquares)
    losses = task.losses(torch.zeros(4000, 3), labels).values
    assert float(losses.mean()) == pytest.approx(0.5, rel=0.05)
    whole = torch.cat([part["train"] for part in data.features], 1)
    solved = torch.linalg.lstsq(whole, labels).solution
    assert torch.allclose(whole @ solved, labels, atol=1e-4)
    assert torch.allclose(solved.norm(dim=0), torch.ones(3), atol=1e-4)
    assert not torch.equal(labels, planted(Planted(columns=7, labels=3), 2).labels["train"])

    logits = torch.randn(10, 3, requires_grad=True)
    twice = labels[:5].repeat(2, 1)
    loss = ((logits - twice).square().mean(1) / 2)[5:]
    (wanted,) = torch.autograd.grad(loss.sum() * 0.3, logits)
    found = task.losses(logits.detach(), labels[:5])
    assert torch.allclose(found.values[5:], loss)
    assert torch.allclose(found.slopes(slice(5, 10), 0.3), wanted[5:])
    assert torch.allclose(found.slopes(slice(5, 10), torch.full((5,), 0.3)), wanted[5:])


def test_the_walk_finds_the_fewest_rounds_and_tries_no_more_than_it_must() -> None:
    for best in range(9):
        budgets = []

        def count(rate: float, most: float, best: int = best) -> growth.Rounds:
            taken = 10.0 + 3 * abs(rate - best)
            budgets.append(most)  # noqa: B023
            return [taken, taken + 1] if 2 * taken + 1 < most else [taken, None]

        for start in (0, 4, 8):
            found, tried = best_rate(range(9), start, count)
            assert found == best
            assert tried[best] == [10.0, 11.0]
            assert len(tried) <= abs(best - start) + 3
            assert {best - 1, best + 1} & set(range(9)) <= set(tried)
        assert math.inf in budgets
    found, tried = best_rate(range(8), 1, lambda *_: [None])  # it goes on where none is reached
    assert found is None
    assert len(tried) == 8


def test_a_goal_ends_a_run() -> None:
    def rounds(goal: Goal, *rows: tuple[int, float, float]) -> float | None:
        for round_, loss, accuracy in rows:
            row = {"round": round_, "validation_loss": loss, "validation_accuracy": accuracy}
            try:
                goal.on_evaluation(row)
            except growth.OverError:
                return goal.reached
        raise AssertionError("it goes on")

    assert rounds(Goal("loss", 0.1, 50), (0, 0.5, 0.0), (5, 0.2, 0.0), (10, 0.1, 0.0)) == 10
    assert rounds(Goal("accuracy", 0.6, 50), (0, 0.5, 0.0), (5, 0.1, 0.6)) == 5
    assert rounds(Goal("loss", 0.1, 50), (0, 0.5, 0.0), (50, 0.2, 0.0)) is None
    assert rounds(Goal("loss", 0.1, 50), (0, 0.5, 0.0), (5, 5.1, 0.0)) is None
    assert rounds(Goal("loss", 0.1, 50), (0, 0.5, 0.0), (5, math.nan, 0.0)) is None


@pytest.mark.full
def test_sizes_are_grown_with_real_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [tree(), tree(batch_size=16), tree(rounds=1)]
    rates = [0.25, 1.0, 1e6]
    found = grow(sizes, rates, "batch", "loss", 0.01, 2)
    assert found["sizes"] == [64, 16, 64]
    assert found["rounds"][2] == []  # one round is too few
    assert found["rates"][2] is None
    assert found["tried"][0]["1e+06"] == [None]  # which diverges
    for place in (0, 1):
        config = configuration.parse(sizes[place]["config"])
        rate = found["rates"][place]
        for seed, rounds in enumerate(found["rounds"][place]):
            optimizer = config.client.optimizer.model_copy(update={"learning_rate": rate})
            client = config.client.model_copy(update={"optimizer": optimizer})
            own = config.model_copy(update={"seed": seed, "client": client})
            metrics = Experiment(own, planted(Planted(**SMALL), seed)).run().metrics
            reached = [row["round"] for row in metrics if row["validation_loss"] <= 0.01]
            assert reached[0] == rounds

    def fails(*_: Any, **__: Any) -> None:
        raise RunError("the disk is full")

    monkeypatch.setattr(Experiment, "run", fails)
    with pytest.raises(RunError, match="disk"):
        grow(sizes[:1], rates, "batch", "loss", 0.01, 1)


def test_what_is_counted() -> None:
    data = planted(Planted(**SMALL, parties=3), 0)
    config = configuration.parse(tree(method={"name": "czofo", "num_directions": 7})["config"])
    wanted = {"parties": 3, "batch": 64, "directions": 7, "embedding": 2, "clients": 6, "server": 2}
    assert {size: growth.size_of(size, config, data) for size in wanted} == wanted


def test_an_exponent_and_its_interval() -> None:
    sizes = [2, 4, 8, 16, 32]
    exact = fit(sizes, [[3.0 * size**1.5] * 2 for size in sizes])
    assert [exact[key] for key in ("exponent", "low", "high")] == pytest.approx([1.5] * 3)
    assert exact["sizes"] == 5
    assert is_visible(exact)

    draw = np.random.default_rng(3)
    held = visible = 0
    for _ in range(400):
        rounds = [list(np.exp(1 + draw.normal(0, 0.3, 3))) for _ in sizes]
        found = fit(sizes, rounds)
        held += found["low"] <= 0 <= found["high"]
        visible += is_visible(found)
    assert 0.92 <= held / 400 <= 0.98  # it is a 95 % interval
    assert visible <= 400 - held


def test_what_was_not_reached_is_left_out_of_a_fit_and_said() -> None:
    sizes = [2, 4, 8, 16, 32]
    rounds: list[list[float]] = [[float(size)] for size in sizes]
    rounds[4] = []
    found = fit(sizes, rounds)
    assert found["sizes"] == 4
    rounds[0] = [0.0]  # reached before training: no power of a size
    assert fit(sizes, rounds) is None
    own: growth.Growth = {"method": "dpzv", "sizes": sizes, "rounds": rounds, "fit": None}
    (line,) = growth.grid_of(growth.AXES["columns"], [own]).rows
    assert line[5:7] == ("not reached", "too few sizes")
    assert growth.censored(growth.AXES["columns"], own).endswith("by its columns (planted) 32.")


def test_the_committed_figures_are_what_it_makes_of_its_rounds() -> None:
    content = json.loads((RESULTS / f"{growth.NAME}.json").read_text("utf-8"))
    asked: list[Task] = []

    def do(tasks: Mapping[Any, Task]) -> tuple[dict[Any, Any], dict[str, Any]]:
        asked.extend(tasks.values())
        known = {(each["axis"], each["method"]): each for each in content["figures"]["growths"]}
        assert tasks.keys() == known.keys()
        return known, content["made_by"]

    found = json.loads(json.dumps(growth.run(False, 3, do).as_dict()))
    assert {key: content[key] for key in found} == found
    study = growth.form(False)
    assert (study.title, study.reduced) == (content["title"], content["reduced"])
    for task in asked:
        for size in task.arguments[0]:
            config = configuration.parse(size["config"])
            assert (config.data.name == "frame") == (size["planted"] is not None)
    assert len(growth.axes_of(True)) == 5
