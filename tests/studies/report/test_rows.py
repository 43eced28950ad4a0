"""What a run writes of its course for a report: who was answered, how stale, how much ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from vertizo.config import schema
from vertizo.party.table import Staleness
from vertizo.privacy.accounting import epsilon_of
from vertizo.privacy.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.guarantee import epsilon, epsilon_so_far
from vertizo.run.experiment import Experiment, Result

TINY = ("data.limit=60", "batch_size=9", "epochs=3")
EXACT = ("privacy.mechanism=gaussian", "privacy.clip=0.5", "privacy.epsilon=3")


def ran(*overrides: str) -> Result:
    return Experiment(schema.load(None, (*TINY, *overrides))).run()


@pytest.fixture(scope="module")
def plain() -> Result:
    return ran("simulation.stragglers={2: 5}")


def test_each_round_is_an_answer_of_somebody(plain: Result) -> None:
    for row in plain.metrics:
        assert len(row["queries"]) == 4
        assert sum(row["queries"]) == row["round"]
    assert plain.metrics[-1]["queries"] == [18, 18, 18, 18]


def test_a_straggler_is_behind_on_the_way(plain: Result) -> None:
    middle = plain.metrics[1]["queries"]
    assert middle[2] < min(count for client, count in enumerate(middle) if client != 2)


def test_stretches_of_staleness_make_up_the_whole(plain: Result) -> None:
    first, *rows = plain.metrics
    assert first["staleness_mean"] is None
    assert first["staleness_max"] is None
    largest = [row["staleness_max"] for row in rows]
    assert max(largest) == plain.summary["staleness"]["max"]
    assert min(largest) < max(largest), "each is of its own stretch"
    means = [row["staleness_mean"] for row in rows]
    assert min(means) < plain.summary["staleness"]["mean"] < max(means)


def test_no_epsilon_where_none_holds(plain: Result) -> None:
    assert not any("epsilon" in row or "clip_fraction" in row for row in plain.metrics)
    published = ran(*EXACT, "privacy.accounting=published", "server.update=sgd")
    assert published.summary["privacy"]["guarantee"] == "published"
    assert not any("epsilon" in row for row in published.metrics)


@pytest.mark.parametrize("server", ["none", "private-sgd", "private-zeroth-order"])
@pytest.mark.parametrize("timing", ["asynchronous", "synchronous"])
def test_epsilon_grows_to_that_of_the_run(server: str, timing: str) -> None:
    result = ran(*EXACT, f"server.update={server}", f"simulation.timing={timing}")
    spent = [row["epsilon"] for row in result.metrics]
    assert spent[0] == 0
    assert spent == sorted(spent)
    assert spent[1] < 0.8 * spent[-1]
    assert spent[-1] == pytest.approx(result.summary["privacy"]["epsilon"], rel=1e-9)
    assert all(0 <= row["clip_fraction"] <= 1 for row in result.metrics[1:])


def test_epsilon_so_far_is_that_of_what_was_charged() -> None:
    result = ran(*EXACT, "server.update=none")
    privacy, row = result.summary["privacy"], result.metrics[1]
    named = sum(math.ceil(answered / 6) for answered in row["queries"])
    mu = privacy["mu"] * math.sqrt(named / (4 * 3))
    assert row["epsilon"] == pytest.approx(epsilon_of(mu, privacy["delta"]), rel=1e-6)


def test_steps_before_the_first_query_are_spent() -> None:
    secret = ("server.secret.sampling=0.2", "server.secret.warm_up=4", "server.secret.every=2")
    result = ran(*EXACT, "server.update=poisson-dp-sgd", *secret)
    spent = [row["epsilon"] for row in result.metrics]
    assert 0 < spent[0] < spent[-1]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(result.summary["privacy"]["epsilon"], rel=1e-9)


RELEASES = Releases(clients=3, queries=4, reply=GaussianRelease(1.0, 20.0))


@pytest.mark.parametrize("secret", [None, SecretSteps(50, 0.1, 3.0)])
def test_all_releases_are_at_least_the_whole(secret: SecretSteps | None) -> None:
    releases = Releases(3, 4, RELEASES.reply, secret=secret)
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


def test_a_state_without_marks_can_be_loaded() -> None:
    old: Mapping[str, Any] = {"total": 12, "count": 4, "largest": 5}
    assert Staleness(**old).mean == 3
