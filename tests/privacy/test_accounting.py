"""Gaussian differential privacy against published figures and against its definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from vertizo.core.errors import ConfigError
from vertizo.privacy.accounting import compose, delta_of, epsilon_of, mu_of, noise_std_for

MU = [
    (0.1, 1e-3, "0.057456748"),
    (0.5, 1e-3, "0.216913719"),
    (1, 1e-3, "0.388401248"),
    (5, 1e-3, "1.449606614"),
    (10, 1e-3, "2.462692923"),
    (0.1, 1e-5, "0.032520784"),
    (1, 1e-5, "0.268051123"),
    (3, 1e-5, "0.719117435"),
    (10, 1e-5, "2.00044562"),
]
EPSILON = [(0.5, "1.9930914"), (1, "4.3771781"), (2, "9.9972561"), (5, "33.1037323")]


MU_DIGITS = [
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
EPSILON_DIGITS = [
    (0.5, 1.99309140441512),
    (1, 4.37717809568122),
    (2, 9.9972561464343),
    (5, 33.1037323359225),
]
"""The same from 40-digit arithmetic."""


def decimals(printed: str) -> int:
    return len(printed.split(".")[1])


@pytest.mark.parametrize(("epsilon", "delta", "printed"), MU)
def test_mu_table(epsilon: float, delta: float, printed: str) -> None:
    assert f"{mu_of(epsilon, delta):.{decimals(printed)}f}" == printed


@pytest.mark.parametrize(("mu", "printed"), EPSILON)
def test_epsilon_table(mu: float, printed: str) -> None:
    assert f"{epsilon_of(mu, 1e-5):.{decimals(printed)}f}" == printed


@pytest.mark.parametrize(("epsilon", "delta", "mu"), MU_DIGITS)
def test_mu_to_eleven_digits(epsilon: float, delta: float, mu: float) -> None:
    assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-11)


@pytest.mark.parametrize(("mu", "epsilon"), EPSILON_DIGITS)
def test_epsilon_to_eleven_digits(mu: float, epsilon: float) -> None:
    assert epsilon_of(mu, 1e-5) == pytest.approx(epsilon, rel=1e-11)


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
def test_delta_is_the_hockey_stick_divergence(mu: float, epsilon: float) -> None:
    """``δ(ε) = ∫ max(0, p − e^ε q)`` of N(μ, 1) and N(0, 1), by quadrature."""
    crossing = epsilon / mu + mu / 2
    expected, _ = quad(
        lambda x: norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x),
        crossing,
        crossing + 40,
        epsabs=1e-15,
        epsrel=1e-10,
        limit=400,
    )
    assert delta_of(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_delta_at_the_ends() -> None:
    assert delta_of(0, 1.0) == 0
    assert delta_of(1e-3, 1.0) == 0
    assert delta_of(1e3, 1.0) == pytest.approx(1)
    assert delta_of(2.0, 0.0) == pytest.approx(norm.cdf(1) - norm.cdf(-1))


def test_small_deltas_keep_their_digits() -> None:
    """The difference of two numbers that agree in their first digits."""
    assert delta_of(1.0, 8.0) == pytest.approx(
        norm.sf(7.5) - math.exp(8 + norm.logsf(8.5)), rel=1e-9
    )
    assert 0 < delta_of(1.0, 30.0) < 1e-180


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(epsilon=st.floats(1e-3, 300), exponent=st.floats(-12, -0.5))
def test_mu_and_epsilon_are_inverse(epsilon: float, exponent: float) -> None:
    delta = 10**exponent
    mu = mu_of(epsilon, delta)
    assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6, abs=1e-9)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(mu=st.floats(1e-4, 50), epsilon=st.floats(0, 200), exponent=st.floats(-12, -0.5))
def test_more_noise_never_costs_more(mu: float, epsilon: float, exponent: float) -> None:
    delta = 10**exponent
    assert delta_of(mu, epsilon) <= delta_of(1.1 * mu, epsilon) <= 1
    assert delta_of(mu, epsilon + 0.1) <= delta_of(mu, epsilon)
    assert epsilon_of(mu, delta) <= epsilon_of(1.1 * mu, delta)
    assert epsilon_of(mu, delta) >= epsilon_of(mu, min(2 * delta, 0.99))


@pytest.mark.parametrize("mu", [0.0, 1e-12, 1e-6])
def test_enough_noise_needs_no_epsilon(mu: float) -> None:
    assert epsilon_of(mu, 1e-5) == 0.0
    assert delta_of(mu, 0.0) <= 1e-5


@pytest.mark.parametrize("mu", [30.0, 200.0])
def test_large_mu_have_finite_epsilons(mu: float) -> None:
    epsilon = epsilon_of(mu, 1e-5)
    assert mu**2 / 2 < epsilon < mu**2 / 2 + 6 * mu
    assert delta_of(mu, epsilon) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_must_be_a_fraction(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta is"):
        epsilon_of(1.0, delta)
    with pytest.raises(ConfigError, match="delta is"):
        mu_of(1.0, delta)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_nonsense_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="mu is"):
        epsilon_of(value, 1e-5)
    with pytest.raises(ConfigError, match="epsilon is"):
        mu_of(value, 1e-5)
    with pytest.raises(ConfigError, match="sensitivity is"):
        noise_std_for(value, 1.0, 1e-5, 3)
    with pytest.raises(ConfigError, match="participations is"):
        noise_std_for(1.0, 1.0, 1e-5, 0)


def test_composition_adds_squares() -> None:
    assert compose([]) == 0
    assert compose([0.7]) == 0.7
    assert compose([3.0, 4.0]) == 5.0
    assert compose(x for x in [0.1] * 10_000) == pytest.approx(10.0, rel=1e-14)


@pytest.mark.parametrize("participations", [1, 7, 700])
def test_noise_for_a_target(participations: int) -> None:
    sigma = noise_std_for(20.0, 1.0, 1e-5, participations)
    together = compose([20.0 / sigma] * participations)
    assert epsilon_of(together, 1e-5) == pytest.approx(1.0, rel=1e-9)
    assert sigma == pytest.approx(20.0 * math.sqrt(participations) / 0.268051123, rel=1e-8)


CLIP, RECORDS, CLIENTS, EPOCHS, BATCH, DELTA = 10.0, 60_000, 7, 100, 64, 1e-3
PARTICIPATIONS = CLIENTS * EPOCHS


def published_noise(epsilon: float, rounds: float, records: int = RECORDS) -> float:
    """σ of DPZV's theorem, on the mean: ``2C√T / (Dμ)``."""
    return 2 * CLIP * math.sqrt(rounds) / (records * mu_of(epsilon, DELTA))


def true_mu(noise_on_mean: float, participations: int, batch: int = BATCH) -> float:
    """Of that many releases of one record's clipped value in a noised sum."""
    return compose([2 * CLIP / (batch * noise_on_mean)] * participations)


def test_what_dpzv_publishes_for_mnist() -> None:
    """The batch is known to the client that drew it, so that sampling hides nothing."""
    rounds = PARTICIPATIONS * RECORDS / BATCH
    assert rounds == 656_250
    sigma = published_noise(1.0, rounds)
    assert f"{sigma:.5f}" == "0.69524"
    everyone = true_mu(sigma, PARTICIPATIONS)
    assert f"{everyone:.3f}" == "11.892"
    assert f"{epsilon_of(everyone, DELTA):.2f}" == "106.58"
    alone = true_mu(sigma, EPOCHS)
    assert f"{alone:.3f}" == "4.495"
    assert f"{epsilon_of(alone, DELTA):.2f}" == "23.23"
    ten = epsilon_of(true_mu(published_noise(10.0, rounds), PARTICIPATIONS), DELTA)
    assert f"{ten:.0f}" == "3075"


def test_short_last_batches_change_little() -> None:
    rounds = PARTICIPATIONS * math.ceil(RECORDS / BATCH)
    assert rounds == 656_600
    everyone = true_mu(published_noise(1.0, rounds), PARTICIPATIONS)
    assert f"{epsilon_of(everyone, DELTA):.2f}" == "106.53"


@pytest.mark.parametrize("clients", [1, 7])
@pytest.mark.parametrize("epochs", [1, 100])
@pytest.mark.parametrize(("records", "batch"), [(60_000, 64), (1000, 10), (50, 50)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_gap_is_the_root_of_batches_in_an_epoch(
    clients: int, epochs: int, records: int, batch: int, epsilon: float
) -> None:
    """``μ_true / μ_published = √(D/B)``, whatever M, E, C and ε; 30.62 for MNIST."""
    sigma = published_noise(epsilon, clients * epochs * records / batch, records)
    ratio = true_mu(sigma, clients * epochs, batch) / mu_of(epsilon, DELTA)
    assert ratio == pytest.approx(math.sqrt(records / batch), rel=1e-9)
    if records == RECORDS:
        assert f"{ratio:.2f}" == "30.62"
