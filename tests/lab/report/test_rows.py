"""What a run writes of its course for a report: who was answered, how stale, how much ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from tests.lab.conftest import EXACT, TINY, settings

from vertizo.party.table import Staleness
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import epsilon_of
from vertizo.privacy.accounting.guarantee import epsilon, epsilon_so_far
from vertizo.run.experiment import Experiment, Result


def ran(*overrides: str) -> Result:
    return Experiment(settings(*TINY, *overrides)).run()


@pytest.fixture(scope="module")
def plain() -> Result:
    return ran("simulation.stragglers={2: 5}")


def test_rows_say_who_was_answered_and_how_stale(plain: Result) -> None:
    for row in plain.metrics:
        assert len(row["queries"]) == 4
        assert sum(row["queries"]) == row["round"], "each round is an answer of somebody"
    assert plain.metrics[-1]["queries"] == [18, 18, 18, 18]
    middle = plain.metrics[1]["queries"]
    assert middle[2] < min(count for client, count in enumerate(middle) if client != 2)
    first, *rows = plain.metrics
    assert (first["staleness_mean"], first["staleness_max"]) == (None, None)
    largest, means = ([row[f"staleness_{key}"] for row in rows] for key in ("max", "mean"))
    assert max(largest) == plain.summary["staleness"]["max"]
    assert min(largest) < max(largest), "each is of its own stretch"
    assert min(means) < plain.summary["staleness"]["mean"] < max(means)


def test_no_epsilon_where_none_holds(plain: Result) -> None:
    assert not any("epsilon" in row or "clip_fraction" in row for row in plain.metrics)
    published = ran(*EXACT, "privacy.accounting=published", "server.update=sgd")
    assert published.summary["privacy"]["guarantee"] == "published"
    assert not any("epsilon" in row for row in published.metrics)


@pytest.mark.full
def test_epsilon_grows_to_that_of_the_run() -> None:
    for server in ("none", "private-sgd", "private-zeroth-order"):
        for timing in ("asynchronous", "synchronous"):
            result = ran(*EXACT, f"server.update={server}", f"simulation.timing={timing}")
            spent = [row["epsilon"] for row in result.metrics]
            assert spent[0] == 0
            assert spent == sorted(spent)
            assert spent[1] < 0.8 * spent[-1]
            privacy = result.summary["privacy"]
            assert spent[-1] == pytest.approx(privacy["epsilon"], rel=1e-9)
            assert all(0 <= row["clip_fraction"] <= 1 for row in result.metrics[1:])
            if server == "none":  # it is that of what was charged
                named = sum(math.ceil(answered / 6) for answered in result.metrics[1]["queries"])
                mu = privacy["mu"] * math.sqrt(named / (4 * 3))
                assert spent[1] == pytest.approx(epsilon_of(mu, privacy["delta"]), rel=1e-6)


@pytest.mark.full
def test_steps_before_the_first_query_are_spent() -> None:
    secret = ("server.secret.sampling=0.2", "server.secret.warm_up=4", "server.secret.every=2")
    result = ran(*EXACT, "server.update=poisson-dp-sgd", *secret)
    spent = [row["epsilon"] for row in result.metrics]
    assert 0 < spent[0] < spent[-1]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(result.summary["privacy"]["epsilon"], rel=1e-9)


def test_all_releases_are_at_least_the_whole() -> None:
    for secret in (None, SecretSteps(50, 0.1, 3.0)):
        releases = Releases(3, 4, GaussianRelease(1.0, 20.0), secret=secret)
        steps = secret.count if secret else 0
        whole = epsilon(releases, 1e-5)
        found = epsilon_so_far(releases, 1e-5, named=12, steps=steps)
        assert whole <= found * (1 + 1e-9)
        assert found == pytest.approx(whole, rel=0.02)
        assert epsilon_so_far(releases, 1e-5, named=6, steps=steps // 2) < 0.9 * whole
        assert epsilon_so_far(releases, 1e-5, named=0, steps=0) == 0


def test_recent_staleness_begins_at_the_mark() -> None:
    staleness = Staleness()
    assert staleness.recent_mean is None
    staleness.add_ages(9, 1, 9)
    staleness.mark()
    assert (staleness.recent_mean, staleness.recent_largest) == (None, 0)
    staleness.add_ages(4, 2, 3)
    assert (staleness.recent_mean, staleness.recent_largest) == (2.0, 3)
    assert (staleness.mean, staleness.largest) == ((9 + 3 + 1) / 3, 9)
    old: Mapping[str, Any] = {"total": 12, "count": 4, "largest": 5}
    assert Staleness(**old).mean == 3, "a state without marks can be loaded"
