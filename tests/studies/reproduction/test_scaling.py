"""Growth: the fewest rounds over rates, and the power they grow with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vertizo.config.schema import ExperimentConfig
from vertizo.studies.reproduction import scaling
from vertizo.studies.reproduction.figures import Finished
from vertizo.studies.reproduction.runs import Case, Made, Order
from vertizo.studies.reproduction.study import ScalingConfig

ORDER = Order(Path("nowhere"), None)  # type: ignore[arg-type]
STUDY: dict[str, Any] = {
    "title": "Growth",
    "paper": "none",
    "seeds": 2,
    "settings": {"epochs": 2, "server": {"optimizer": {"learning_rate": 0.01}}},
    "methods": {
        "vafl": {"words": "VAFL", "settings": {"method": {"name": "vafl"}}, "rates": [0.1, 0.01]}
    },
    "axes": {
        "client": {
            "words": "parameters of a client",
            "size": "clients",
            "target": 0.5,
            "settings": [
                {"client": {"model": {"outputs": 2}}},
                {"client": {"model": {"outputs": 20}}},
            ],
            "theory": {"vafl": "O(1/√T)"},
            "exponents": {"vafl": 0},
        }
    },
}


def reaching(finished: Callable[..., Finished], rounds: int | None, size: int) -> Finished:
    """A run that has 50 % after so many tens of rounds."""
    accuracies = [0.1] * (rounds or 5) + ([0.6] if rounds else [])
    return finished(accuracies, parameters={"clients": [size, size], "server": 7})


def test_slope() -> None:
    assert scaling.slope([(1, 5), (10, 5), (100, 5)]) == pytest.approx(0.0, abs=1e-12)
    assert scaling.slope([(2, 8), (4, 16)]) == pytest.approx(1.0)
    assert scaling.slope([(1, 3), (10, 300), (100, 30_000)]) == pytest.approx(2.0)
    for points in ([(7, 3)], [(7, 3), (7, 5)], []):
        assert scaling.slope(points) is None


def test_every_size_and_rate_is_a_case() -> None:
    cases = scaling.cases(ScalingConfig.model_validate(STUDY), ORDER)
    rates = {key: case.config.client.optimizer.learning_rate for key, case in cases.items()}
    assert rates == {("client", "vafl", k, rate): rate for k in (0, 1) for rate in (0.1, 0.01)}
    sizes = [case.config.client.model.outputs for case in cases.values()]  # type: ignore[union-attr]
    assert sizes == [2, 2, 20, 20]


def test_the_rate_counts_that_takes_all_seeds_there_soonest(
    finished: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    def case(size: int, *rounds: int | None) -> Made:
        runs = tuple(reaching(finished, each, size) for each in rounds)
        return Made(runs, {}, ExperimentConfig())

    made = {
        "client.vafl.0.0.1": case(10, 2, 4),
        "client.vafl.0.0.01": case(10, 1, None),  # soonest, but not with every seed
        "client.vafl.1.0.1": case(1000, None, None),
        "client.vafl.1.0.01": case(1000, 20, 40),
    }

    def make(cases: list[Case], order: Order) -> dict[str, Made]:
        assert {each.label for each in cases} == set(made)
        return made

    monkeypatch.setattr(scaling, "make", make)
    outcome = scaling.run(ScalingConfig.model_validate(STUDY), ORDER)
    (growth,) = outcome.figures["growths"]
    assert growth["sizes"] == [10, 1000]
    assert growth["rounds"] == [[20.0, 40.0], [200.0, 400.0]]
    assert growth["rates"] == [0.1, 0.01]
    assert growth["power"] == pytest.approx(0.5)
    assert outcome.grids[0].columns[:2] == ("10", "1,000")
    assert outcome.grids[0].rows[0][-3:] == ("0.50", "0", "O(1/√T)")
    assert len(outcome.pictures[0].lines[0].points) == 2


def test_what_was_never_reached_is_said(
    finished: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    never = Made((reaching(finished, None, 10), None), {}, ExperimentConfig())
    monkeypatch.setattr(scaling, "make", lambda cases, _: {c.label: never for c in cases})
    outcome = scaling.run(ScalingConfig.model_validate(STUDY), ORDER)
    assert outcome.grids[0].rows[0][1:4] == ("not reached", "not reached", "–")
    assert outcome.pictures[0].lines == ()
