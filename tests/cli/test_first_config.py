"""``vertizo init --from``: whatever the table is like, the configuration trains on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.command_line import Refuses, Vertizo, sets
from tests.words import says

from vertizo.config import schema
from vertizo.run.experiment import Experiment

ROWS = 60


def table(**columns: Callable[[int], Any]) -> pl.DataFrame:
    return pl.DataFrame({name: [make(n) for n in range(ROWS)] for name, make in columns.items()})


def plain(**more: Callable[[int], Any]) -> pl.DataFrame:
    return table(
        customer=lambda n: f"C{n:03}",
        age=lambda n: 20 + n * n % 47,
        income=lambda n: 1000.5 + n * n * 13 % 977,
        visits=lambda n: n * 7 % 5,
        churn=lambda n: "yes" if n * n % 3 else "no",
        **more,
    )


def prepared(path: Path) -> tuple[schema.ExperimentConfig, Any]:
    assert "method: {name: auto}" in path.read_text(encoding="utf-8")
    config = schema.load(path, ["method.name=dpzv"])
    return config, Experiment(config).data()


def test_it_trains_at_once_and_replaces_nothing(vertizo: Vertizo, refuses: Refuses) -> None:
    made = plain(
        note=lambda n: f"called {n} times",
        country=lambda n: "CH",
        balance=lambda n: n % 2,
        price=lambda n: f"1.{n % 9}00,00",
    )
    Path("data").mkdir()
    made.write_csv("data/clients.csv")
    who = ("--party", "bank=age, income,country", "--party", "shop=visits")
    out = vertizo("init", "--from", "data/clients.csv", "--label", "churn", *who).quietly()
    says(out, "no --party names them: 'balance'", "left out: column 'country' has the same value")
    says(out, "left out: column 'note' has values that only", "left out: ", "price' holds '1.")
    assert "this is a guess" not in out
    text = Path("config.yaml").read_text(encoding="utf-8")
    assert "path: data/clients.csv" in text
    says(text, "'country' has the same value", "'note' has values that only", "price' holds '1.")
    config, data = prepared(Path("config.yaml"))
    assert config.data.id == "customer"
    assert config.data.columns == {"bank": ["age", "income"], "shop": ["visits"]}
    assert (config.data.label_holder, config.data.classes) == ("bank", ["no", "yes"])
    assert data.notes == ()
    again = ("init", "--from", "data/clients.csv", "--label", "churn")
    refuses.row("again", ["config.yaml", "exists already"], *again)
    assert vertizo("train", "config.yaml", *sets("epochs=1")).code == 0


def test_awkward_tables(vertizo: Vertizo, here: Path) -> None:
    odd = {
        **{name: lambda n: n * n % 13 for name in ("yes", "null", "010", "1e-3", "a: b", "- c")},
        **{
            name: lambda n: n * n % 17 for name in ('say "x"', "it's", "größe", "体重", "#d", "{e}")
        },
    }
    pair = table(x=lambda n: n * n % 11 / 3, y=lambda n: n % 2)
    wide = plain(**{f"column {k}": lambda n, k=k: (n * n + k) % 19 for k in range(60)})
    number = plain().drop("churn", "customer").with_columns(y=pl.col("age") * 1.37)
    dated = plain(since=lambda n: f"2020-0{1 + n % 9}-1{n % 7}").drop("customer")
    tables = {
        "semicolon.csv": (plain(), "churn", "customer"),
        "book.xlsx": (plain(), "churn", "customer"),
        "file.parquet": (plain(), "churn", "customer"),
        "number.csv": (number, "y", None),
        "dated.csv": (dated, "churn", None),
        "odd.csv": (plain(**odd), "churn", "customer"),
        "pair.csv": (pair, "y", None),
        "wide.csv": (wide, "churn", "customer"),
        "counted.csv": (plain().drop("customer").with_row_index("nr", 1), "churn", "nr"),
    }
    for name, (frame, label, key) in tables.items():
        path = here / name
        if name.endswith(".xlsx"):
            openpyxl = pytest.importorskip("openpyxl")
            book = openpyxl.Workbook()
            for row in [frame.columns, *frame.rows()]:
                book.active.append(row)
            book.save(path)
        elif name.endswith(".parquet"):
            frame.write_parquet(path)
        else:
            frame.write_csv(path, separator=";" if name == "semicolon.csv" else ",")
        folder = here / f"in {path.stem}"
        out = vertizo("init", folder, "--from", path, "--label", label).quietly()
        assert "nobody said who has which columns; this is a guess" in out, name
        config, data = prepared(folder / "config.yaml")
        assert config.data.id == key, name
        owned = [c for own in (config.data.columns or {}).values() for c in own]
        assert owned == [c for c in frame.columns if c not in (label, key, *config.data.drop)], name
        assert len(config.data.columns or {}) == {4: 2, 1: 1}.get(len(owned), 2 + (len(owned) > 5))
        assert data.records == 43, name
        is_number = name == "number.csv"
        assert (config.data.classes is None, config.data.task == "regression") == (is_number,) * 2


def test_the_way_of_writing_is_found_or_said(vertizo: Vertizo, here: Path) -> None:
    frame = plain().rename({"age": "café"})
    for place, (way, encoding) in enumerate((("\t", "cp1252"), ("|", "utf-8"), (";", "gb18030"))):
        (here / "t.csv").write_text(frame.write_csv(separator=way), encoding=encoding)
        said = () if encoding != "gb18030" else ("--encoding", encoding, "--delimiter", ";")
        vertizo("init", f"made {place}", "--from", "t.csv", "--label", "churn", *said).well()
        config, _ = prepared(here / f"made {place}" / "config.yaml")
        assert (config.data.delimiter, config.data.encoding) == (way, encoding)


def test_mistakes_write_nothing(refuses: Refuses, here: Path) -> None:
    frame = plain(same=lambda n: 1, gap=lambda n: None if n == 3 else n % 2)
    frame.write_csv(here / "clients.csv")
    refuses(
        """\
--label churn --from cleints.csv | cleints.csv is missing | 'clients.csv'
--from clients.csv | --label is missing | age
--from clients.csv --label chrun | --label is 'chrun' | did you mean 'churn'
--from clients.csv --label churn --id costumer | --id is 'costumer' | did you mean 'customer'
--from clients.csv --label churn --id churn | name two columns
--from clients.csv --label churn --id visits | more than once
--from clients.csv --label same | is '1' in every row
--from clients.csv --label gap | missing in 1 of 60 rows
--from clients.csv --label churn --party a=agee --party b=visits | 'agee' | did you mean 'age'
--from clients.csv --label churn --party a=age --party b=age | 'age' | 'a' has too
--from clients.csv --label churn --party a=age,age --party b=visits | 'age' | twice
--from clients.csv --label churn --party a=age --party b=churn | 'churn' | is the label
--from clients.csv --label churn --party a=age --party b=customer | tells records apart | --id
--from clients.csv --label churn --party a=age --party b=same | 'b' has no column of use: column
    'same' has the same value
--from clients.csv --label churn --party a=age | 'a' alone
--from clients.csv --label churn --party a=age --party a=visits | 'a' twice
--from clients.csv --label churn --party age | write NAME=COLUMN
--from clients.csv --label churn --party =age | write NAME=COLUMN
--from clients.csv --label churn --party a= | write NAME=COLUMN
--from clients.csv --label churn --party a=age, | write NAME=COLUMN
--from clients.csv --label churn --holder partz1 | --holder is 'partz1' | did you mean 'party1'
--from clients.csv --label churn --delimiter ab | --delimiter is 'ab'
--from clients.csv --label churn --parties | --parties
--from clients.csv --label churn --customers 60 | --customers
--label churn | --label is for a table of --from
--party a=age | --party is for a table of --from
""",
        "init",
    )
