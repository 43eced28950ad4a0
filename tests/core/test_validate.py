"""Named checks: what they let through, and what they say about the rest."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from vertizo.core import validate
from vertizo.core.errors import ConfigError

Check = Callable[[str, float], float]
NOT_NUMBERS = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (validate.positive, 1e-300),
        (validate.positive, 7),
        (validate.non_negative, 0),
        (validate.non_negative, 2.5),
        (validate.fraction, 1e-9),
        (validate.fraction, 1 - 1e-9),
    ],
)
def test_good_values_come_back(check: Check, value: float) -> None:
    assert check("rate", value) == value


@pytest.mark.parametrize(
    ("check", "value"),
    [(validate.positive, value) for value in [0, -1, -1e-300, *NOT_NUMBERS]]
    + [(validate.non_negative, value) for value in [-1e-300, -4, *NOT_NUMBERS]]
    + [(validate.fraction, value) for value in [0, 1, -0.5, 2, *NOT_NUMBERS]],
)
def test_bad_values_are_named(check: Check, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^rate is {value}; it must"):
        check("rate", value)
