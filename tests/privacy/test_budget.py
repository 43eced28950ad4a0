"""Budgets worked out before there is any data; DPZV's figures for MNIST."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
from tests.refusals import refused

from vertizo.core.errors import ConfigError
from vertizo.privacy.accounting import budget
from vertizo.privacy.accounting.budget import Federation
from vertizo.privacy.accounting.gaussian import epsilon_of, mu_of, published_mu, published_noise_std

MNIST = Federation(records=60_000, clients=7, epochs=100, batch=64, clip_norm=10.0)
DELTA = 1e-3


class TestPublished:
    def test_epsilon_of_mnist(self) -> None:
        """σ on the mean 0.69524, on the sum 64 times that; what its replies really give."""
        found = budget.published(MNIST, 1.0, DELTA)
        assert f"{found.noise_std / 64:.5f}" == "0.69524"
        assert f"{found.all_replies:.2f}, {found.own_replies:.2f}" == "106.58, 23.23"
        assert f"{budget.published(MNIST, 10.0, DELTA).all_replies:.0f}" == "3075"

    def test_its_mu_is_too_small_by_the_root_of_batches(self) -> None:
        """Whatever M, E, C and the directions: ``μ_true / μ_published = √(D/B)``."""
        for (records, batch), per_query in product([(60_000, 64), (50, 50)], [1, 10]):
            federation = Federation(records, 3, 20, batch, 2.5, per_query)
            found = budget.published(federation, 1.0, DELTA)
            true = mu_of(found.all_replies, DELTA) / mu_of(1.0, DELTA)
            assert true == pytest.approx(math.sqrt(records / batch), rel=1e-6)

    def test_the_formula_and_its_inverse(self) -> None:
        """``μ = 2C√T·B / (D σ)`` with σ on the sum."""
        sigma = published_noise_std(10.0, mu_of(1.0, DELTA), 656_250, 64 / 60_000)
        assert f"{sigma / 64:.5f}" == "0.69524"
        mu = published_mu(sigma, 10.0, 656_250, 64 / 60_000)
        assert epsilon_of(mu, DELTA) == pytest.approx(1.0)
        for wrong in (0.0, -1.0, math.nan):
            refused(wrong, ConfigError, published_mu, wrong, 10.0, 100, 0.1, match="noise_std is")
            refused(wrong, ConfigError, published_noise_std, 10.0, wrong, 100, 0.1, match="mu is")
        for epsilon, delta in [(0.0, 1e-3), (1.0, 0.0), (math.nan, 1e-3)]:
            refused((epsilon, delta), ConfigError, budget.published, MNIST, epsilon, delta)


SERVERS: dict[str, dict[str, Any]] = {
    "none": {},
    "same batch": {"server_share": 0.5, "same_batch": True, "server_clip": 3.0},
    "secret": {"server_share": 0.5, "secret_steps": 30, "sampling": 0.05, "server_clip": 3.0},
}


class TestPlan:
    def test_gives_what_was_asked_for(self) -> None:
        for server in SERVERS:
            found = budget.plan(MNIST, 2.0, DELTA, **SERVERS[server])
            assert 0.995 * 2.0 <= found.epsilon <= 2.0
            assert found.delta == DELTA
            releases = found.releases
            assert (releases.clients, releases.queries) == (7, 100)
            assert releases.reply.clip_norm == 10.0
            assert found.published == budget.published(MNIST, 2.0, DELTA)
            if server == "none":
                assert (releases.step, releases.secret) == (None, None)
                expected = 20 * math.sqrt(700) / mu_of(2.0, DELTA)
                assert releases.reply.noise_std == pytest.approx(expected)
            if server == "same batch":
                assert releases.step.clip_norm == 3.0
                # One update a reply, half of μ² for either: the same multiple of the clip.
                assert releases.step.noise_std / 3 == pytest.approx(releases.reply.noise_std / 10)
            if server == "secret":
                assert (releases.secret.count, releases.secret.sampling) == (30, 0.05)
                assert releases.step is None

    def test_the_clip_is_a_unit(self) -> None:
        both = (Federation(1000, 3, 20, 10, clip) for clip in (1.0, 10.0))
        one, ten = (budget.plan(federation, 1.0, DELTA) for federation in both)
        assert ten.releases.reply.noise_std == pytest.approx(10 * one.releases.reply.noise_std)
        assert ten.epsilon == pytest.approx(one.epsilon)

    def test_batches_do_not_enter_but_into_the_published_figure(self) -> None:
        one, two = (budget.plan(Federation(1000, 3, 20, batch), 1.0, DELTA) for batch in (10, 100))
        assert one.releases == two.releases
        assert one.published.noise_std < two.published.noise_std

    def test_rounds_count_short_batches(self) -> None:
        assert MNIST.rounds == 656_600
        assert Federation(29, 3, 2, 8).rounds == 3 * 2 * 4

    def test_federations_that_are_none(self) -> None:
        for changed, word in [
            ({"records": 0}, "records is 0"),
            ({"clients": -1}, "clients is -1"),
            ({"epochs": 0}, "epochs is 0"),
            ({"batch": 0}, "batch is 0"),
            ({"clip_norm": 0.0}, "clip is 0"),
            ({"clip_norm": math.nan}, "clip is nan"),
            ({"per_query": 0}, "per_query is 0"),
            ({"batch": 101}, "batch is 101"),
        ]:
            numbers = {"records": 100, "clients": 2, "epochs": 3, "batch": 10, **changed}
            refused(changed, ConfigError, Federation, match=word, **numbers)

    def test_shares_belong_to_servers_that_are_trained(self) -> None:
        for wrong in [
            {"server_share": 0.5},
            {"same_batch": True},
            {"same_batch": True, "server_share": 1.0},
            {"secret_steps": 10, "sampling": 0.1},
        ]:
            words = "server_share is"
            refused(wrong, ConfigError, budget.plan, MNIST, 1.0, DELTA, match=words, **wrong)
