"""Rows by their keys: of files that are replaced, and of databases."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.refusals import refused

from vertizo.core.errors import ConfigError, DataError
from vertizo.data.own_tables import keyed
from vertizo.data.own_tables.keyed import DatabaseTable, FileTable, keyed_table
from vertizo.data.prepared import raw_matrix
from vertizo.data.tabular.csv_lines import CsvFormat

FORM = CsvFormat()


def database(path: Path, statements: str) -> Path:
    with closing(sqlite3.connect(path)) as base:
        base.executescript(statements)
    return path


def test_rows_of_a_file_are_found_by_keys_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("id,x\n 7 ,1\n8,\n9.0,3\n")
    table = FileTable(file, "id", FORM)
    places, frame = table.rows(["9", "nobody", "7", "9"])
    assert places == [0, 2, 3]
    assert frame["x"].to_list() == ["3", "1", "3"]
    places, frame = table.rows(["nobody"])
    assert (places, frame.height) == ([], 0)


def test_a_file_that_is_replaced_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "LOOK_SECONDS", 0.0)
    file, told = tmp_path / "t.parquet", list[str]()
    pl.DataFrame({"id": [1, 2], "x": [1.0, 2.0]}).write_parquet(file)
    table = FileTable(file, "id", FORM, told.append)

    def replace(content: pl.DataFrame | bytes) -> None:
        new = tmp_path / "new"
        if isinstance(content, bytes):
            new.write_bytes(content)
        else:
            content.write_parquet(new)
        new.replace(file)

    assert table.rows(["2", "3"])[0] == [0]
    assert not told
    replace(pl.DataFrame({"id": [3], "x": [9.0]}))
    places, frame = table.rows(["2", "3"])
    assert (places, frame["x"].to_list()) == ([1], [9.0])
    assert told == [f"{file} was read anew: 1 records"]
    replace(b"half of a fi")
    assert table.rows(["3"])[0] == [0]
    assert table.rows(["3"])[0] == [0]
    assert "not a readable Parquet file" in told[1]
    assert told[1].endswith("scores come from the file of before")
    assert len(told) == 2  # it is told once
    file.unlink()
    assert table.rows(["3"])[0] == [0]
    replace(pl.DataFrame({"id": [4], "x": [4.0]}))
    assert table.rows(["3", "4"])[0] == [1]


def test_a_new_file_that_lacks_a_column_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "LOOK_SECONDS", 0.0)
    file, told = tmp_path / "t.csv", list[str]()
    file.write_text("id,x,y\n7,1,2\n")
    table = FileTable(file, "id", FORM, told.append)
    with pytest.raises(DataError, match=r"t\.csv does not have the column 'z'; it has id, x, y"):
        table.need(["z"])
    table.need(["x", "y"])
    (tmp_path / "new").write_text("id,x\n7,5\n8,6\n")
    (tmp_path / "new").replace(file)
    places, frame = table.rows(["7", "8"])
    assert (places, frame["x"].to_list()) == ([0], ["1"])
    assert told == [
        f"{file} does not have the column 'y'; it has id, x; scores come from the file of before"
    ]
    (tmp_path / "new").write_text("x,id,y\n5,7,2\n6,8,2\n")
    (tmp_path / "new").replace(file)
    assert table.rows(["7", "8"])[0] == [0, 1]


def test_a_database_that_lacks_a_column(tmp_path: Path) -> None:
    base = database(tmp_path / "t.db", "CREATE TABLE people (id TEXT PRIMARY KEY, x REAL)")
    table = DatabaseTable(base, "id", None)
    table.need(["x"])
    with pytest.raises(DataError, match="does not have the column 'y'; it has id, x"):
        table.need(["x", "y"])


UNIQUE = ["INTEGER PRIMARY KEY", "INTEGER UNIQUE", "TEXT UNIQUE"]


@pytest.mark.parametrize("kind", ["", "INTEGER", "TEXT", "REAL", "NUMERIC", "BLOB", *UNIQUE])
def test_keys_of_a_database_are_found_whatever_its_column_is(tmp_path: Path, kind: str) -> None:
    """Each key as the column's type keeps it: a number, a text, or what was put in."""
    made = f"CREATE TABLE people (id {kind}, x);"
    made += "INSERT INTO people VALUES (7, 'a'), (-12, 'b'), (0, 'c');"
    if kind not in UNIQUE:
        made += "CREATE UNIQUE INDEX by_key ON people (id);"
    if kind in ("", "TEXT", "BLOB"):
        made += "INSERT INTO people VALUES ('x9', 'd')"
    base = database(tmp_path / "t.db", made)
    places, frame = DatabaseTable(base, "id", None).rows(["0", "7", "-12", "8", "007"])
    assert (places, frame["x"].to_list()) == ([0, 1, 2], ["c", "a", "b"])


def test_a_file_that_is_replaced_meanwhile_is_one_or_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and rows belong to the same file, whichever thread reads it."""
    monkeypatch.setattr(keyed, "LOOK_SECONDS", 0.0)
    file, keys = tmp_path / "t.parquet", [str(n) for n in range(50)]

    def replace(shift: int) -> None:
        order = [(n + shift) % 50 for n in range(50)]
        pl.DataFrame({"id": order, "x": order}).write_parquet(tmp_path / "new")
        (tmp_path / "new").replace(file)

    replace(0)
    table, over, wrong = FileTable(file, "id", FORM), threading.Event(), list[Any]()

    def look() -> None:
        while not over.is_set():
            places, frame = table.rows(keys)
            if (places, frame["x"].to_list()) != (list(range(50)), list(range(50))):
                wrong.append(frame)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for shift in range(1, 60):
        replace(shift)
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong


ROWS: list[tuple[Any, ...]] = [
    ("a", 1, 2.5, "red", None),
    ("b", -3, 1e-7, " blue ", 4),
    ("c", None, 3.0, "NA", 5.0),
    ("d", 2**40, float("inf"), "", "7"),
]


def test_a_database_gives_what_a_csv_file_of_it_gives(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "t.db")
    base.execute("CREATE TABLE people (id TEXT PRIMARY KEY, n INTEGER, x REAL, word TEXT, mixed)")
    base.executemany("INSERT INTO people VALUES (?, ?, ?, ?, ?)", ROWS)
    base.commit()
    base.close()
    lines = [",".join("" if value is None else str(value) for value in row) for row in ROWS]
    (tmp_path / "t.csv").write_text("\n".join(["id,n,x,word,mixed", *lines]) + "\n")
    keys = ["d", "nobody", "c", "a", "b"]
    found = DatabaseTable(tmp_path / "t.db", "id", None).rows(keys)
    known = FileTable(tmp_path / "t.csv", "id", FORM).rows(keys)
    assert found[0] == known[0] == [0, 2, 3, 4]
    levels = {"word": ("blue", "red")}
    finite = [1, 2, 3]  # float32 cannot hold the other one
    matrices = [
        raw_matrix(frame[finite], ["n", "x", "word", "mixed"], levels)
        for _, frame in (found, known)
    ]
    assert str(matrices[0]) == str(matrices[1])


def test_a_value_that_is_no_text_costs_no_other_record(tmp_path: Path) -> None:
    made = "CREATE TABLE t (id TEXT PRIMARY KEY, x TEXT);"
    made += "INSERT INTO t VALUES ('a', CAST(x'ff41' AS TEXT)), ('b', 'é')"
    places, frame = DatabaseTable(database(tmp_path / "t.db", made), "id", None).rows(["a", "b"])
    assert (places, frame["x"].to_list()) == ([0, 1], ["\ufffdA", "é"])


def test_a_database_is_asked_as_it_is_now_and_only_read(tmp_path: Path) -> None:
    made = "CREATE TABLE t (id TEXT, x); CREATE INDEX by_key ON t (id);"
    file = database(tmp_path / "t.db", made + "INSERT INTO t VALUES ('a', 1)")
    table = DatabaseTable(file, "id", "t")
    before = file.read_bytes()
    assert table.rows(["a", "b"])[0] == [0]
    assert file.read_bytes() == before
    database(file, "INSERT INTO t VALUES ('b', 2), ('a', 3)")
    assert table.rows(["a", "b"])[0] == [1]  # a is there twice now, and nobody knows which it is
    file.write_bytes(b"no database")
    refused("broken", DataError, table.rows, ["a"], match="cannot be read: file is not a database")
    file.unlink()
    refused("gone", DataError, table.rows, ["a"], match="cannot be read: unable to open")


def test_tables_that_cannot_be_asked_are_refused(tmp_path: Path) -> None:
    made = """CREATE TABLE "od""d" (id TEXT, "k y" TEXT UNIQUE, x);
        CREATE TABLE other (id TEXT PRIMARY KEY, raw BLOB);
        INSERT INTO other VALUES ('a', x'00');
        CREATE VIEW shown AS SELECT id FROM other"""
    file = database(tmp_path / "t.sqlite", made)
    database(tmp_path / "empty.db", "")
    (tmp_path / "t.csv").write_text("id,x\n1,2\n")
    rows: list[tuple[str, str, str | None, str]] = [
        ("t.sqlite", "id", None, 'has 3 tables (od"d, other, shown); name one by --table'),
        ("t.sqlite", "id", "nowhere", "--table is 'nowhere', which"),
        (
            "t.sqlite",
            "key",
            'od"d',
            "does not have the column 'key' of identifiers; it has id, k y",
        ),
        ("t.sqlite", "id", 'od"d', 'CREATE UNIQUE INDEX by_key ON "od""d" ("id")'),
        ("empty.db", "id", None, "has 0 tables"),
        ("none.db", "id", None, "is missing"),
        ("t.csv", "id", "t", "is for a database (.db, .sqlite, .sqlite3)"),
        ("none.csv", "id", None, "is missing"),
    ]
    for name, column, table, words in rows:
        place = tmp_path / name
        errors = (ConfigError, DataError)
        refused(name, errors, keyed_table, place, column, FORM, table, match=re.escape(words))
    assert isinstance(keyed_table(file, "k y", FORM, 'od"d'), DatabaseTable)
    assert keyed_table(file, "id", FORM, "shown").rows(["a"])[0] == [0]
    with_bytes = keyed_table(file, "id", FORM, "other")
    assert with_bytes.rows(["a"])[1]["raw"].to_list() == ["1 bytes"]
