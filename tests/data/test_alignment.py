"""Keys as canonical text, rows in canonical order, and a table that is written whole or not."""

from __future__ import annotations

import datetime
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.refusals import refused
from tests.rows import each

from vertizo.core.errors import ConfigError, DataError, RunError
from vertizo.data.alignment import TableToAlign, align_table, in_order, keys_of
from vertizo.data.tabular import frames
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.run.results import checkpoint


def table(values: Any, dtype: Any = None) -> pl.DataFrame:
    return pl.DataFrame({"id": pl.Series(values, dtype=dtype), "x": range(len(values))})


def test_a_whole_number_is_one_key_in_any_column() -> None:
    for frame in (
        table([12, 0, -7]),
        table([12.0, -0.0, -7.0]),
        table([12.0, 0.0, -7.0], pl.Float32),
        table([Decimal("12.00"), Decimal("0.00"), Decimal("-7.00")]),
        table(["12", "0", "-7"]),
        table([" 12.0", "-0.00", "-7.000\t"]),
        table(["12", "0", "-7"], pl.Categorical),
    ):
        assert keys_of(frame, "id") == ["12", "0", "-7"], frame
    assert keys_of(table([12, 0, 249], pl.UInt8), "id") == ["12", "0", "249"]
    large = [2**63 - 1, 2**53 + 1]
    assert keys_of(table(large), "id") == [str(number) for number in large]


def test_text_keeps_its_zeros_points_and_case() -> None:
    keys = ["007", "7", "1.5", "01.0", "1e3", "A", "a", "10.0.0"]
    assert keys_of(table(keys), "id") == keys
    # Composed and decomposed letters are one.
    assert keys_of(table(["Zo\u0065\u0308", "  \u00e9\u2003"]), "id") == ["Zo\u00eb", "\u00e9"]


def test_what_is_no_column_of_identifiers() -> None:
    for frame, words in (
        (table([1.5, 2.0]), "holds 1.5; identifiers are whole numbers or text"),
        (table([float("inf")]), "holds inf"),
        (table([2.0**53]), "9007199254740992 as Float64, which may have been rounded"),
        (table([2.0**24], pl.Float32), "16777216 as Float32"),
        (table([Decimal("1.5")]), "holds 1.5"),
        (table([datetime.date(2020, 1, 1)]), "holds Date; identifiers are whole numbers or text"),
        (table([True, False]), "holds Boolean"),
        (table([b"a"]), "holds Binary"),
        (table([[1], [2]]), "holds List"),
        (table(["a", None, " ", "b"]), "no identifier in 2 of 4 rows: row 2 and row 3; leave"),
        (table([1.0, float("nan")]), "no identifier in 1 of 2 rows: row 2"),
        (table([None, None]), "no identifier in 2 of 2 rows"),
        (table(["b"] + [""] * 9), "in 9 of 10 rows: row 2, row 3, row 4, row 5 and row 6 (and 4"),
        (
            table(["a", "b", "a", "c", "a", "b"]),
            "the key 'a' in 3 rows: row 1, row 3 and row 5, and 1 more keys more than once",
        ),
        (table(["1", "1.0"]), "the key '1' in 2 rows: row 1 and row 2; each record"),
        (table([]), "has no rows"),
    ):
        line = refused([words], DataError, keys_of, frame, "id", "loans.csv")
        assert line.startswith("loans.csv")
    words = "column 'ids' of identifiers; did you mean 'id'?"
    refused([words], DataError, keys_of, table([1]), "ids")
    refused(["'customer' of identifiers; it has id, x"], DataError, keys_of, table([1]), "customer")


def test_rows_come_in_canonical_order_with_their_values() -> None:
    frame = pl.DataFrame({"id": [10, 9, 2, 1], "x": ["ten", "nine", "two", "one"]})
    rows = align_table(frame, "id", ["9", "10", "2"]).rows()
    assert rows == [(10, "ten"), (2, "two"), (9, "nine")]
    with pytest.raises(DataError, match="does not have the record '3'"):
        align_table(frame, "id", ["3"])


@given(st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_the_order_is_that_of_bytes_in_utf_8(keys: set[str]) -> None:
    assert list(in_order(keys)) == sorted(keys, key=lambda key: key.encode())


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": ["张;", "a\n", 'c"'], "x": ["1", None, "3"]})
    for suffix, encoding in ((".csv", "utf-8"), (".csv", "gb18030"), (".parquet", "utf-8")):
        folder = tmp_path / (suffix[1:] + encoding)
        folder.mkdir()
        form = CsvFormat(";", encoding)
        written = TableToAlign(folder / "own", "id", folder / f"out{suffix}", form)
        written.write(frame, keys_of(frame, "id"))
        found = frames.read(written.output, form)
        assert keys_of(found, "id") == ["a", 'c"', "张;"], suffix
        assert found["x"].to_list() == [None, "3", "1"]
        assert list(folder.iterdir()) == [written.output]


def test_a_file_that_is_there_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.csv"
    path.write_text("mine")
    new = TableToAlign(tmp_path / "own.csv", "id", path)
    with pytest.raises(ConfigError, match="is there already"):
        new.write(table([1]), ["1"])
    assert path.read_text() == "mine"

    def full(frame: pl.DataFrame, file: Any, **_: Any) -> None:
        file.write(b"id,")
        raise OSError(28, "No space left on device")

    over = replace(new, overwrite=True)
    with monkeypatch.context() as patched:
        patched.setattr(pl.DataFrame, "write_csv", full)
        with pytest.raises(DataError, match=r"out\.csv cannot be written: .*No space left"):
            over.write(table([1]), ["1"])
    with pytest.raises(DataError, match=r"out\.csv cannot be written"):  # nested, which is no CSV
        over.write(pl.DataFrame({"id": [1], "x": [[1, 2]]}), ["1"])
    assert path.read_text() == "mine"
    over.write(table([1]), ["1"])
    assert path.read_text() == "id,x\n1,0\n"
    assert list(tmp_path.iterdir()) == [path]


def test_outputs_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    own, other, folder = (tmp_path / name for name in ("own.csv", "other.csv", "folder.csv"))
    own.write_text("id\n1\n")
    other.write_text("")
    folder.mkdir()
    for path, overwrite, words in (
        (tmp_path / "out.xlsx", False, r"ends in '\.xlsx'; end it in \.csv or \.parquet"),
        (tmp_path / "no" / "out.csv", False, "there is no folder"),
        (own, True, "is the table that is aligned"),
        (other, False, "is there already"),
        (folder, True, "is a folder"),
    ):
        with pytest.raises(ConfigError, match=words):
            TableToAlign(own, "id", path, overwrite=overwrite).check_output()
    TableToAlign(own, "id", tmp_path / "out.parquet").check_output()
    TableToAlign(own, "id", other, overwrite=True).check_output()


@each("value, column", [("Łódź", "city"), ("12 €", "city"), ("上海", "city"), ("x", "Größe ≥")])
def test_what_an_encoding_cannot_write_is_found_before_anybody_is_asked(
    value: str, column: str, tmp_path: Path
) -> None:
    """Though no other party may have that record."""
    frame = pl.DataFrame({"id": ["1", "2", "3"], column: ["a", value, None]})
    frame.write_parquet(tmp_path / "own.parquet")
    form = CsvFormat(",", "cp1252")
    to = TableToAlign(tmp_path / "own.parquet", "id", tmp_path / "out.csv", form)
    if value == "12 €":
        to.write(*to.read())
        assert to.output.read_bytes().endswith(b"2,12 \x80\n3,\n")
        return
    words = r"CP1252 cannot write; end .*or set data.encoding"
    with pytest.raises(DataError, match=words) as found:
        to.read()
    assert repr(column if value == "x" else value) in str(found.value)
    assert ("row 2" if value != "x" else "its name") in str(found.value)
    assert [path.name for path in tmp_path.iterdir()] == ["own.parquet"]
    replace(to, output=tmp_path / "out.parquet").write(frame, keys_of(frame, "id"))


def test_what_no_csv_file_holds_is_found_before_anybody_is_asked(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [1, 2], "x": [[1], [2]], "took": [timedelta(seconds=90)] * 2})
    frame.write_parquet(tmp_path / "own.parquet")
    to = TableToAlign(tmp_path / "own.parquet", "id", tmp_path / "out.csv")
    with pytest.raises(DataError, match=r"out\.csv cannot be written"):
        to.read()
    frame.drop("x").write_parquet(tmp_path / "own.parquet")
    to.write(*to.read())
    assert to.output.read_text() == "id,took\n1,90.0\n2,90.0\n"


def test_values_are_written_letter_for_letter(tmp_path: Path) -> None:
    text = 'id,x,"a ""b"""\n" 8 ",NA, ?\n9,null,"x, y"\n'
    (tmp_path / "own.csv").write_text(text)
    to = TableToAlign(tmp_path / "own.csv", "id", tmp_path / "out.csv")
    frame, keys = to.read()
    assert keys == ["8", "9"]
    to.write(frame, keys)
    assert frames.read(to.output).equals(frames.read(to.path))
    written = frames.read_as_written(to.output)[1].rows()
    assert written == [(" 8 ", "NA", " ?"), ("9", "null", "x, y")]


def test_an_aligned_table_in_a_folder_with_digests_is_read_as_it_was_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "t.csv").write_text("key,x\n1,10\n2,20\n3,30\n")
    for place in ("plain", "kept"):
        (tmp_path / place).mkdir()
        if place == "kept":
            checkpoint.keep(tmp_path / place / "party.yaml", b"{}")
        out = tmp_path / place / "aligned.csv"
        aligned = TableToAlign(tmp_path / "t.csv", "key", out)
        aligned.write(frames.read(aligned.path), ["1", "3"])
        assert frames.read(out).height == 2
        out.write_text(out.read_text().replace("30", "38"))
        if place == "plain":
            assert frames.read(out)["x"].to_list() == ["10", "38"]
            continue
        with pytest.raises(RunError, match=r"aligned\.csv is damaged or was changed"):
            frames.read(out)
