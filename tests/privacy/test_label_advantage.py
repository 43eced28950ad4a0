"""The gain over guessing a label: against quadrature, brute force, attackers and other bounds."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from tests.lazy import Lazy

from vertizo.privacy.accounting import label_advantage
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import epsilon_of, mu_of
from vertizo.privacy.accounting.grid import GridCorrection
from vertizo.privacy.accounting.label_advantage import approximate, joined, of_releases, pure

integrate = Lazy("scipy.integrate")

X = np.linspace(-20, 20, 20_001)


def density(mean: float, deviation: float = 1.0, at: np.ndarray = X) -> np.ndarray:
    return np.exp(-(((at - mean) / deviation) ** 2) / 2) / math.sqrt(2 * math.pi) / deviation


def distance(one: np.ndarray, two: np.ndarray) -> float:
    """Half of the integral of the difference."""
    return float(integrate.trapezoid(np.abs(one - two), X)) / 2


def sampled(sign: int, steps: SecretSteps, at: np.ndarray = X) -> np.ndarray:
    """One step of a clip of 1, for a record at +1 or −1."""
    q, z = steps.sampling, steps.noise_multiplier
    return (1 - q) * density(0, z, at) + q * density(sign, z, at)


def test_the_figures_of_equal_epsilons() -> None:
    """ε = 1: what a Gaussian release allows at δ = 1e-5, and what randomised response does."""
    mu = mu_of(1.0, 1e-5)
    assert label_advantage.text(joined(mu, None)) == "0.107"
    assert label_advantage.success_text(joined(mu, None)) == "55.4 %"
    assert f"{pure(1.0):.2f}" == "0.46"
    for epsilon in (0.1, 1.0, 5.0):
        keep = math.exp(epsilon) / (1 + math.exp(epsilon))
        assert pure(epsilon) == pytest.approx(keep - (1 - keep))
        assert joined(mu_of(epsilon, 1e-5), None) < pure(epsilon) <= approximate(epsilon, 1e-5)


def test_gaussian_releases_by_quadrature() -> None:
    for clients, queries, deviation in product([1, 3], [1, 8], [2.0, 20.0]):
        releases = Releases(clients, queries, GaussianRelease(1.0, deviation))
        truth = distance(density(0), density(2 * math.sqrt(clients * queries) / deviation))
        assert truth <= of_releases(releases) + 1e-6
        assert of_releases(releases) == pytest.approx(truth, rel=1e-6)


@pytest.mark.full
def test_secret_steps_by_quadrature() -> None:
    """One step, alone and beside a release; the grid of losses rounds up, and hardly."""
    for q, z, mu in ((0.1, 0.7, 0.0), (0.5, 2.0, 0.0), (0.2, 1.0, 0.6)):
        steps = SecretSteps(1, q, z)
        one, two = sampled(1, steps), sampled(-1, steps)
        rest = np.linspace(-8, 8, 201) if mu else np.zeros(1)
        weights = density(0, 1, rest) * (rest[1] - rest[0]) if mu else np.ones(1)
        ratios = np.exp(mu * rest - mu * mu / 2)  # of the release, shifted by μ and not
        truth = sum(w * distance(one, r * two) for w, r in zip(weights, ratios, strict=True))
        assert truth - 1e-6 <= joined(mu, steps) <= truth + 1e-3 * truth


def test_an_attacker_who_knows_everything_is_as_good_and_no_better() -> None:
    """He adds up the logarithms of what is likelier, of 60 secret steps and four replies."""
    steps, mu, games = SecretSteps(60, 0.2, 1.5), 0.4, 40_000
    generator = np.random.default_rng(1)
    sign = generator.choice([-1, 1], games)
    evidence = mu * (generator.normal(size=games) + sign * mu / 2)
    for _ in range(steps.count):
        there = generator.random(games) < steps.sampling
        seen = there * sign + steps.noise_multiplier * generator.normal(size=games)
        evidence += np.log(sampled(1, steps, seen) / sampled(-1, steps, seen))
    gain = 2 * np.mean((evidence > 0) == (sign > 0)) - 1
    assert gain == pytest.approx(joined(mu, steps), abs=4 / math.sqrt(games))


def test_noise_on_a_grid_by_brute_force() -> None:
    """Integers, whose noise is a few steps wide: the Gaussian figure itself would be too small."""
    exceeded = 0
    for scale, shift in product([2, 3, 8], [1, 2, 5]):
        n = np.arange(-14 * scale, 14 * scale + 1)
        weights = np.exp(-(n**2) / (2 * scale**2))
        padded = np.pad(weights / weights.sum(), shift)
        truth = np.abs(padded - np.roll(padded, shift)).sum() / 2
        reply = GaussianRelease(shift / 2, float(scale))
        alone = of_releases(Releases(1, 1, reply))
        releases = Releases(1, 1, reply, grid=GridCorrection(((1, scale),)))
        assert truth <= of_releases(releases) <= 1
        if scale == 8:
            assert of_releases(releases) <= alone + 0.05
        exceeded += truth > alone * (1 + 1e-6)
    assert exceeded
    wide = Releases(1, 1, GaussianRelease(1.0, 10.0), grid=GridCorrection(((700, 2**27),)))
    assert of_releases(wide) == pytest.approx(joined(0.2, None), rel=1e-9)


def test_more_is_never_less() -> None:
    base = joined(0.3, SecretSteps(40, 0.05, 1.0))
    assert joined(0.3, None) < base < joined(0.4, SecretSteps(40, 0.05, 1.0))
    for worse in ((50, 0.05, 1.0), (40, 0.06, 1.0), (40, 0.05, 0.9)):
        assert base < joined(0.3, SecretSteps(*worse)) < 1
    assert joined(1e9, None) == 1


def test_no_two_laws_differ_by_more_than_epsilon_and_delta_allow() -> None:
    """Searched among pairs of laws on four outcomes, each with the δ that it has at ε."""
    generator = np.random.default_rng(0)
    reached = 0.0
    for epsilon in (0.2, 1.0, 3.0):
        for _ in range(4000):
            one, two = generator.dirichlet([0.3] * 4, 2)
            over = (np.maximum(a - math.exp(epsilon) * b, 0) for a, b in ((one, two), (two, one)))
            delta = max(float(each.sum()) for each in over)
            apart, most = np.abs(one - two).sum() / 2, approximate(epsilon, delta)
            assert apart <= most + 1e-12
            reached = max(reached, apart / most if most < 0.9 else 0.0)
        mu = mu_of(epsilon, 1e-5)
        assert joined(mu, None) <= approximate(epsilon_of(mu, 1e-5), 1e-5)
    assert reached > 0.9


def test_older_statements_have_what_their_epsilon_allows() -> None:
    older = {"guarantee": "exact", "epsilon": 1.0, "delta": 1e-5}
    assert label_advantage.of(older) == approximate(1.0, 1e-5)
    assert label_advantage.of({**older, "label_advantage": 0.1}) == 0.1
    assert label_advantage.of({"guarantee": "none", "epsilon": None}) is None
