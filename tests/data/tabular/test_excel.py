"""Excel workbooks are read as a CSV file of their first sheet would be, or refused in one line."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.data.refusals import refused
from tests.rows import each

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.alignment import TableToAlign, keys_of
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare
from vertizo.data.tabular import frames
from vertizo.data.tabular.columns import Source, matrices, texts

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    openpyxl = pytest.importorskip("openpyxl")

    def put(*rows: list[Any], name: str = "people.xlsx", merged: Sequence[str] = ()) -> Path:
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        for cells in merged:
            book.active.merge_cells(cells)
        book.create_sheet("notes").append(["of no concern"])
        book.save(tmp_path / name)
        return tmp_path / name

    return put


def test_a_sheet_is_what_its_csv_file_would_be(write: Write) -> None:
    path = write(
        [],
        ["编号", " 年龄 ", "day", "at", "vip", "note", None],
        ["00123", 31.0, dt.date(2020, 1, 31), dt.datetime(2020, 1, 31, 8, 30), True, " 上\n海 "],
        [],
        [110101199003, 1.5, None, None, False, "N/A"],
        ["x", None, "#N/A", None, None, "?"],
        [None, "NA"],
        ["y"],
        name="People.XLSX",
    )
    found = frames.read(path)
    assert found.columns == ["编号", "年龄", "day", "at", "vip", "note"]
    assert found.rows() == [
        ("00123", "31", "2020-01-31", "2020-01-31T08:30:00", "True", "上\n海"),
        ("110101199003", "1.5", None, None, "False", None),
        ("x", None, None, None, None, None),
        ("y", None, None, None, None, None),
    ]
    place = frames.place_in(path, frames.UTF8)
    assert [place(index) for index in range(4)] == ["row 3", "row 5", "row 6", "row 8"]


def test_models_and_alignment_read_it(write: Write, tmp_path: Path) -> None:
    rows = [[f"k{i}", i, "ab"[i % 2], dt.date(2020, 1, 1 + i), i % 2] for i in range(20)]
    path = write(["key", "x", "z", "day", "y"], *rows)
    table = {"name": "table", "path": path, "label": "y", "id": "key", "time": "day"}
    data = prepare(DataConfig(**table, parties=1), Stream.from_seed(0))
    sizes = {purpose: len(labels) for purpose, labels in data.labels.items()}
    assert sizes == {"train": 14, "validation": 2, "test": 4}
    aligned = TableToAlign(path, "key", tmp_path / "aligned.csv")
    frame, keys = aligned.read()
    aligned.write(frame, keys[:3])
    assert keys_of(frames.read(aligned.output), "key") == ["k0", "k1", "k2"]


def test_the_first_sheet_that_people_see_is_read(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["old"])
    book.active.sheet_state = "hidden"
    book.create_sheet("very").sheet_state = "veryHidden"
    seen = book.create_sheet("seen")
    seen.append(["a", "y"])
    seen.append([1, 2])
    book.save(tmp_path / "t.xlsx")
    assert frames.read(tmp_path / "t.xlsx").to_dict(as_series=False) == {"a": ["1"], "y": ["2"]}


def test_merged_cells_have_what_is_seen_in_them(write: Write) -> None:
    regions = ["north"] + [None] * 39 + ["south"] + [None] * 79
    rows = [[name, i, i] for i, name in enumerate(regions)]
    path = write(["region", "a", "b"], *rows, merged=("A2:A41", "A42:A121", "B3:C4"))
    found = frames.read(path)
    assert found["region"].to_list() == ["north"] * 40 + ["south"] * 80
    assert found[:4].select("a", "b").rows() == [("0", "0"), ("1", "1"), ("1", "1"), ("3", "3")]
    assert frames.place_in(path, frames.UTF8)(118) == "row 120"


def test_durations_and_times_of_day_are_seconds(write: Write) -> None:
    """In Parquet files and frames too."""
    spans = [dt.timedelta(days=1, seconds=1.5), dt.timedelta(minutes=3), None]
    clock = [dt.time(8, 30), dt.time(0, 0, 1), None]
    rows = zip(spans, clock, "xyz", strict=True)
    found = frames.read(write(["wait", "at", "y"], *map(list, rows)))
    assert found["wait"].to_list() == ["86401.5", "180", None]
    assert found["at"].to_list() == ["30600", "1", None]
    frame = pl.DataFrame({"wait": spans, "at": clock})
    (matrix,), levels = matrices([Source("t", frame)], ["wait", "at"], [])
    assert not levels
    assert matrix[:2].tolist() == [[86401.5, 30600.0], [180.0, 1.0]]
    assert texts(Source("t", frame), "wait").to_list() == ["86401.5", "180", None]


@each(
    "rows, words",
    [
        ([], ["is empty", "'Sheet'"]),
        ([["a", "y"]], ["no rows", "a, y"]),
        ([["a", None, "y"], [1, 2, 3]], ["row 1", "no name for column 2 of 3"]),
        ([["a", "a"], [1, 2]], ["two columns named 'a'"]),
        ([[], [1.5, 7], [1, 2]], ["row 2", "numbers only, 1.5, 7"]),
        ([["a", "y"], [1, 2], [1, 2, 3]], ["row 3", "right of the last column, 'y'", "row 1"]),
        ([["a", "y"], [1, "#DIV/0!"]], ["cell B2 holds the error #DIV/0!", "mend its formula"]),
    ],
)
def test_sheets_that_are_no_tables(rows: list[list[Any]], words: list[str], write: Write) -> None:
    path = write(*rows)
    refused([str(path), *words], DataError, frames.read, path)


def test_a_row_is_named(write: Write) -> None:
    path = write(["key", "y"], ["k1", 1], [], [None, 2])
    frame, place = frames.read(path), frames.place_in(path, frames.UTF8)
    refused(["row 4"], DataError, keys_of, frame, "key", str(path), place)


def test_files_that_are_no_workbooks(write: Write, tmp_path: Path) -> None:
    path = write(["a", "y"], [1, 2])
    content = path.read_bytes()
    older = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99)
    for wrong in (b"", b"a,y\n1,2\n", content[:900], older):
        path.write_bytes(wrong)
        refused([str(path), "not a readable Excel workbook"], DataError, frames.read, path)
    for place in range(0, len(content), 97):  # whatever byte is wrong
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        with suppress(DataError):
            frames.read(path)
    (tmp_path / "renamed.csv").write_bytes(content)
    refused(["an Excel workbook", ".xlsx"], DataError, frames.read, tmp_path / "renamed.csv")


def test_without_openpyxl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    path = tmp_path / "people.xlsx"
    path.write_bytes(b"PK")
    words = [str(path), "pip install 'vertizo[excel]'", "as CSV"]
    refused(words, ConfigError, frames.read, path)
