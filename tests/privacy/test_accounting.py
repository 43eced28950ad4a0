"""Gaussian differential privacy against published figures and against its definition."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lazy import Lazy
from tests.refusals import refused
from tests.rows import examples

from vertizo.core.errors import ConfigError
from vertizo.privacy.accounting.gaussian import compose, delta_of, epsilon_of, mu_of, noise_std_for

stats = Lazy("scipy.stats")
integrate = Lazy("scipy.integrate")

MU = [
    (0.1, 1e-3, 0.0574567476133323),
    (0.5, 1e-3, 0.216913719247653),
    (1, 1e-3, 0.388401248306584),
    (5, 1e-3, 1.44960661423648),
    (10, 1e-3, 2.46269292333849),
    (0.1, 1e-5, 0.0325207840562039),
    (1, 1e-5, 0.268051123211294),
    (3, 1e-5, 0.719117435221793),
    (10, 1e-5, 2.00044562043063),
]
EPSILON = [
    (0.5, 1.99309140441512),
    (1, 4.37717809568122),
    (2, 9.9972561464343),
    (5, 33.1037323359225),
]
"""docs/mathematics.md, Gaussian differential privacy, from 40-digit arithmetic."""


def test_the_tables_to_eleven_digits() -> None:
    for epsilon, delta, mu in MU:
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-11)
    for mu, epsilon in EPSILON:
        assert epsilon_of(mu, 1e-5) == pytest.approx(epsilon, rel=1e-11)


def test_delta_is_the_hockey_stick_divergence() -> None:
    """``δ(ε) = ∫ max(0, p − e^ε q)`` of N(μ, 1) and N(0, 1), by quadrature."""
    for epsilon, mu in product([0.0, 0.1, 1.0, 4.0], [0.05, 0.3, 1.0, 3.0]):
        crossing = epsilon / mu + mu / 2
        expected, _ = integrate.quad(
            lambda x, mu=mu, e=epsilon: stats.norm.pdf(x, mu) - math.exp(e) * stats.norm.pdf(x),
            crossing,
            crossing + 40,
            epsabs=1e-15,
            epsrel=1e-10,
            limit=400,
        )
        assert delta_of(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_delta_at_the_ends() -> None:
    """Small ones keep their digits: they are differences of numbers that agree in the first."""
    assert delta_of(0, 1.0) == delta_of(1e-3, 1.0) == 0
    assert delta_of(1e3, 1.0) == pytest.approx(1)
    assert delta_of(2.0, 0.0) == pytest.approx(stats.norm.cdf(1) - stats.norm.cdf(-1))
    expected = stats.norm.sf(7.5) - math.exp(8 + stats.norm.logsf(8.5))
    assert delta_of(1.0, 8.0) == pytest.approx(expected, rel=1e-9)
    assert 0 < delta_of(1.0, 30.0) < 1e-180


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(epsilon=st.floats(1e-3, 300), exponent=st.floats(-12, -0.5))
def test_mu_and_epsilon_are_inverse(epsilon: float, exponent: float) -> None:
    delta = 10**exponent
    mu = mu_of(epsilon, delta)
    assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6, abs=1e-9)


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(mu=st.floats(1e-4, 50), epsilon=st.floats(0, 200), exponent=st.floats(-12, -0.5))
def test_more_noise_never_costs_more(mu: float, epsilon: float, exponent: float) -> None:
    delta = 10**exponent
    assert delta_of(mu, epsilon) <= delta_of(1.1 * mu, epsilon) <= 1
    assert delta_of(mu, epsilon + 0.1) <= delta_of(mu, epsilon)
    assert epsilon_of(mu, delta) <= epsilon_of(1.1 * mu, delta)
    assert epsilon_of(mu, delta) >= epsilon_of(mu, min(2 * delta, 0.99))


def test_mu_small_and_large() -> None:
    """Enough noise needs no ε; little has a finite one."""
    for mu in [0.0, 1e-12, 1e-6]:
        assert epsilon_of(mu, 1e-5) == 0.0
        assert delta_of(mu, 0.0) <= 1e-5
    for mu in [30.0, 200.0]:
        epsilon = epsilon_of(mu, 1e-5)
        assert mu**2 / 2 < epsilon < mu**2 / 2 + 6 * mu
        assert delta_of(mu, epsilon) == pytest.approx(1e-5, rel=1e-6)


def test_nonsense_is_refused() -> None:
    for delta in [0.0, 1.0, -1e-5, math.nan]:
        for find in (epsilon_of, mu_of):
            refused(delta, ConfigError, find, 1.0, delta, match="delta is")
    for value in [math.nan, math.inf, -1.0]:
        refused(value, ConfigError, epsilon_of, value, 1e-5, match="mu is")
        refused(value, ConfigError, mu_of, value, 1e-5, match="epsilon is")
        refused(value, ConfigError, noise_std_for, value, 1.0, 1e-5, 3, match="sensitivity is")
    refused(0, ConfigError, noise_std_for, 1.0, 1.0, 1e-5, 0, match="participations is")
    for value in [1e7, 1e300]:
        words = r"protects nothing; use at most 1e\+06"
        refused(value, ConfigError, mu_of, value, 1e-5, match=words)


def test_composition_adds_squares() -> None:
    assert compose([]) == 0
    assert compose([0.7]) == 0.7
    assert compose([3.0, 4.0]) == 5.0
    assert compose(x for x in [0.1] * 10_000) == pytest.approx(10.0, rel=1e-14)


def test_noise_for_a_target() -> None:
    for participations in [1, 7, 700]:
        sigma = noise_std_for(20.0, 1.0, 1e-5, participations)
        together = compose([20.0 / sigma] * participations)
        assert epsilon_of(together, 1e-5) == pytest.approx(1.0, rel=1e-9)
        assert sigma == pytest.approx(20.0 * math.sqrt(participations) / 0.268051123, rel=1e-8)


def test_what_dpzv_publishes_for_mnist() -> None:
    """``σ = 2C√T/(Dμ)`` on the mean, written out; the batch is known to the client that drew it."""
    clip, records, clients, epochs, batch, delta = 10.0, 60_000, 7, 100, 64, 1e-3
    for rounds, everyone, alone in (
        (clients * epochs * records / batch, "106.58", "23.23"),
        (clients * epochs * math.ceil(records / batch), "106.53", "23.23"),  # short last batches
    ):
        sigma = 2 * clip * math.sqrt(rounds) / (records * mu_of(1.0, delta))
        assert f"{sigma:.3f}" == "0.695"
        one = 2 * clip / (batch * sigma)
        assert f"{epsilon_of(compose([one] * clients * epochs), delta):.2f}" == everyone
        assert f"{epsilon_of(compose([one] * epochs), delta):.1f}" == alone[:4]
