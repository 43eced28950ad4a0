from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from vertizo.config.links import (
    Constant,
    Delay,
    Exponential,
    Links,
    LogNormal,
    Trace,
)
from vertizo.core.randomness import Stream
from vertizo.run.simulator import CHUNK, LinkDraws

STREAM = Stream.from_seed(11)
SECONDS = (0.5, 1.0, 1.0, 4.0)
DELAYS: dict[str, tuple[Delay, float, float]] = {
    "constant": (Constant(mean=2.5), 2.5, 0.0),
    "exponential": (Exponential(mean=2.5), 2.5, 2.5),
    "log-normal": (LogNormal(mean=2.5, sigma=0.7), 2.5, 2.5 * math.sqrt(math.expm1(0.49))),
    "log-normal without spread": (LogNormal(mean=2.5, sigma=0), 2.5, 0.0),
    "trace": (Trace(seconds=SECONDS), float(np.mean(SECONDS)), float(np.std(SECONDS))),
}
every_delay = pytest.mark.parametrize(("delay", "mean", "spread"), DELAYS.values(), ids=DELAYS)
COUNT = 20_000


def delays(links: Links, client: int = 0, count: int = COUNT) -> np.ndarray:
    draws = LinkDraws(links, client, STREAM)
    return np.array([draws.delay(number) for number in range(count)])


@every_delay
def test_delays_have_their_mean_and_spread(delay: Delay, mean: float, spread: float) -> None:
    drawn = delays(Links(delay=delay))
    assert drawn.min() > 0
    assert abs(drawn.mean() - mean) <= 5 * spread / math.sqrt(COUNT) + 1e-9
    assert drawn.std() == pytest.approx(spread, rel=0.1, abs=1e-9)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
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


@every_delay
def test_a_straggler_is_slower_by_its_factor_draw_by_draw(
    delay: Delay, mean: float, spread: float
) -> None:
    plain = delays(Links(delay=delay), 1, 600)
    links = Links(delay=delay, stragglers={1: 3.0})
    assert delays(links, 1, 600) == pytest.approx(3 * plain)
    assert delays(links, 0, 600) == pytest.approx(delays(Links(delay=delay), 0, 600))


def test_clients_draw_on_their_own() -> None:
    links = Links()
    first, second = delays(links, 0), delays(links, 1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(COUNT)
    assert not np.isin(first[:50], second[:50]).any()


@pytest.mark.parametrize("drop", [0.1, 0.6])
def test_losses_have_their_share_and_follow_no_pattern(drop: float) -> None:
    draws = LinkDraws(Links(drop=drop), 0, STREAM)
    lost = np.array([draws.lost(number) for number in range(COUNT)], float)
    assert abs(lost.mean() - drop) < 5 * math.sqrt(drop * (1 - drop) / COUNT)
    assert abs(np.corrcoef(lost[1:], lost[:-1])[0, 1]) < 5 / math.sqrt(COUNT)


def test_nothing_is_lost_unless_asked_for() -> None:
    draws = LinkDraws(Links(), 0, STREAM)
    assert not any(draws.lost(number) for number in range(1000))


def test_losses_and_delays_do_not_disturb_each_other() -> None:
    lossy = Links(drop=0.5)
    draws = LinkDraws(lossy, 0, STREAM)
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


def test_another_stream_draws_otherwise() -> None:
    other = LinkDraws(Links(), 0, Stream.from_seed(12))
    assert other.delay(0) != LinkDraws(Links(), 0, STREAM).delay(0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"drop": 1.0},
        {"drop": -0.1},
        {"timeout": 0.0},
        {"bandwidth": 0.0},
        {"stragglers": {0: 0.0}},
        {"delay": {"distribution": "constant", "mean": 0.0}},
        {"delay": {"distribution": "exponential", "mean": -1.0}},
        {"delay": {"distribution": "log-normal", "sigma": -1.0}},
        {"delay": {"distribution": "trace", "seconds": []}},
        {"delay": {"distribution": "trace", "seconds": [1.0, 0.0]}},
        {"delay": {"distribution": "trace", "seconds": [float("inf")]}},
        {"delay": {"distribution": "gamma"}},
        {"delays": {}},
    ],
    ids=str,
)
def test_links_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Links.model_validate(wrong)
