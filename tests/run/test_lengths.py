"""How long a run is, and that rates which fall come to 0 at its end: not before, not after."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rows import each

from vertizo.config.schema import parse
from vertizo.models.optimizers import Sgd
from vertizo.run.experiment import Experiment
from vertizo.run.lengths import answers_expected


def expected(clients: int, **more: Any) -> list[int]:
    """Of 100 records in batches of 10, two epochs: 20 answers a client."""
    config = parse({"epochs": 2, "batch_size": 10, **more})
    return answers_expected(config, 100, clients)


def test_a_whole_run_is_known_beforehand() -> None:
    assert expected(3) == [20, 20, 20]
    assert expected(3, simulation={"stragglers": {1: 4}}) == [20, 20, 20]


@each("rounds, each", [(7, 7), (20, 20), (50, 20)])
def test_in_step_all_make_as_many_as_there_are_rounds(rounds: int, each: int) -> None:
    assert expected(3, method={"name": "split"}, rounds=rounds) == [each] * 3


@each("rounds, each", [(1, 1), (30, 10), (31, 11), (60, 20), (99, 20)])
def test_rounds_are_shared_out(rounds: int, each: int) -> None:
    assert expected(3, rounds=rounds) == [each] * 3


def test_rounds_are_shared_out_by_pace() -> None:
    assert expected(3, rounds=21, simulation={"stragglers": {0: 5}}) == [2, 10, 10]
    assert expected(2, rounds=12, simulation={"stragglers": {1: 0.5}}) == [4, 8]


def test_nobody_makes_more_than_its_own() -> None:
    """What the fast ones have left goes to the others."""
    assert expected(3, rounds=47, simulation={"stragglers": {0: 10}}) == [7, 20, 20]
    assert expected(3, rounds=59, simulation={"stragglers": {0: 10, 1: 2}}) == [19, 20, 20]


class Rates:
    """The rates of every optimiser's steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[int, list[float]] = {}
        self._kept: list[Sgd] = []
        plain = Sgd._rate

        def noted(sgd: Sgd) -> float:
            rate = plain(sgd)
            self._kept.append(sgd)
            self.of.setdefault(id(sgd), []).append(rate / sgd.learning_rate)
            return rate

        monkeypatch.setattr(Sgd, "_rate", noted)


@each(
    "method, steps",
    [
        ({"name": "split"}, (1, 1)),
        ({"name": "fedbcd", "local_steps": 3}, (3, 3)),
        ({"name": "flex-vfl", "local_steps": [20], "server_local_steps": 1}, (20, 20)),
        ({"name": "flex-vfl", "local_steps": [1, 7], "server_local_steps": 5}, (1, 7)),
        ({"name": "dpzv"}, (1, 1)),
    ],
)
@each("rounds", [None, 6])
def test_rates_fall_over_a_clients_own_steps(
    monkeypatch: pytest.MonkeyPatch, method: Any, steps: tuple[int, int], rounds: int | None
) -> None:
    rates = Rates(monkeypatch)
    tree = {
        "method": method,
        "epochs": 2,
        "batch_size": 16,
        "rounds": rounds,
        "data": {"limit": 64, "parties": 2, "test_limit": 20},
        "simulation": {"timing": "synchronous"},
    }
    result = Experiment(parse(tree)).run()
    assert result.federation is not None
    answers = result.summary["rounds"]
    assert answers == (rounds or result.federation.clients[0].batches.per_epoch * 2)
    for optimizer, made in zip(result.federation.optimizers, steps, strict=True):
        total = answers * made
        found = rates.of[id(optimizer)]
        assert found == pytest.approx([1 - k / total for k in range(total)])


def test_rates_fall_in_asynchronous_rounds_that_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """As near 0 as chance lets them, and nobody stands still for long: a straggler is none."""
    rates = Rates(monkeypatch)
    tree = {
        "epochs": 40,
        "batch_size": 16,
        "rounds": 220,
        "data": {"limit": 128, "parties": 2, "test_limit": 20, "validation": 0},
        "simulation": {"stragglers": {1: 10}, "delay": {"distribution": "constant"}},
    }
    result = Experiment(parse(tree)).run()
    assert result.federation is not None
    assert [client.answered for client in result.federation.clients] == [200, 20]
    for optimizer in result.federation.optimizers:
        found = rates.of[id(optimizer)]
        assert found[-1] == pytest.approx(0, abs=0.06)
        assert found.count(0.0) <= 1
