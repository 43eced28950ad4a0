"""Rounds in which one client is active, drawn with given probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import deployments as dep
from tests.data.refusals import refused
from tests.same import same

from vertizo.config.schema import ExperimentConfig, parse
from vertizo.core.errors import ConfigError, Interrupted
from vertizo.core.randomness import Stream
from vertizo.run.experiment import Experiment, Result
from vertizo.run.loop.callbacks import Callback
from vertizo.run.loop.simulator import Activation

Q = [0.5, 0.3, 0.2]


def config(rounds: int = 600, activation: list[float] = Q, **more: Any) -> ExperimentConfig:
    tree: dict[str, Any] = {"seed": 3, "data": {"limit": 100, "parties": 3}, "batch_size": 30}
    simulation = {"activation": activation, "delay": {"distribution": "constant", "mean": 2.0}}
    return parse({**tree, "rounds": rounds, "simulation": simulation, "evaluate_every": 50, **more})


def ran(*args: Any, out: Path | None = None, **more: Any) -> Result:
    return Experiment(config(*args, **more)).run(out)


def test_clients_are_drawn_with_their_probabilities_among_those_that_are_left() -> None:
    drawn = Activation(Q, Stream.from_seed(1))
    found = [drawn.draw(number, range(3)) for number in range(20_000)]
    assert [found.count(client) / 20_000 for client in range(3)] == pytest.approx(Q, abs=0.01)
    assert [drawn.draw(number, range(3)) for number in range(300)] == found[:300]
    left = [drawn.draw(number, (0, 2)) for number in range(20_000)]
    assert left.count(2) / 20_000 == pytest.approx(2 / 7, abs=0.01)
    assert left.count(1) == 0


def test_a_run_has_so_many_rounds_and_one_client_in_each() -> None:
    summary = ran().summary
    assert summary["rounds"] == 600
    assert summary["activation_shares"] == pytest.approx(Q, abs=0.06)
    assert summary["virtual_seconds"] == 1200  # rounds follow each other
    assert ran(40, [0.98, 0.01, 0.01]).summary["activation_shares"][0] > 0.8


def test_no_record_is_in_more_replies_than_are_charged() -> None:
    """A client that made its epochs is drawn no more, so that ε is that of any other run."""
    private: dict[str, Any] = {"privacy": {"epsilon": 2.0}, "epochs": 4}
    drawn = ran(1000, [0.9, 0.05, 0.05], **private).summary
    paced = Experiment(parse(config(**private).model_dump() | {"simulation": {}})).run().summary
    assert drawn["activation_shares"] == [1 / 3] * 3  # all of 4 epochs of 3 batches
    assert drawn["rounds"] == 36
    assert drawn["privacy"]["epsilon"] == paced["privacy"]["epsilon"]


class Stops(Callback):
    def on_evaluation(self, row: Any) -> None:
        if row["round"] == 100:
            raise Interrupted("now")


@pytest.mark.full
def test_a_run_that_was_broken_off_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    whole = ran(150, out=tmp_path / "whole", checkpoint_seconds=0)
    broken = Experiment(config(150, checkpoint_seconds=0))
    with pytest.raises(Interrupted):
        broken.run(tmp_path / "broken", callbacks=[Stops()])
    again = broken.run(tmp_path / "broken", resume=True)
    assert same(again.parameters, whole.parameters)
    assert again.summary["activation_shares"] == whole.summary["activation_shares"]


def test_what_does_not_fit(tmp_path: Path) -> None:
    words = ["simulation.activation has 2 probabilities", "3 clients"]
    refused(words, ConfigError, ran, 9, [0.5] * 2)
    keys = {"simulation": {"activation": [0.25] * 4}, "rounds": 9}
    with pytest.raises(ValueError, match=r"simulation\.activation is for simulations"):
        dep.serve_config(tmp_path, **keys)
    models = {"client": {"models": {"north": {"outputs": 4}}}}
    with pytest.raises(ValueError, match=r"client\.models is for simulations"):
        dep.serve_config(tmp_path, **models)
