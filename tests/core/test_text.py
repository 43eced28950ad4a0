"""Names that may have been meant, JSON that every reader takes, lines that cannot fill a disk."""

from __future__ import annotations

import json
import math

import pytest
from tests.rows import each

from vertizo.core.text import strict_json
from vertizo.core.text.messages import Throttle
from vertizo.core.text.suggestions import nearest, similar

KNOWN = ("违约", "年龄", "月收入", "доход", "возраст", "Income", "金额(元)", "café", "是否逾期")


@each(
    "given, meant",
    [
        ("违约 ", "违约"),
        ("违\u200b约", "违约"),
        ("年领", "年龄"),
        ("收入", "月收入"),
        ("逾期", "是否逾期"),
        ("金额（元）", "金额(元)"),
        ("ДОХОД", "доход"),
        ("возрост", "возраст"),
        ("ｉｎｃｏｍｅ", "Income"),
        ("INCOME\u3000", "Income"),
        ("cafe\u0301", "café"),
    ],
)
def test_a_near_name_is_offered_in_any_script(given: str, meant: str) -> None:
    assert similar(given, KNOWN) == [meant]
    assert nearest(given, KNOWN).startswith(f"; did you mean {meant!r}?")


def test_what_is_like_no_name_gets_no_hint() -> None:
    assert [similar(name, KNOWN) for name in ("城市", "город", "zzz", "")] == [[]] * 4


def test_a_name_that_only_looks_the_same_is_said_to_be_another() -> None:
    assert nearest("cafe\u0301", KNOWN).endswith("coded otherwise.")
    assert not nearest("cafés", KNOWN).endswith("coded otherwise.")


def test_what_is_not_finite_is_null_however_deep() -> None:
    value = {"a": [math.nan, (math.inf, 1.5)], "b": {"c": -math.inf}, "ε": "ε", "n": 3}
    text = strict_json.text(value)
    read = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert read == {"a": [None, [None, 1.5]], "b": {"c": None}, "ε": "ε", "n": 3}
    assert '"ε"' in text
    assert json.loads(strict_json.text(value, indent=2)) == read


def test_lines_of_a_kind_are_left_out_and_counted() -> None:
    now = [0.0]
    throttle = Throttle(3, lambda: now[0])
    shown = [throttle("lab", f"lab {n}") for n in range(1000)]
    assert shown[:4] == ["lab 0", "lab 1", "lab 2 (more like it are left out for a minute)", None]
    assert set(shown[3:]) == {None}
    assert throttle("clinic", "clinic 0") == "clinic 0"
    now[0] = 60.0
    assert throttle("lab", "again") == "again (997 lines like it were left out before)"
    assert throttle("lab", "and again") == "and again"


def test_kinds_without_end_take_no_memory_and_no_lines() -> None:
    now = [0.0]
    throttle = Throttle(3, lambda: now[0])
    for minute in range(3):
        now[0] = 60.0 * minute
        shown = [one for n in range(5000) if (one := throttle(f"{n}", "line")) is not None]
        assert len(shown) <= 1003
    assert len(throttle._shown) <= 1001
    assert len(throttle._left_out) <= 1001
