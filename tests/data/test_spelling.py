"""A category is one and the same, whatever kind of file it is in and whoever wrote that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import each

from vertizo.config import schema
from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig
from vertizo.data.own_tables.keyed import FileTable
from vertizo.data.prepare import prepare
from vertizo.data.prepared import raw_matrix
from vertizo.data.tabular.category_text import spelt
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.data.tabular.frames import read
from vertizo.data.tabular.preprocessing import Preprocessing
from vertizo.data.vertical import of_classes
from vertizo.ops.scoring.lookup import Lookup
from vertizo.run.experiment import Experiment
from vertizo.run.trained.prediction import Predictor

ROWS = 60


def one(text: str) -> str | None:
    """A single text as it is spelt."""
    found: str | None = spelt(pl.Series([text], dtype=pl.String))[0]
    return found


@given(st.text() | st.integers().map(str) | st.floats(allow_nan=False).map(str))
def test_there_is_one_spelling(text: str) -> None:
    once = one(text)
    assert once is None or one(once) == once


@given(st.integers(-(2**53), 2**53), st.integers(1, 3))
def test_numbers_are_those_that_they_are(number: int, zeros: int) -> None:
    assert one(str(number)) == str(number)
    assert one(f"{number}.{'0' * zeros}") == str(number)
    assert one(f"0{number}") == f"0{number}"  # a name, as 007
    assert one(f"{number}.01") == f"{number}.01"


def test_what_is_spelt_otherwise() -> None:
    written = [" 10.0 ", "-0", "-0.0", "TRUE", "false", "e\u0301", "007", "1.50", "5.", " ", ""]
    wanted = ["10", "0", "0", "true", "false", "é", "007", "1.50", "5.", None, None]
    assert spelt(pl.Series(written)).to_list() == wanted


@each(
    "key, given",
    [
        ("classes", ["1", "1.0"]),
        ("classes", ["x", " "]),
        ("categories", {"job": ["cook", "cook "]}),
        ("class_weights", {"true": 1.0, "True": 2.0}),
        ("positive", " "),
    ],
)
def test_names_that_are_one_are_refused(tmp_path: Path, key: str, given: Any) -> None:
    table = _csv(frame(), tmp_path / "train")
    options = {"name": "table", "path": table, "label": "y", "parties": 2, key: given}
    data = DataConfig.model_validate(options)
    with pytest.raises(ConfigError, match=rf"data\.{key}.* (which are one|which is empty)"):
        of_classes(data, prepare(data, Stream.from_seed(0)))


def frame() -> pl.DataFrame:
    rng = np.random.default_rng(3)
    codes, flags = rng.integers(-1, 4, ROWS), rng.integers(0, 2, ROWS).astype(bool)
    return pl.DataFrame(
        {
            "code": codes,
            "flag": flags,
            "half": codes / 2,
            "job": [("cook", "nurse", "née")[i % 3] for i in range(ROWS)],
            "a": rng.normal(size=ROWS).round(3),
            "y": (codes > 1) ^ flags,
        }
    )


def _csv(frame: pl.DataFrame, path: Path) -> Path:
    frame.write_csv(path.with_suffix(".csv"))
    return path.with_suffix(".csv")


def _parquet(frame: pl.DataFrame, path: Path) -> Path:
    frame.write_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def _as_pandas(frame: pl.DataFrame, path: Path) -> Path:
    """Integers become floats where one is missing, and truth has a capital."""
    code = pl.col("code").cast(pl.Float64)
    return _csv(frame.with_columns(code, _words("True", "False")), path)


def _as_excel_says(frame: pl.DataFrame, path: Path) -> Path:
    return _csv(frame.with_columns(_words("TRUE", "FALSE")), path)


def _decimals(frame: pl.DataFrame, path: Path) -> Path:
    """As databases hand them out, with blanks and decomposed accents beside."""
    code = pl.col("code").cast(pl.Decimal(10, 2))
    half = pl.col("half").cast(pl.Decimal(10, 2))
    job = pl.col("job").str.replace("é", "e\u0301") + " "
    return _parquet(frame.with_columns(code, half, job), path)


def _workbook(frame: pl.DataFrame, path: Path) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (frame.columns, *frame.iter_rows()):
        book.active.append(list(row))
    book.save(path.with_suffix(".xlsx"))
    return path.with_suffix(".xlsx")


def _words(yes: str, no: str) -> pl.Expr:
    return pl.when(pl.col("flag", "y")).then(pl.lit(yes)).otherwise(pl.lit(no)).name.keep()


FORMS: dict[str, Callable[[pl.DataFrame, Path], Path]] = {
    "CSV": _csv,
    "Parquet": _parquet,
    "CSV of pandas": _as_pandas,
    "CSV of Excel": _as_excel_says,
    "decimals": _decimals,
    "workbook": _workbook,
}


@pytest.mark.full
@each("one, other", ((a, b) for a in FORMS for b in FORMS))
def test_a_model_of_one_file_knows_the_other(tmp_path: Path, one: str, other: str) -> None:
    """Raw records, labels among them, are the same numbers; no note says otherwise."""
    path = FORMS[one](frame(), tmp_path / "train")
    public = {"categorical": ["code", "half"], "classes": ["False", "TRUE"], "positive": "True"}
    options = DataConfig(name="table", path=path, label="y", parties=2, **public)
    data = prepare(options, Stream.from_seed(0))
    assert data.class_names == ("false", "true")
    same, found = read(path), read(FORMS[other](frame(), tmp_path / "new"))
    for own in data.preparation.parties.values():
        known, new = (raw_matrix(each, own.columns, own.levels) for each in (same, found))
        assert not np.isnan(new).any()
        assert np.array_equal(new, known)
    assert data.preparation.unknown(found) == []
    labels, wanted = data.preparation.labels(found), frame()["y"].to_list()
    assert labels[1].tolist() == wanted


def test_predictions_are_the_same(tmp_path: Path) -> None:
    """Before, every code and flag of the Parquet file was unknown, and nobody was told."""
    table = _as_pandas(frame(), tmp_path / "train")
    settings = ("epochs=2", "data.name=table", "data.label=y", "data.categorical=[code, half]")
    config = schema.load(None, (f"data.path={table}", "data.parties=2", *settings))
    Experiment(config).run(tmp_path / "run")
    predictor = Predictor.load(tmp_path / "run")
    known = predictor.predict(read(table))
    for form in (_parquet, _decimals, _as_excel_says):
        found = predictor.predict(read(form(frame(), tmp_path / "new")))
        assert found.frame.equals(known.frame), form
        assert (found.scores, found.notes) == (known.scores, ())


def test_a_column_of_strangers_is_said(tmp_path: Path) -> None:
    """As codes where the training records have words; of few records nothing is said."""
    table = _csv(frame(), tmp_path / "train")
    data = DataConfig(name="table", path=table, label="y", parties=2)
    preparation = prepare(data, Stream.from_seed(0)).preparation
    odd = frame().with_columns(job=pl.lit("17"))
    (line,) = preparation.unknown(odd, name="new.csv")
    assert line.startswith("new.csv: 60 of 60 values of 'job', such as '17', are no category")
    assert "'cook', 'nurse', 'née'" in line
    assert preparation.unknown(odd[:4]) == []
    for strange, count in ((0.4, 1), (0.1, 0)):
        some = pl.when(pl.int_range(pl.len()) < strange * ROWS).then(pl.lit("17"))
        mixed = frame().with_columns(some.otherwise(pl.col("job")).alias("job"))
        assert len(preparation.unknown(mixed)) == count
    test = _csv(odd, tmp_path / "test")
    notes = prepare(data.model_copy(update={"test_path": test}), Stream.from_seed(0)).notes
    assert [f"{test}: 60 of 60 values of 'job'" in note for note in notes] == [True]


def test_an_empty_column_is_said(tmp_path: Path) -> None:
    """Of numbers as well as of categories, however it is empty."""
    data = DataConfig(name="table", path=_csv(frame(), tmp_path / "train"), label="y", parties=2)
    preparation = prepare(data, Stream.from_seed(0)).preparation
    held = [column for own in preparation.parties.values() for column in own.columns]
    for column in held:
        for nothing in (pl.lit(None), pl.lit(None, pl.String), pl.lit(float("nan"))):
            (line,) = preparation.unknown(frame().with_columns(nothing.alias(column)), name="new")
            words = f"new: column {column!r} is empty in all 60 rows; all of them count as missing"
            assert line == words


def test_what_an_older_version_fitted_is_known_still() -> None:
    """Its names are as they were written, two of one value even; codes stay what they were."""
    names = ["10.0", "TRUE", "10", "Oslo"]
    column = {"kind": "categories", "name": "c", "names": names, "public": False}
    own = Preprocessing.from_state(json.loads(json.dumps({"columns": [column]})))
    new = pl.DataFrame({"c": ["10", "10.0", "true", "Oslo", "Rome", None]})
    assert own(raw_matrix(new, own.columns, own.levels))[:, 0].tolist() == [1, 1, 2, 4, 0, 0]
    assert own.cardinalities == (5,)


def test_texts_of_a_parquet_file_are_as_those_of_a_csv_file(tmp_path: Path) -> None:
    """A label that is blank is missing, a name has no blanks around it, nor has a number."""
    rows = {"job": [" cook", "", None, "x "] * 5, "n": ["1", " 2", "", "3"] * 5}
    table = pl.DataFrame({**rows, "y": ["a", "b", "b", " a"] * 5})
    for name in ("people.PARQUET", "people.csv"):
        write = table.write_csv if name.endswith(".csv") else table.write_parquet
        write(tmp_path / name)
        options = DataConfig(name="table", path=tmp_path / name, label="y", parties=1)
        data = prepare(options, Stream.from_seed(0))
        assert data.class_names == ("a", "b")
        (own,) = data.preparation.parties.values()
        found = own(raw_matrix(read(tmp_path / name), own.columns, own.levels))
        assert found[:4, 0].tolist() == [1, 0, 0, 2]
        assert found[:4, 2].tolist() == [0, 0, 1, 0]  # what is missing
    for kind in (pl.String, pl.Categorical, pl.Enum(["a", " ", "b"])):
        label = pl.Series(["a", " ", "b", "a"], dtype=pl.String).cast(kind)
        table[:4].with_columns(y=label).write_parquet(tmp_path / "people.PARQUET")
        options = DataConfig(name="table", path=tmp_path / "people.PARQUET", label="y")
        with pytest.raises(DataError, match=r"label 'y' is missing in 1 of 4 rows: row 2"):
            prepare(options, Stream.from_seed(0))


def test_whoever_scores_hears_of_strangers_once(tmp_path: Path) -> None:
    """The holder of the column alone, once for each column, however many ask."""
    data = DataConfig(name="table", path=_csv(frame(), tmp_path / "train"), label="y", parties=1)
    preparation = prepare(data, Stream.from_seed(0)).preparation
    (own,) = preparation.parties.values()
    odd = frame().with_columns(job=pl.lit("17"), key=pl.int_range(pl.len()).cast(pl.String))
    table = FileTable(_csv(odd, tmp_path / "new"), "key", CsvFormat())
    said: list[str] = []
    lookup = Lookup(table, own, said.append)
    for _ in range(2):
        places, _ = lookup.features([str(place) for place in range(20)])
        assert len(places) == 20
    assert len(said) == 1
    assert "20 of 20 values of 'job', such as '17', are no category" in said[0]
