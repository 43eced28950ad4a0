"""Names that may have been meant, in any script."""

from __future__ import annotations

from tests.rows import each

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
