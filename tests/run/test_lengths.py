"""How long a run is, and that rates which fall come to 0 at its end: not before, not after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.rows import each
from torch import Tensor

from vertizo.config.schema import parse
from vertizo.models.optimizers import Sgd
from vertizo.run.build.schedule import answers_expected
from vertizo.run.experiment import Experiment


@each(
    "clients, rounds, more, answers",
    [
        (3, None, {}, [20, 20, 20]),
        (3, None, {"stragglers": {1: 4}}, [20, 20, 20]),
        *((3, r, {"timing": "synchronous"}, [n] * 3) for r, n in ((7, 7), (20, 20), (50, 20))),
        *((3, r, {}, [n] * 3) for r, n in ((1, 1), (30, 10), (31, 11), (60, 20), (99, 20))),
        (3, 21, {"stragglers": {0: 5}}, [2, 10, 10]),
        (2, 12, {"stragglers": {1: 0.5}}, [4, 8]),
        (3, 47, {"stragglers": {0: 10}}, [7, 20, 20]),
        (3, 59, {"stragglers": {0: 10, 1: 2}}, [19, 20, 20]),
    ],
)
def test_answers_that_are_expected(
    clients: int, rounds: int | None, more: dict[str, Any], answers: list[int]
) -> None:
    """Of 100 records in batches of 10, two epochs: 20 a client, without ``rounds`` and in step.

    Else rounds are shared out by pace; nobody makes more than its own, and what the fast ones have
    left goes to the others.
    """
    tree = {"epochs": 2, "batch_size": 10, "simulation": more, "rounds": rounds}
    assert answers_expected(parse(tree), 100, clients) == answers


PLAIN = {side: {"optimizer": {"momentum": 0}} for side in ("client", "server")}
"""Steps of which each adds its gradient once, times its rate."""


class Rates:
    """The rates of every optimiser's steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[int, list[float]] = {}
        self._kept: list[Sgd] = []
        plain = Sgd.step

        def noted(sgd: Sgd, parameters: Tensor, gradient: Any) -> None:
            self._kept.append(sgd)
            scales = self.of.setdefault(id(sgd), [])
            plain(
                sgd, parameters, Scaled(gradient, lambda by: scales.append(-by / sgd.learning_rate))
            )

        monkeypatch.setattr(Sgd, "step", noted)


@dataclass
class Scaled:
    """A gradient that tells by how much it is added."""

    gradient: Any
    tell: Callable[[float], None]

    def add_to(self, vector: Tensor, scale: float) -> None:
        self.tell(scale)
        self.gradient.add_to(vector, scale)


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
        **PLAIN,
    }
    result = Experiment(parse(tree)).run()
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
        **PLAIN,
    }
    result = Experiment(parse(tree)).run()
    assert [client.answered for client in result.federation.clients] == [200, 20]
    for optimizer in result.federation.optimizers:
        found = rates.of[id(optimizer)]
        assert found[-1] == pytest.approx(0, abs=0.06)
        assert found.count(0.0) <= 1
