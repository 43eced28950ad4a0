"""Named checks: what they let through, and what they say about the rest."""

from __future__ import annotations

import math

import pytest

from vertizo.core import validate
from vertizo.core.errors import ConfigError


def test_numbers() -> None:
    for check, good, bad in (
        (validate.positive, [1e-300, 7], [0, -1, -1e-300]),
        (validate.non_negative, [0, 2.5], [-1e-300, -4]),
        (validate.fraction, [1e-9, 1 - 1e-9], [0, 1, -0.5, 2]),
    ):
        for value in good:
            assert check("rate", value) == value
        for value in (*bad, math.nan, math.inf, -math.inf):
            with pytest.raises(ConfigError, match=f"^rate is {value}; it must"):
                check("rate", value)
