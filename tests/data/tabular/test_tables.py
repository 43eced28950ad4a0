"""A CSV or Parquet file of one's own."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from vertizo.core.errors import UserError
from vertizo.core.randomness import Stream
from vertizo.data.datasets import catalog
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.prepare import prepare
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Classification, Regression

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str | bytes, name: str = "people.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return put


def load(path: Path, label: str = "y", **more: Any) -> Pooled:
    return catalog.load("table", None, options(path, label, **more))


def options(path: Path, label: str = "y", **more: Any) -> DataConfig:
    return DataConfig(name="table", path=path, label=label, **more)


def refusal(path: Path, label: str = "y", **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        prepare(options(path, label, **more), Stream.from_seed(0))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def csv(rows: int = 20, delimiter: str = ",") -> str:
    lines = ["age,job,city,y"]
    lines += [f"{20 + i},{'cook' if i % 3 else 'nurse'},c{i % 4},{i % 2}" for i in range(rows)]
    return "\n".join(lines).replace(",", delimiter) + "\n"


def values(pooled: Pooled, column: str) -> list[Any]:
    """A column of the training rows as it was in the file, None where missing."""
    assert pooled.columns is not None
    assert pooled.levels is not None
    numbers = pooled.train[:, pooled.columns.index(column)].tolist()
    names = pooled.levels.get(column)
    return [None if n != n else n if names is None else names[int(n)] for n in numbers]


def two(write: Write, train: str, test: str, **more: Any) -> Pooled:
    return load(write(train), test_path=write(test, "test.csv"), **more)


class TestCsv:
    def test_numbers_text_and_classes(self, write: Write) -> None:
        pooled = load(write(csv(20)))
        assert pooled.kind == "table"
        assert pooled.columns == ("age", "job", "city")
        assert pooled.levels == {"job": ("cook", "nurse"), "city": ("c0", "c1", "c2", "c3")}
        assert isinstance(pooled.task, Classification)
        assert pooled.class_names == ("0", "1")
        assert pooled.train.shape == (16, 3)
        assert pooled.test.shape == (4, 3)
        for rows, labels in (
            (pooled.train, pooled.train_labels),
            (pooled.test, pooled.test_labels),
        ):
            assert labels.dtype == torch.int64
            assert ((rows[:, 0] - 20) % 2).tolist() == labels.tolist()
        assert sorted([*pooled.train[:, 0], *pooled.test[:, 0]]) == [20 + i for i in range(20)]

    def test_the_test_rows_are_the_same_in_every_run(self, write: Write) -> None:
        path = write(csv(20))
        assert torch.equal(load(path).test, load(path).test)
        assert load(path, test=0.5).test.shape[0] == 10
        data = [prepare(options(path, parties=3), Stream.from_seed(s)) for s in (0, 1)]
        assert torch.equal(data[0].labels["test"], data[1].labels["test"])

    @pytest.mark.parametrize("name", ["people.csv.gz", "people.csv"])
    def test_compressed(self, name: str, write: Write) -> None:
        assert load(write(gzip.compress(csv().encode()), name)).train.shape == (16, 3)

    @pytest.mark.parametrize("delimiter", [";", "\t", "|"])
    def test_delimiters(self, delimiter: str, write: Write) -> None:
        path = write(csv(delimiter=delimiter))
        assert load(path, delimiter=delimiter).columns == ("age", "job", "city")
        text = refusal(path, parties=2)
        assert f"is data.delimiter {delimiter!r}?" in text
        assert str(path) in text

    def test_missing_values_and_spaces(self, write: Write) -> None:
        text = 'a,b,y\n 1 , x ,p\n?,NA,p\n,,q\nnan,"",q\n3, x y,p\n'
        pooled = two(write, text, text)
        assert values(pooled, "a") == [1, None, None, None, 3]
        assert values(pooled, "b") == ["x", None, None, None, "x y"]
        assert pooled.class_names == ("p", "q")

    def test_blank_lines_are_no_records(self, write: Write) -> None:
        text = "a,y\n1,p\n\n2,q\n\n\n"
        assert values(two(write, text, text), "a") == [1, 2]

    def test_quotes_line_ends_and_a_byte_order_mark(self, write: Write) -> None:
        pooled = load(write('\ufeff"a","y"\r\n"1,5","u"\r\n"line\n2","v"\r\n'))
        assert pooled.columns == ("a",)
        assert pooled.levels == {"a": ("1,5", "line\n2")}

    def test_numbers_that_are_categories(self, write: Write) -> None:
        pooled = load(write("z,a,y\n10,1,p\n9,2,q\n9,3,q\n"), categorical=["z"])
        assert pooled.levels == {"z": ("9", "10")}
        pooled = load(write("z,a,y\n10,1,p\n9,2,q\n"), categories={"z": [9, 10]})
        assert pooled.levels == {"z": ("9", "10")}

    def test_dropped_columns(self, write: Write) -> None:
        assert load(write(csv()), drop=["job"]).columns == ("age", "city")

    def test_a_column_without_values(self, write: Write) -> None:
        path = write("a,b,y\n,1,p\n,2,q\n,3,q\n,4,p\n,5,p\n")
        data = prepare(options(path, parties=2, validation=0), Stream.from_seed(0))
        assert data.features[0]["table"].tolist() == [[0, 1]] * 4

    def test_a_hundred_thousand_different_texts(self, write: Write) -> None:
        path = write("id,a,y\n" + "".join(f"u{i},{i},{i % 2}\n" for i in range(20_000)))
        data = prepare(options(path, parties=2), Stream.from_seed(0))
        assert data.cardinalities == ((1001,), ())

    def test_parties_by_name(self, write: Write) -> None:
        columns = {"bank": ["age"], "shop": ["city", "job"]}
        data = prepare(options(write(csv()), columns=columns), Stream.from_seed(0))
        assert isinstance(data, VerticalData)
        assert data.parties == ("bank", "shop")
        assert data.cardinalities == ((), (5, 3))
        assert data.class_names == ("0", "1")


class TestTwoFiles:
    def test_columns_in_another_order_and_more_of_them(self, write: Write) -> None:
        pooled = two(write, "a,b,y\n1,x,p\n2,z,q\n", "y,extra,b,a\nq,9,w,7\n")
        assert pooled.test.tolist() == [[7, 0]]
        assert pooled.levels == {"b": ("w", "x", "z")}
        assert pooled.test_labels.tolist() == [1]

    def test_text_that_looks_like_numbers_in_the_test_file(self, write: Write) -> None:
        pooled = two(write, "a,y\nx,p\n7,q\n", "a,y\n7,p\n")
        assert pooled.levels == {"a": ("7", "x")}

    @pytest.mark.parametrize(
        ("train", "test", "words"),
        [
            ("age,y\n1,p\n2,q\n", "agee,y\n1,p\n", ["'age'", "did you mean 'agee'?"]),
            ("age,y\n1,p\n2,q\n", "age,y\nold,p\n", ["'age'", "'old'", "numbers"]),
            ("age,y\n1,p\n2,q\n", "age,y\n1,r\n", ["'y'", "'r'", "people.csv"]),
            ("age,y\n1,p\n2,q\n", "age,y\n1,\n", ["'y'", "missing in 1 of 1"]),
            ("age,y\n1,1.5\n2,2.5\n", "age,y\n1,p\n", ["'y'", "'p'"]),
        ],
        ids=["column", "text", "class", "no label", "text for a number"],
    )
    def test_a_test_file_that_does_not_fit(
        self, train: str, test: str, words: list[str], write: Write
    ) -> None:
        text = refusal(write(train), test_path=write(test, "test.csv"), parties=1)
        for word in (*words, "test.csv"):
            assert word in text


class TestTask:
    @pytest.mark.parametrize(
        ("labels", "kind", "names"),
        [
            (["no", "yes", "no"], Classification, ("no", "yes")),
            ([10, 9, 9], Classification, ("9", "10")),
            (["1.0", "0.0", "1.0"], Classification, ("0.0", "1.0")),
            ([0.5, 1.5, 0.5], Regression, None),
            (range(20), Classification, tuple(str(i) for i in range(20))),
            (range(21), Regression, None),
        ],
    )
    def test_what_is_inferred(
        self, labels: Any, kind: type, names: tuple[str, ...] | None, write: Write
    ) -> None:
        text = "a,y\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels))
        pooled = two(write, text, text)
        assert isinstance(pooled.task, kind)
        assert pooled.class_names == names
        if kind is Regression:
            assert pooled.train_labels.tolist() == [float(label) for label in labels]

    def test_what_is_said(self, write: Write) -> None:
        path = write("a,y\n1,1\n2,2\n3,1\n")
        assert isinstance(load(path, task="regression").task, Regression)
        path = write("a,y\n1,1.5\n2,2.5\n3,1.5\n")
        assert load(path, task="classification").class_names == ("1.5", "2.5")
        path = write("a,y\n1,1\n2,tall\n3,1\n")
        text = refusal(path, task="regression", parties=1)
        for word in ("data.task", "'y'", "'tall'"):
            assert word in text

    def test_a_label_range_is_for_a_regression(self, write: Write) -> None:
        """Numbers become one, however few there are; text cannot."""
        numbers, words = (
            write("a,b,y\n" + "1,2,0\n3,4,1\n" * 9),
            "a,b,y\n" + "1,2,no\n3,4,yes\n" * 9,
        )
        found = prepare(options(numbers, parties=2, label_range=[0, 1]), Stream.from_seed(0))
        assert isinstance(found.task, Regression)
        words = write("a,b,y\n" + "1,2,no\n3,4,yes\n" * 9)
        assert "holds 'no' in line 2" in refusal(words, parties=2, label_range=[0, 1])

    def test_whether_the_classes_are_public(self, write: Write) -> None:
        """Read off the labels, one label may change the model's size: no guarantee stands on it."""
        path = write("a,b,y\n" + "1,2,no\n3,4,yes\n" * 9)
        found = prepare(options(path, parties=2), Stream.from_seed(0))
        assert (found.fitted_labels, found.class_names) == (True, ("no", "yes"))
        public = options(path, parties=2, classes=["yes", "no", "perhaps"])
        found = prepare(public, Stream.from_seed(0))
        assert (found.fitted_labels, found.class_names) == (False, ("yes", "no", "perhaps"))
        assert found.task.outputs == 3
        assert found.labels["table"].unique().tolist() == [0, 1]
        line = refusal(path, parties=2, classes=["yes", "perhaps"])
        for words in ("'no'", "data.classes", "'perhaps'"):
            assert words in line

    def test_numbers_as_public_classes(self, write: Write) -> None:
        path = write("a,b,y\n" + "1,2,0\n3,4,1\n" * 9)
        found = prepare(options(path, parties=2, classes=[0, 1]), Stream.from_seed(0))
        assert isinstance(found.task, Classification)
        assert not found.fitted_labels

    def test_public_bounds_of_a_regression(self, write: Write) -> None:
        path = write("a,b,y\n" + "1,2,0.5\n3,4,1.5\n" * 9)
        for more, fitted in (({}, True), ({"label_range": [0, 2]}, False)):
            found = prepare(options(path, parties=2, **more), Stream.from_seed(0))
            assert found.fitted_labels is fitted


class TestParquet:
    def test_types(self, tmp_path: Path) -> None:
        frame = pl.DataFrame(
            {
                "int": [1, None, 3, 4],
                "float": [0.5, float("nan"), None, 2],
                "text": ["a", None, "b", "a"],
                "bool": [True, False, None, True],
                "kind": pl.Series(["u", "v", "u", None], dtype=pl.Categorical),
                "y": [1.0, 2.0, 1.0, 2.0],
            }
        )
        frame.write_parquet(tmp_path / "a [1].parquet")
        path = tmp_path / "a [1].parquet"
        pooled = load(path, test_path=path)
        assert values(pooled, "int") == [1, None, 3, 4]
        assert values(pooled, "float") == [0.5, None, None, 2]
        assert values(pooled, "text") == ["a", None, "b", "a"]
        assert values(pooled, "bool") == ["true", "false", None, "true"]
        assert values(pooled, "kind") == ["u", "v", "u", None]
        assert pooled.class_names == ("1", "2")

    def test_one_fraction_leaves_the_other_categories_names_alone(self, tmp_path: Path) -> None:
        path, test = tmp_path / "a.parquet", tmp_path / "b.parquet"
        pl.DataFrame({"a": [1.0, 2.0], "y": [0, 1]}).write_parquet(path)
        pl.DataFrame({"a": [2.0, 1.5], "y": [0, 1]}).write_parquet(test)
        pooled = load(path, test_path=test, categorical=["a"])
        assert pooled.levels == {"a": ("1", "1.5", "2")}

    def test_categories_of_floats(self, tmp_path: Path) -> None:
        pl.DataFrame({"a": [1.0, 10.0, None, 2.0], "y": [0, 1, 0, 1]}).write_parquet(
            tmp_path / "a.parquet"
        )
        assert load(tmp_path / "a.parquet", categorical=["a"]).levels == {"a": ("1", "2", "10")}

    @pytest.mark.parametrize(
        ("column", "word"),
        [
            (pl.Series([[1], [2]]), "List"),
            (pl.Series([1, 2]).cast(pl.Date), "dates, such as '1970-01-02' in row 1"),
            (pl.Series([float("inf"), 1]), "inf"),
            (pl.Series([1e39, 1]), "1e+39"),
        ],
        ids=["list", "date", "infinite", "huge"],
    )
    def test_what_is_neither_number_nor_text(
        self, column: pl.Series, word: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.parquet"
        pl.DataFrame({"when": column, "b": [1, 2], "y": ["p", "q"]}).write_parquet(path)
        text = refusal(path, parties=1)
        for expected in ("'when'", word, str(path)):
            assert expected in text
        assert load(path, drop=["when"]).columns == ("b",)

    def test_not_parquet(self, write: Write) -> None:
        path = write("a,b\n1,2\n", "a.parquet")
        text = refusal(path, parties=1)
        assert str(path) in text
        assert "Parquet" in text

    def test_half_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        pl.DataFrame({"a": np.arange(999), "y": np.arange(999) % 2}).write_parquet(path)
        path.write_bytes(path.read_bytes()[:-50])
        assert "Parquet" in refusal(path, parties=1)


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", ["empty"]),
            ("a,y\n", ["no rows", "a, y"]),
            ("a,y\n1,p\n", ["1 row"]),
            ("a,y\n1,p\n2,p\n", ["'y'", "'p' in every row"]),
            ("a,y\n1,p\n2,\n3,NA\n", ["'y'", "missing in 2 of 3"]),
            ("a,y\n,\n,\n", ["no rows"]),
            ("a,b,y\n1,2,p\n1,2,p,9\n", ["line 3", "4 values", "3"]),
            ("a,b,y\n1,2,p\n1,2\n1,2,q\n", ["line 3", "2 values", "3"]),
            ("a,a,y\n1,2,p\n1,2,q\n", ["two columns named 'a'"]),
            ("y\np\nq\n", ["'y'", "no column"]),
            ("a,y\n1e999,p\n1,q\n", ["'a'", "inf"]),
            (b"a,y\n\xff\xfe,p\n1,q\n", ["UTF-8"]),
            (b"a,y\n" + "é".encode("latin-1") + b",p\n1,q\n", ["UTF-8"]),
            (gzip.compress(b"a,y\n1,p\n" * 999)[:40], ["people.csv"]),
        ],
        ids=[
            "empty",
            "header only",
            "one row",
            "one class",
            "labels missing",
            "all missing",
            "long line",
            "short line",
            "name twice",
            "label only",
            "infinite",
            "not text",
            "latin-1",
            "half a gzip",
        ],
    )
    def test_one_line(self, text: str | bytes, words: list[str], write: Write) -> None:
        path = write(text)
        found = refusal(path, parties=1)
        for word in (*words, str(path)):
            assert word in found

    def test_no_file(self, tmp_path: Path) -> None:
        assert "missing" in refusal(tmp_path / "a.csv")
        assert "folder" in refusal(tmp_path)

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"label": "yy"}, ["data.label", "'yy'"]),
            ({"label": "aeg"}, ["did you mean 'age'?"]),
            ({"drop": ["jobs"]}, ["data.drop", "did you mean 'job'?"]),
            ({"categorical": ["q"]}, ["data.categorical", "'q'", "age, job, city, y"]),
            ({"categories": {"job": ["chef"]}}, ["data.categories.job", "'cook'"]),
            ({"ranges": {"jbo": [0, 1]}}, ["data.ranges", "did you mean 'job'?"]),
            ({"columns": {"a": ["jobb"]}, "parties": None}, ["data.columns", "'jobb'", "'job'"]),
            ({"parties": None}, ["data.columns", "data.parties"]),
            ({"drop": ["age", "job", "city"]}, ["no column"]),
        ],
    )
    def test_keys_that_do_not_fit_the_file(
        self, more: dict[str, Any], words: list[str], write: Write
    ) -> None:
        found = refusal(write(csv()), **{"parties": 2, **more})
        for word in words:
            assert word in found


class TestWhatNobodyHolds:
    """With data.columns, a column that no party names may hold anything."""

    def test_it_is_not_looked_at(self, tmp_path: Path) -> None:
        frame = pl.DataFrame(
            {"a": [1, 2, 3, 4], "b": [1, 0, 1, 0], "huge": [1e300] * 4, "y": list("uvuv")}
        ).with_columns(date=pl.lit("2020-01-02").str.to_date())
        path = tmp_path / "t.parquet"
        frame.write_parquet(path)
        columns = {"one": ["a"], "two": ["b"]}
        found = prepare(options(path, columns=columns), Stream.from_seed(0))
        assert found.parties == ("one", "two")
        assert "'date'" in refusal(path, columns={"one": ["a"], "two": ["date"]})
        line = refusal(path, columns={"one": ["a"], "two": ["bb"]})
        assert "'bb'" in line
        assert "'b'" in line


def test_an_identifier_is_no_label(write: Write) -> None:
    lines = "a,b,y\n" + "".join(f"1,2,C{i}\n" for i in range(60))
    assert "identifier" in refusal(write(lines), parties=2)


def test_an_identifier_that_is_missing_or_there_twice_changes_no_other_key(tmp_path: Path) -> None:
    """Or one careless row would make strangers of all whom a ledger is charged for."""

    def keys(*more: str) -> list[str]:
        rows = [f"{number},{number % 3},{number % 2}" for number in range(20)]
        path = tmp_path / "people.csv"
        path.write_text("\n".join(["person,a,y", *rows, *more]) + "\n")
        options = DataConfig(
            name="table", path=path, label="y", id="person", columns={"a": ["a"]}, validation=0
        )
        found = prepare(options, Stream.from_seed(0)).keys
        assert found is not None
        return found()

    people = set(keys())
    assert people <= {str(number) for number in range(20)}
    for row in ("3,2,1", ",2,1"):
        assert len(people & set(keys(row))) > 10
