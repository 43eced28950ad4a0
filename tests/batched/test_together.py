"""Runs that are advanced together end where each would alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vertizo.batched.together import Outcome, Wanted, train_together
from vertizo.config import ExperimentConfig
from vertizo.experiment import Result
from vertizo.server.losses import Regression

CLOCK = {"seconds", "rounds_per_second", "peak_memory_mib", "at_once"}
"""Figures that depend on how a run is made."""
GAUSSIAN = ("privacy.mechanism=gaussian", "privacy.clip=0.5")
CALIBRATED = (*GAUSSIAN, "privacy.epsilon=5")

SETTINGS: dict[str, tuple[str, ...]] = {
    "dpzv": (),
    "dpzv, signs, three directions": (
        "method={name: dpzv, directions: rademacher, num_directions: 3}",
        "method.smoothing=0.01",
    ),
    "dpzv in step, axes": (
        "method={name: dpzv, directions: coordinate}",
        "simulation.timing=synchronous",
    ),
    "dpzv, noise": (*GAUSSIAN, "privacy.noise_std=0.3"),
    "dpzv, three slopes clipped together": (
        *GAUSSIAN,
        "privacy.noise_std=0.3",
        "method={name: dpzv, num_directions: 3, clipping: jointly}",
    ),
    "dpzv, a private server": (*CALIBRATED, "server.update=private-sgd"),
    "dpzv, a private server by losses": (*CALIBRATED, "server.update=private-zeroth-order"),
    "dpzv, secret samples": (*CALIBRATED, "server.update=secret-sgd", "server.secret.every=3"),
    "dpzv, a server that stays": ("server.update=none",),
    "cascaded, rates that fall": ("method.name=cascaded", "client.optimizer.decay=linear"),
    "cascaded, hidden layers, stragglers": (
        "method.name=cascaded",
        "client.model={name: mlp, hidden: [7], outputs: 4, final_relu: true}",
        "simulation.stragglers={2: 5.0}",
        "simulation.delay={distribution: log-normal}",
    ),
    "cascaded, slopes, an uploaded table": (
        "method={name: cascaded, reply: difference, directions: sphere}",
        "simulation.table=upload",
    ),
    "zoo-vfl": ("method.name=zoo-vfl", "server.smoothing=0.01", "method.smoothing=0.01"),
    "syn-zoo-vfl, two-point server": (
        "method.name=syn-zoo-vfl",
        "server.update=zeroth-order",
        "server.smoothing=0.01",
    ),
    "vafl": ("method.name=vafl",),
    "vafl, noise, no momentum": (
        "method.name=vafl",
        *GAUSSIAN,
        "privacy.noise_std=0.1",
        "client.optimizer.momentum=0",
    ),
    "split": ("method.name=split",),
    "split, clients of two widths": ("method.name=split", "data.parties=3"),
    "vafl, clients of two widths": ("method.name=vafl", "data.parties=3"),
    "no validation, all records": ("data.validation=0", "data.limit=null", "rounds=150"),
}


def timeless(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in CLOCK}


def agree(one: Any, two: Any) -> bool:
    """Equal, numbers up to rounding."""
    if isinstance(one, float) and isinstance(two, float):
        return math.isclose(one, two, rel_tol=2e-3, abs_tol=1e-4)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(agree(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(agree, one, two))
    return bool(one == two)


def exact(row: dict[str, Any]) -> dict[str, Any]:
    """What no rounding touches: counts, bytes, times."""
    names = ("round", "epoch", "virtual_seconds", "bytes_up", "bytes_down", "queries")
    return {name: row[name] for name in (*names, "staleness_mean", "staleness_max")}


def results(outcomes: list[Outcome]) -> list[Result]:
    found = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    assert len(found) == len(outcomes), outcomes
    return found


def parameters(result: Result) -> torch.Tensor:
    federation = result.federation
    assert federation is not None
    held = federation.parameters()
    return torch.cat([*held["clients"], held["server"]])


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_each_ends_where_it_would_alone(
    setting: tuple[str, ...],
    configs: Callable[..., list[ExperimentConfig]],
    together: Callable[[list[ExperimentConfig]], list[Outcome]],
    alone: Callable[[list[ExperimentConfig]], list[Result]],
) -> None:
    wanted = configs(*setting)
    made, ones = results(together(wanted)), alone(wanted)
    for ours, theirs in zip(made, ones, strict=True):
        assert ours.summary["at_once"] == 3
        assert theirs.summary["at_once"] == 1
        assert list(map(exact, ours.metrics)) == list(map(exact, theirs.metrics))
        assert torch.equal(parameters(ours), parameters(theirs))
        for name in ("activation_shares", "staleness", "rounds", "privacy", "bytes_evaluation"):
            assert ours.summary[name] == theirs.summary[name]
        assert agree(timeless(ours.summary)["last"], timeless(theirs.summary)["last"])
        assert agree([timeless(r) for r in ours.metrics], [timeless(r) for r in theirs.metrics])
    assert len({result.summary["last"]["test_loss"] for result in made}) == 3
    moved = {row.get("validation_loss", row.get("test_loss")) for row in made[0].metrics}
    assert len(moved) > 1, "something was learned"


def test_rates_smoothing_controls_and_lengths_may_differ(
    together: Callable[[list[ExperimentConfig]], list[Outcome]],
    alone: Callable[[list[ExperimentConfig]], list[Result]],
    configs: Callable[..., list[ExperimentConfig]],
) -> None:
    each = (
        ("client.optimizer.learning_rate=0.01",),
        ("client.optimizer.learning_rate=0.1", "client.optimizer.momentum=0"),
        ("method.smoothing=0.02", "epochs=2"),
        ("control=frozen",),
        ("control=random", "server.optimizer.learning_rate=0.01"),
        ("rounds=17", "evaluate_every=5", "simulation.delay={distribution: constant}"),
    )
    wanted = [configs("method.name=cascaded", *own, seeds=1)[0] for own in each]
    for ours, theirs in zip(results(together(wanted)), alone(wanted), strict=True):
        assert list(map(exact, ours.metrics)) == list(map(exact, theirs.metrics))
        assert torch.equal(parameters(ours), parameters(theirs))


def test_labels_with_a_mean_and_spread_of_their_own(
    together: Callable[[list[ExperimentConfig]], list[Outcome]],
    alone: Callable[[list[ExperimentConfig]], list[Result]],
    configs: Callable[..., list[ExperimentConfig]],
) -> None:
    """A regression's are those of each run's training records."""
    smooth = "method.smoothing=0.05"  # rounding of a loss is divided by it
    wanted = configs("data.name=diabetes", "data.limit=null", smooth)
    made, ones = results(together(wanted)), alone(wanted)
    tasks = [result.federation.data.task for result in made if result.federation is not None]
    assert len({task.mean for task in tasks if isinstance(task, Regression)}) > 1
    for ours, theirs in zip(made, ones, strict=True):
        assert agree([timeless(r) for r in ours.metrics], [timeless(r) for r in theirs.metrics])
        assert torch.equal(parameters(ours), parameters(theirs))


def test_hundreds_of_rounds(
    together: Callable[[list[ExperimentConfig]], list[Outcome]],
    alone: Callable[[list[ExperimentConfig]], list[Result]],
    configs: Callable[..., list[ExperimentConfig]],
) -> None:
    wanted = configs("method.name=cascaded", "epochs=20", seeds=2)
    for ours, theirs in zip(results(together(wanted)), alone(wanted), strict=True):
        assert ours.summary["rounds"] == 480
        assert torch.equal(parameters(ours), parameters(theirs))


def test_a_group_repeats_itself_bit_for_bit(
    tmp_path: Path, configs: Callable[..., list[ExperimentConfig]]
) -> None:
    wanted = configs(seeds=4)
    first, again = (
        results(train_together([Wanted(c, tmp_path / f"{n}-{c.seed}") for c in wanted]))
        for n in range(2)
    )
    for one, two in zip(first, again, strict=True):
        assert torch.equal(parameters(one), parameters(two))
        assert timeless(one.summary) == timeless(two.summary)
