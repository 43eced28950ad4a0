"""Numbers as people and programs write them are numbers."""

from __future__ import annotations

from pathlib import Path

from tests.rows import each

from vertizo.data.tabular.column_checks import check_text
from vertizo.data.tabular.columns import numbers
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.data.tabular.tables import source_of

WIDE_SEVEN = "\uff17"


@each("minus", ["-", *"\u2212\u2010\u2011\u2013\u2014\uff0d\ufe63"])
def test_a_minus_of_any_kind_makes_a_number(minus: str, tmp_path: Path) -> None:
    """Half of a column of temperatures, in full width as well; a code with a dash is none."""
    signs = ["", minus] * 20
    rows = [f"{sign}{place}.5,{place}{minus}a,{place % 2}" for place, sign in enumerate(signs)]
    rows[7] = f"{minus}{WIDE_SEVEN}.5,7{minus}a,1"
    (tmp_path / "t.csv").write_text("\n".join(["warm,code,y", *rows, ""]), "utf-8")
    source = source_of(tmp_path / "t.csv", CsvFormat())
    found, text = numbers(source, "warm")
    assert text is None
    assert found.tolist() == [(-1) ** place * (place + 0.5) for place in range(40)]
    check_text(source, "warm", False)
    assert numbers(source, "code")[1] == 0
