"""Ways to spend one ε, compared before there is data."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests import federations
from tests.lazy import Lazy
from tests.rows import each

from vertizo.core.errors import ConfigError
from vertizo.privacy.accounting.gaussian import mu_of
from vertizo.privacy.mechanism_advice import Case, Way, chosen, table, three_ways, ways
from vertizo.run.build.coverage import FEATURES

stats = Lazy("scipy.stats")


def found(epsilon: float, case: Case, tangents: int = 16) -> dict[str, Way]:
    return {way.name: way for way in ways(case, epsilon, 1e-5, tangents)}


def test_noise_is_what_each_mechanism_adds() -> None:
    case, epsilon = Case(30_000, 3), 1.0
    ours, mu = found(epsilon, case), mu_of(epsilon, 1e-5)
    rows = (("DPZV", 5, 1500), ("tangent", 4, 30_000), ("statistic", 1, 30_000))
    for name, releases, records in rows:
        wanted = 2 * math.sqrt(3 * releases) / mu / records
        assert ours[name].noise == pytest.approx(wanted, rel=1e-6)
    assert ours["teacher"].noise == pytest.approx(math.sqrt(2) / mu / 30_000)
    assert ours["response"].noise == pytest.approx(1 / (1 + math.e))
    for name in ("DPZV", "tangent", "statistic", "teacher"):
        assert ours[name].advantage == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1)
    assert ours["response"].advantage == pytest.approx(math.tanh(0.5))
    assert ours["tangent"].megabytes == pytest.approx(4e-6 * 30_000 * 3 * 4 * 17)


@each(
    "epsilon, classes, width, cover, name",
    [
        (1.0, 2, 1, "labels", "tangent"),
        (1.0, 2, 1, "features", "statistic"),
        (1.0, 2, 16, "features", "DPZV"),
        (1.0, 10, 2, "labels", "teacher"),
        (0.1, 2, 16, "labels", "teacher"),
        (3.0, 2, 16, "labels", "response"),
    ],
)
def test_one_is_taken_for_a_reason(
    epsilon: float, classes: int, width: int, cover: str, name: str
) -> None:
    case = Case(30_000, 3, classes, width)
    all_ways = ways(case, epsilon, 1e-5, 16)
    way, why = chosen(all_ways, case, epsilon, cover)  # type: ignore[arg-type]
    assert way.name == name
    assert why
    words = three_ways(all_ways, way, epsilon)
    assert [line.split(":")[0].split(",")[0] for line in words] == [
        "If the model may stay with the label holder",
        "If the model is handed on",
        "If nothing has to be guaranteed",
    ]
    assert "ε = 0" in words[0]
    assert way.settings in words[1]
    headings, *rows = table(all_ways)
    assert all(len(row) == len(headings) for row in rows)


def test_what_a_way_covers_is_what_its_runs_state() -> None:
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        "DPZV": ("dpzv", {}),
        "tangent": ("tangent", {}),
        "statistic": ("label-statistic", {}),
        "teacher": ("vafl", {"privacy.mechanism": "teacher"}),
        "response": ("vafl", {"privacy.mechanism": "randomised-response"}),
        "one-shot": ("one-shot", {}),
    }
    for name, way in found(1.0, Case(29, 3, 3, 3)).items():
        method, own = settings[name]
        # One evaluation, as by default: nothing is chosen by it.
        once = {"evaluate_every": 10**6}
        changes = {"privacy.epsilon": 1.0, "server.update": "none", **once, **own}
        covers = federations.build(method, None, changes).statement().covers
        assert (FEATURES in covers) == ("features" in way.covers), name
        assert "labels" in covers


def test_a_federation_of_nobody_is_refused() -> None:
    for records, clients, classes in ((0, 3, 2), (10, 0, 2), (10, 3, 1)):
        with pytest.raises(ConfigError):
            Case(records, clients, classes)
