"""Signal to noise before there is data, beside what runs on real tables came to."""

from __future__ import annotations

import math

import pytest
from tests.rows import each

from vertizo.core.errors import ConfigError
from vertizo.privacy.accounting import forecast
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps


@each(
    "records, positives, learns",
    [
        (29_305, None, True),  # Adult: AUC 0.906
        (3600, None, True),  # of it 3,600 records: 0.869
        (1000, None, False),  # 0.814, hardly above clients that never learn
        (3600, 0.03, False),  # a table with 3 % positives: 0.545
    ],
)
def test_a_server_of_386_parameters(records: int, positives: float | None, learns: bool) -> None:
    """As tables were trained: DPZV at ε = 1, 64 numbers of each of three clients."""
    releases = Releases(3, 5, GaussianRelease(1.0, 40.0), secret=SecretSteps(220, 0.05, 5.833))
    found = forecast.of_server(releases, records, 180, 386, positives)
    assert (found >= forecast.LITTLE) == learns


def test_it_grows_as_noise_averages_out() -> None:
    once = forecast.of_queries(0.04, 0.5, 1)
    assert once == pytest.approx(0.08)
    assert forecast.of_queries(0.04, 0.5, 100) == pytest.approx(10 * once)
    assert forecast.of_queries(0.04, 0.5, 1, numbers=16) == pytest.approx(once / 4)
    step = Releases(3, 5, GaussianRelease(1.0, 40.0), step=GaussianRelease(2.0, 80.0))
    found = forecast.of_server(step, 3600, 180, 100)
    assert found == pytest.approx(0.1 * math.sqrt(3 * 5 * 20) / (80 / 2 / 180 * 10))
    assert forecast.of_server(Releases(3, 5, GaussianRelease(1.0, 40.0)), 3600, 180, 9) is None


def test_what_is_no_share_is_refused() -> None:
    for wrong in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="positives"):
            forecast.rarity(wrong)
