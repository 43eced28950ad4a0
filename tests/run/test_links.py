"""Delays and losses of the links: their laws, and that draws depend on their number alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError
from tests.refusals import refused
from tests.rows import each

from vertizo.config.sections.links import Constant, Delay, Exponential, Links, LogNormal, Trace
from vertizo.core.randomness import Stream
from vertizo.run.loop.simulator import CHUNK, LinkDraws

STREAM = Stream.from_seed(11)
SECONDS = (0.5, 1.0, 1.0, 4.0)
DELAYS: list[tuple[Delay, float, float]] = [
    (Constant(mean=2.5), 2.5, 0.0),
    (Exponential(mean=2.5), 2.5, 2.5),
    (LogNormal(mean=2.5, sigma=0.7), 2.5, 2.5 * math.sqrt(math.expm1(0.49))),
    (LogNormal(mean=2.5, sigma=0), 2.5, 0.0),
    (Trace(seconds=SECONDS), float(np.mean(SECONDS)), float(np.std(SECONDS))),
]
COUNT = 20_000


def delays(links: Links, client: int = 0, count: int = COUNT) -> np.ndarray:
    draws = LinkDraws(links, client, STREAM)
    return np.array([draws.delay(number) for number in range(count)])


@each("delay, mean, spread", DELAYS)
def test_delays_have_their_mean_and_spread(delay: Delay, mean: float, spread: float) -> None:
    """And a straggler is slower by its factor, draw by draw."""
    drawn = delays(Links(delay=delay))
    assert drawn.min() > 0
    assert abs(drawn.mean() - mean) <= 5 * spread / math.sqrt(COUNT) + 1e-9
    assert drawn.std() == pytest.approx(spread, rel=0.1, abs=1e-9)
    plain, links = delays(Links(delay=delay), 1, 600), Links(delay=delay, stragglers={1: 3.0})
    assert delays(links, 1, 600) == pytest.approx(3 * plain)
    assert delays(links, 0, 600) == pytest.approx(drawn[:600])


@each("quantile", [0.1, 0.5, 0.9])
def test_exponential_and_log_normal_have_their_quantiles(quantile: float) -> None:
    from scipy import stats

    exponential = delays(Links(delay=Exponential(mean=2.5)))
    expected = stats.expon(scale=2.5).ppf(quantile)
    assert np.quantile(exponential, quantile) == pytest.approx(expected, rel=0.06)
    log_normal = delays(Links(delay=LogNormal(mean=2.5, sigma=0.7)))
    expected = stats.lognorm(0.7, scale=2.5 * math.exp(-0.245)).ppf(quantile)
    assert np.quantile(log_normal, quantile) == pytest.approx(expected, rel=0.06)


def test_a_trace_draws_its_values_as_often_as_they_were_measured() -> None:
    values, counts = np.unique(delays(Links(delay=Trace(seconds=SECONDS))), return_counts=True)
    assert values.tolist() == [0.5, 1.0, 4.0]
    assert counts / COUNT == pytest.approx([0.25, 0.5, 0.25], abs=0.02)


def test_clients_draw_on_their_own() -> None:
    links = Links()
    first, second = delays(links, 0), delays(links, 1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(COUNT)
    assert not np.isin(first[:50], second[:50]).any()


@each("drop", [0.1, 0.6])
def test_losses_have_their_share_and_follow_no_pattern(drop: float) -> None:
    draws = LinkDraws(Links(drop=drop), 0, STREAM)
    lost = np.array([draws.lost(number) for number in range(COUNT)], float)
    assert abs(lost.mean() - drop) < 5 * math.sqrt(drop * (1 - drop) / COUNT)
    assert abs(np.corrcoef(lost[1:], lost[:-1])[0, 1]) < 5 / math.sqrt(COUNT)


def test_losses_and_delays_do_not_disturb_each_other() -> None:
    assert not any(LinkDraws(Links(), 0, STREAM).lost(number) for number in range(1000))
    draws = LinkDraws(Links(drop=0.5), 0, STREAM)
    mixed = []
    for number in range(600):
        draws.lost(3 * number)
        mixed.append(draws.delay(number))
    assert mixed == delays(Links(), 0, 600).tolist()


def test_draws_depend_on_their_number_alone() -> None:
    """A run that resumes asks for draws out of order, and from another object."""
    links = Links(drop=0.3)
    draws = LinkDraws(links, 2, STREAM)
    numbers = range(3 * CHUNK)
    forward = [(draws.delay(number), draws.lost(number)) for number in numbers]
    again = LinkDraws(links, 2, STREAM)
    backward = [(again.delay(number), again.lost(number)) for number in reversed(numbers)]
    assert forward == backward[::-1]
    assert len({delay for delay, _ in forward}) == len(forward)
    assert LinkDraws(links, 2, Stream.from_seed(12)).delay(0) != forward[0][0]


def test_links_that_make_no_sense_are_refused() -> None:
    for wrong in (
        *({"drop": 1.0}, {"drop": -0.1}, {"timeout": 0.0}, {"bandwidth": 0.0}, {"delays": {}}),
        {"stragglers": {0: 0.0}},
        {"delay": {"distribution": "constant", "mean": 0.0}},
        {"delay": {"distribution": "exponential", "mean": -1.0}},
        {"delay": {"distribution": "log-normal", "sigma": -1.0}},
        *({"delay": {"distribution": "trace", "seconds": s}} for s in ([], [1, 0], [math.inf])),
        {"delay": {"distribution": "gamma"}},
    ):
        refused(wrong, ValidationError, Links.model_validate, wrong)
