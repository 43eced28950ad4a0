"""The lower bound: right as often as it says, and not for want of trying."""

import math

import numpy as np
import pytest
from tests.lazy import Lazy

from vertizo.core.errors import ConfigError
from vertizo.lab.audit.bounds import (
    FEWEST,
    discriminant,
    epsilon_at_least,
    lower_bound,
    rate_at_least,
    rate_at_most,
)
from vertizo.privacy.accounting.gaussian import epsilon_of

stats = Lazy("scipy.stats")


@pytest.mark.full
def test_rates_are_those_of_clopper_and_pearson():
    for hits, trials in ((0, 20), (3, 20), (20, 20), (1, 500), (499, 500)):
        for error in (0.025, 0.005):
            low, high = stats.binomtest(hits, trials).proportion_ci(1 - 2 * error, method="exact")
            assert float(rate_at_least(hits, trials, error)) == pytest.approx(low, abs=1e-9)
            assert float(rate_at_most(hits, trials, error)) == pytest.approx(high, abs=1e-9)


def _most(repetitions, rate):
    """Violations that a rate that is kept exceeds once in 30,000 times (four deviations)."""
    return repetitions * rate + 4 * math.sqrt(repetitions * rate * (1 - rate))


@pytest.mark.full
def test_the_bound_exceeds_the_truth_no_more_often_than_stated():
    def gaussian(generator):
        return generator.standard_normal(1000), 1 + generator.standard_normal(1000)

    def randomised_response(generator):
        # One event attains ε, so that the confidence is really used up: ln(0.75/0.25) = 1.0986.
        flips = generator.random(1000) < 0.25, generator.random(1000) < 0.75
        return [flip.astype(float) for flip in flips]

    for repetitions, draw, delta, truth, least in (
        (200, gaussian, 1e-3, epsilon_of(1.0, 1e-3), 0.25),
        (400, randomised_response, 0.0, math.log(3), 0.8),
    ):
        generator = np.random.default_rng(7)
        seen = [draw(generator) for _ in range(repetitions)]
        found = [lower_bound(*pair, delta=delta, confidence=0.9).epsilon for pair in seen]
        wrong = sum(bound > truth for bound in found)
        assert wrong <= _most(repetitions, 0.1), draw.__name__
        assert least * truth < float(np.median(found)) < truth, draw.__name__


def test_without_the_other_half_the_bound_would_be_wrong_too_often():
    """What splitting is for: the best of all thresholds, on the trials that it was chosen on."""
    generator = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        world0, world1 = generator.standard_normal((2, 100))  # nothing to be told apart: ε = 0
        thresholds = np.concatenate([world0, world1])
        hits = (world1[:, None] >= thresholds).sum(0)
        false_hits = (world0[:, None] >= thresholds).sum(0)
        wrong += float(epsilon_at_least(hits, false_hits, 100, 0.0, 0.6).max()) > 0
    assert wrong > _most(200, 0.4)


def test_either_world_may_be_the_one_that_stands_out():
    generator = np.random.default_rng(0)
    spread, narrow = 10 * generator.standard_normal(1000), generator.standard_normal(1000)
    for world0, world1 in ((spread, narrow), (narrow, spread)):
        assert lower_bound(world0, world1, delta=0.0).epsilon > 0.5
    low, high = generator.standard_normal(1000), 3 + generator.standard_normal(1000)
    ways = [lower_bound(low, high, delta=0.0), lower_bound(high, low, delta=0.0)]
    assert all(bound.epsilon > 2 for bound in ways)


def test_delta_is_subtracted_and_equal_worlds_show_nothing():
    same = np.arange(100.0)
    assert lower_bound(same, same, delta=1e-5).epsilon == 0.0
    world0, world1 = np.zeros(1000), np.ones(1000)
    bounds = [lower_bound(world0, world1, delta=delta) for delta in (0.0, 0.5)]
    assert bounds[0].hits == 500
    assert bounds[0].false_hits == 0
    ratio = math.exp(bounds[1].epsilon - bounds[0].epsilon)
    low = float(rate_at_least(500, 500, 0.025))
    assert ratio == pytest.approx((low - 0.5) / low)


def test_several_numbers_are_weighed_by_what_they_tell():
    generator = np.random.default_rng(3)
    scale = np.array([1.0, 100.0, 1.0])
    seen0 = generator.standard_normal((2000, 3)) * scale
    seen1 = generator.standard_normal((2000, 3)) * scale + np.array([1.0, 100.0, 0.0])
    seen0[:, 2] = seen1[:, 2] = 4.0  # a number that never varies
    weights = discriminant(seen0, seen1)
    # The best weights are as shift over variance, 1 to 1/100; the ratio's own error is about 5 %.
    assert weights[1] / weights[0] == pytest.approx(0.01, rel=0.25)
    assert np.isfinite(weights).all()
    assert lower_bound(seen0, seen1, delta=0.0).epsilon > 1.5


def test_too_few_trials_and_impossible_confidences_are_refused():
    few, enough = np.zeros(FEWEST - 1), np.zeros(20)
    with pytest.raises(ConfigError, match=f"trials is {FEWEST - 1}; use at least {FEWEST}"):
        lower_bound(few, few, delta=0.0)
    for confidence in (0.0, 1.0, 95.0):
        with pytest.raises(ConfigError, match="confidence"):
            lower_bound(enough, enough, delta=0.0, confidence=confidence)
