"""JSON that every reader takes."""

from __future__ import annotations

import json
import math

import pytest

from vertizo.core.text import strict_json


def test_what_is_not_finite_is_null_however_deep() -> None:
    value = {"a": [math.nan, (math.inf, 1.5)], "b": {"c": -math.inf}, "ε": "ε", "n": 3}

    def none(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    text = strict_json.text(value)
    read = json.loads(text, parse_constant=none)
    assert read == {"a": [None, [None, 1.5]], "b": {"c": None}, "ε": "ε", "n": 3}
    assert '"ε"' in text
    assert json.loads(strict_json.text(value, indent=2)) == read
