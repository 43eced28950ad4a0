"""What leaves the server about one record, and what it is charged."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refusals import refused
from tests.rows import examples

from vertizo.core.errors import BudgetError, ConfigError
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import UNIT
from vertizo.privacy.ledger.base import Entry, MemoryLedger

REPLY, STEP = GaussianRelease(2.0, 16.0), GaussianRelease(0.5, 8.0)
"""μ = 1/4 and 1/8."""


def test_sensitivity_is_twice_the_clip() -> None:
    """And what cutting a whole sum to a grid adds, where one is."""
    assert GaussianRelease(1.5, 7.0).sensitivity == 3.0
    assert GaussianRelease(1.5, 7.0, slack=0.25).sensitivity == 3.25
    assert (REPLY.mu, STEP.mu) == (0.25, 0.125)
    assert GaussianRelease(0.5, 8.0, slack=1.0).mu == 0.25


def test_numbers_out_of_range() -> None:
    for value in [0.0, -1.0, math.nan, math.inf]:
        refused(value, ConfigError, GaussianRelease, value, 1.0, match="clip is")
        refused(value, ConfigError, GaussianRelease, 1.0, value, match="noise_std is")
    for numbers, words in [
        ((0, 0.1, 1.0), "secret steps is 0"),
        ((-3, 0.1, 1.0), "secret steps is -3"),
        ((5, 0.0, 1.0), "sampling rate is 0.0"),
        ((5, 1.0, 1.0), "sampling rate is 1.0"),
        ((5, math.nan, 1.0), "sampling rate is nan"),
        ((5, 0.1, 0.0), "noise multiplier is 0.0"),
        ((5, 0.1, math.inf), "noise multiplier is inf"),
    ]:
        refused(numbers, ConfigError, SecretSteps, *numbers, match=words)


def test_mu_adds_in_squares() -> None:
    """4 queries of each of 3 clients, 5 numbers a reply, 2 updates a query."""
    made = Releases(3, 4, REPLY, per_query=5, step=STEP, steps_per_query=2.0)
    assert made.reply_mu == pytest.approx(math.sqrt(5 / 16))
    assert made.query_mu == pytest.approx(math.sqrt(5 / 16 + 2 / 64))
    assert made.replies_alone_mu == pytest.approx(math.sqrt(12 * 5 / 16))
    assert made.known_mu == pytest.approx(math.sqrt(12 * (5 / 16 + 2 / 64)), rel=1e-9)


def test_synchronous_updates_are_shared_by_the_queries_of_a_round() -> None:
    """One update for M queries on one batch: a record's whole spending holds it once a round."""
    clients, rounds = 7, 10
    made = Releases(clients, rounds, REPLY, step=STEP, steps_per_query=1 / clients)
    exact = clients * rounds / 16 + rounds / 64
    assert made.known_mu == pytest.approx(math.sqrt(exact), rel=1e-9)
    apart = Releases(clients, rounds, REPLY, step=STEP)
    assert apart.known_mu == pytest.approx(math.sqrt(clients * rounds * (1 / 16 + 1 / 64)))


def test_secret_steps_are_not_charged_to_queries() -> None:
    plain, secret = (Releases(3, 4, REPLY, secret=s) for s in (None, SecretSteps(9, 0.1, 1.0)))
    assert (plain.cost, plain.known_mu) == (secret.cost, secret.known_mu)


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(
    clients=st.integers(1, 10),
    queries=st.integers(1, 100),
    clip_norm=st.floats(1e-3, 1e3),
    noise=st.floats(1, 1e5),
    per_query=st.integers(1, 100),
)
def test_charges_never_say_less_than_is_spent(
    clients: int, queries: int, clip_norm: float, noise: float, per_query: int
) -> None:
    """Units are rounded up, by less than one a query; shares are whole queries."""
    made = Releases(clients, queries, GaussianRelease(clip_norm, noise * clip_norm), per_query)
    exact = 4 * per_query / noise**2
    assert made.share == queries * made.cost
    assert exact * (1 - 1e-12) <= made.cost * UNIT <= exact * (1 + 1e-12) + UNIT
    whole = clients * queries * made.cost * UNIT
    assert made.known_mu == pytest.approx(math.sqrt(whole), rel=1e-12)
    assert made.known_mu >= made.replies_alone_mu * (1 - 1e-12)


def test_noise_too_small_to_be_charged_still_has_its_mu() -> None:
    """μ² in units of 1e-12 passes 64 bits at μ = 3000: queries are counted, μ is not cut off."""
    ids = torch.tensor([1])
    for noise_std in [1e-9, 1e-4, 1e-100]:
        made = Releases(3, 4, GaussianRelease(1.0, noise_std))
        assert made.known_mu == pytest.approx(2 / noise_std * math.sqrt(12))
        ledger = MemoryLedger(2, 3, made.share)
        for client in range(3):
            for number in range(4):
                ledger.admit(client, ids, made.cost)
                ledger.commit([Entry(client, number, b"", ids, made.cost, b"")])
            refused(client, BudgetError, ledger.admit, client, ids, made.cost)
        assert ledger.spent == 3 * made.share
