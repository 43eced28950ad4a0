"""Numbers as people and programs write them are numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.rows import each

from vertizo.core.errors import DataError
from vertizo.core.randomness import Stream
from vertizo.data.own_tables import party_table
from vertizo.data.own_tables.party_table import Choice, OwnTable
from vertizo.data.tables import source_of
from vertizo.data.tabular.columns import Source, check_text, matrices, notes, numbers
from vertizo.data.tabular.csv_lines import CsvFormat

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


def column(*values: str) -> Source:
    return Source("t", pl.DataFrame({"c": [each for each in values for _ in range(5)]}))


@each("between", [*" '\u00a0\u2009\u202f\u2019"])
def test_thousands_may_stand_apart(between: str) -> None:
    spelt = (f"12{between}345.5", f"-1{between}234{between}567", f"+1{between}000", "7")
    matrix, levels = matrices([column(*spelt)], ["c"], [])
    assert not levels
    assert matrix[0][::5, 0].tolist() == [12345.5, -1234567.0, 1000.0, 7.0]
    codes = column(f"030{between}123", f"1{between}23", f"12{between}3456")
    assert numbers(codes, "c")[1] == 0


@each(
    "spelt",
    [
        *("{}%", "{} %", "{} ‰", "${}", "-${}", "$ -{}", "€{}", "{} €", "₹{}", "({})", "({}%)"),
        *("{}-", "1_{}", "'{}", "1,20,{}", "1.{},5", "{},5", "$1,{}.50", "\uff08{})", "{}\uff05"),
    ],
)
def test_what_only_people_read_as_a_number_is_refused(spelt: str) -> None:
    """By its first value, in a column of nothing else as well as beside numbers."""
    values = [spelt.format(number) for number in range(100, 110)]
    for beside in ([], ["3"] * 2):
        with pytest.raises(DataError, match="in row 1; write numbers with a decimal") as caught:
            matrices([column(*values, *beside)], ["c"], [])
        assert repr(values[0]) in str(caught.value)


@each("spelt", ["{} EUR", "CHF {}.50", "R$ {}", "Rs. {}", "{}kg", "{} m²", "{} kr", "{} days"])
def test_numbers_with_a_unit_are_noted_and_called_no_identifiers(spelt: str) -> None:
    source = column(*(spelt.format(number) for number in range(200, 210)))
    _, levels = matrices([source], ["c"], [])
    line = f"t: column 'c' holds {source.frame['c'][0]!r} in row 1, and is taken for categories"
    assert [note[: len(line)] for note in notes(source, ["c"], levels)] == [line]
    assert not notes(source, ["c"], levels, named=["c"])


def test_words_among_numbers_are_noted() -> None:
    source = column(*map(str, range(10)), "unknown", "none")
    _, levels = matrices([source], ["c"], [])
    (note,) = notes(source, ["c"], levels)
    assert "holds 'unknown' in row 51, where 50 of 60 values are numbers, and is taken" in note


@each(
    "codes",
    [
        *(["7", "7a", "B2", "8", "8b", "C3", "9c"], ["K1A 0B6", "10115", "D-8000", "SW1A 1AA"]),
        *(["0171 1234567", "030/123", "+49 30 1", "(555) 1-2"], ["36 months", "60 months"]),
        *(["0", "1", "2", "3+"], ["B1", "B2", "B3", "B4", "B5", "B6"], ["A-1", "A-2", "A-3"]),
    ],
)
def test_codes_stay_categories(codes: list[str]) -> None:
    source = column(*codes)
    _, levels = matrices([source], ["c"], [])
    assert set(levels["c"]) == set(codes)
    assert not notes(source, ["c"], levels)


CHANCE = np.random.default_rng(4)
NUMBERED = {
    "Unnamed: 0": CHANCE.permutation(60),
    "__index_level_0__": CHANCE.integers(0, 40, 60),
    "from 0": np.arange(60),
    "from 1, reordered": CHANCE.permutation(60) + 1,
    "a third is left": CHANCE.permutation(180)[:60],
    "in steps": CHANCE.permutation(60) * 4,
    "customer_id": CHANCE.integers(0, 20, 60),
    "Row Nr.": CHANCE.permutation(9000)[:60],
    "account": CHANCE.permutation(9000)[:60] + 10**9,
}
MEASURED = {
    "age": CHANCE.integers(18, 90, 60),
    "income": CHANCE.permutation(90000)[:60],
    "number": CHANCE.normal(size=60),
    "store_id": CHANCE.integers(0, 3, 60),
    "year": CHANCE.integers(1950, 2020, 60),
    "paid": CHANCE.integers(0, 50, 60),
    "cents": CHANCE.integers(10**5, 10**8, 60),
    "gap": np.where(CHANCE.random(60) < 0.7, np.nan, np.arange(60)),
}


@each("as_text", [False, True])
def test_numbers_that_name_rows_are_noted_in_any_order(as_text: bool) -> None:
    every = NUMBERED | MEASURED
    frame = pl.DataFrame({name: pl.Series(values) for name, values in every.items()})
    source = Source("t", frame.cast(pl.String) if as_text else frame.fill_nan(None))
    if as_text:
        source = Source("t", source.frame.with_columns(pl.col("gap").replace({"NaN": None})))
    noted = [name for name in every if notes(source, [name], [])]
    assert noted == list(NUMBERED)
    assert "name it in data.id, or leave it out" in notes(source, ["from 0"], [])[0]


def test_a_feature_holder_hears_of_its_own_columns(tmp_path: Path) -> None:
    frame = pl.DataFrame({name: NUMBERED[name] for name in ("from 0", "in steps")})
    frame = frame.with_columns(pl.Series("key", [f"k{place}" for place in range(60)]))
    frame.write_csv(tmp_path / "member.csv")
    own = OwnTable(path=tmp_path / "member.csv", id="key")
    held = party_table.features(own, Choice(Stream.from_seed(0), 0.1, None), "f")
    assert "columns 'from 0', 'in steps' have values that only name rows" in held.notes[0]
