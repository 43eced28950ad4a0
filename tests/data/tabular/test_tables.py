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
from tests.data.refusals import refused

from vertizo.core.errors import UserError
from vertizo.core.randomness import Stream
from vertizo.data.datasets import catalog
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.data.prepare import prepare
from vertizo.data.prepared import Preparation
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


def refuse(words: list[str], path: Path, label: str = "y", **more: Any) -> str:
    return refused(words, UserError, prepare, options(path, label, **more), Stream.from_seed(0))


def made(path: Path, **more: Any) -> VerticalData:
    return prepare(options(path, **more), Stream.from_seed(0))


def csv(rows: int = 20, delimiter: str = ",") -> str:
    lines = ["age,job,city,y"]
    lines += [f"{20 + i},{'cook' if i % 3 else 'nurse'},c{i % 4},{i % 2}" for i in range(rows)]
    return "\n".join(lines).replace(",", delimiter) + "\n"


def values(pooled: Pooled, column: str) -> list[Any]:
    """A column of the training rows as it was in the file, None where missing."""
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

    def test_options_of_the_file_and_the_same_test_rows_in_every_run(self, write: Write) -> None:
        path = write(csv(20))
        assert torch.equal(load(path).test, load(path).test)
        assert load(path, test=0.5).test.shape[0] == 10
        assert load(path, drop=["job"]).columns == ("age", "city")
        data = [prepare(options(path, parties=3), Stream.from_seed(s)) for s in (0, 1)]
        assert torch.equal(data[0].labels["test"], data[1].labels["test"])

    def test_compression_and_delimiters(self, write: Write) -> None:
        for name in ("people.csv.gz", "people.csv"):
            assert load(write(gzip.compress(csv().encode()), name)).train.shape == (16, 3)
        for delimiter in (";", "\t", "|"):
            path = write(csv(delimiter=delimiter))
            assert load(path, delimiter=delimiter).columns == ("age", "job", "city")
            refuse([f"is data.delimiter {delimiter!r}?", str(path)], path, parties=2)
            quoted = write(csv(delimiter=f'"{delimiter}"').replace("\n", '"\n"'))
            quoted.write_text('"' + quoted.read_text()[:-1])
            refuse([f"is data.delimiter {delimiter!r}?", '"age'], quoted, parties=2)
            assert load(quoted, delimiter=delimiter).columns == ("age", "job", "city")

    def test_files_of_western_programs(self, write: Write) -> None:
        """The euro and a dash are no Latin-1; what is UTF-8 is not taken for it."""
        text = "age;amount;y\n1;5 €;œuf\n2;5 €;né\n3;–;né\n"
        path = write(text.encode("cp1252"))
        western: dict[str, Any] = {"delimiter": ";", "encoding": "cp1252"}
        assert load(path, **western).class_names == ("né", "œuf")
        hint = "if it is of a Western language, set data.encoding to cp1252"
        refuse(["not UTF-8", "line 2 holds the byte 0x80", hint], path, delimiter=";")
        refuse(["UTF-8 text", "data.encoding to utf-8"], write(text.encode()), **western)
        refuse(["not CP1252", "0x81"], write(text.encode("cp1252") + b"4;\x81;n\n"), **western)

    def test_encodings(self, write: Write) -> None:
        """Values whose second bytes are a bar and a backslash, and one of four bytes."""
        text = '编号|城市|y\n1|丂俓𠀀|是\n2|北京|否\n3|"上\n海"|是\n'
        for pack in (bytes, gzip.compress):
            path = write(pack(text.encode("gb18030")))
            pooled = load(path, delimiter="|", encoding="gb18030")
            assert pooled.columns == ("编号", "城市")
            assert pooled.levels == {"城市": ("丂俓𠀀", "上\n海", "北京")}
            assert pooled.class_names == ("否", "是")
            words = ["not UTF-8", "line 1 holds the byte 0xb1, number 1 of", "to gb18030"]
            refuse([*words, "Chinese", str(path)], path, delimiter="|")
        late = "a|y\n" + 1999 * "1|p\n" + "1|中国人\n"
        chinese: dict[str, Any] = {"delimiter": "|", "encoding": "gb18030"}
        rows = [
            (late.encode(), ["not GB18030", "line 2001", "to utf-8"]),
            ("a|y\n1|p\n".encode("utf-8-sig"), ["UTF-8 text", "data.encoding to utf-8"]),
            ("编号|y\n1|p\n".encode(), ["UTF-8 text", "data.encoding to utf-8"]),
            (b"a|y\n1|p\n\xff|q\n", ["not GB18030", "line 3 holds the byte 0xff, number 9"]),
            ("a|b|y\n1|中|p\n1|p\n".encode("gb18030"), ["line 3", "2 values"]),
        ]
        for content, wanted in rows:
            refuse(wanted, write(content), **chinese)

    def test_missing_values_and_spaces(self, write: Write) -> None:
        text = 'a,b,y\n 1 , x ,p\n?,NA,p\n,,q\nnan,"",q\n3, x y,p\n'
        pooled = two(write, text, text)
        assert values(pooled, "a") == [1, None, None, None, 3]
        assert values(pooled, "b") == ["x", None, None, None, "x y"]
        assert pooled.class_names == ("p", "q")
        text = "a,y\n1,p\n\n2,q\n\n\n"  # blank lines are no records
        assert values(two(write, text, text), "a") == [1, 2]

        # Quotes, line ends, and a byte order mark.
        pooled = load(write('\ufeff"a","y"\r\n"1,5","u"\r\n"line\n2","v"\r\n'))
        assert pooled.columns == ("a",)
        assert pooled.levels == {"a": ("1,5", "line\n2")}

    def test_numbers_that_are_categories(self, write: Write) -> None:
        pooled = load(write("z,a,y\n10,1,p\n9,2,q\n9,3,q\n"), categorical=["z"])
        assert pooled.levels == {"z": ("9", "10")}
        pooled = load(write("z,a,y\n10,1,p\n9,2,q\n"), categories={"z": [9, 10]})
        assert pooled.levels == {"z": ("9", "10")}

    def test_a_column_without_values_and_one_of_very_many(self, write: Write) -> None:
        path = write("a,b,y\n,1,p\n,2,q\n,3,q\n,4,p\n,5,p\n")
        data = made(path, parties=2, validation=0)
        assert data.features[0]["train"].tolist() == [[0, 1]] * 4
        path = write("id,a,y\n" + "".join(f"u{i},{i},{i % 2}\n" for i in range(20_000)))
        data = made(path, parties=2)
        assert data.cardinalities == ((1001,), ())

    def test_parties_by_name(self, write: Write) -> None:
        columns = {"bank": ["age"], "shop": ["city", "job"]}
        data = made(write(csv()), columns=columns)
        assert data.parties == ("bank", "shop")
        assert data.cardinalities == ((), (5, 3))
        assert data.class_names == ("0", "1")


class TestTwoFiles:
    def test_columns_in_another_order_and_more_of_them(self, write: Write) -> None:
        pooled = two(write, "a,b,y\n1,x,p\n2,z,q\n", "y,extra,b,a\nq,9,w,7\n")
        assert pooled.test.tolist() == [[7, 0]]
        assert pooled.levels == {"b": ("w", "x", "z")}
        assert pooled.test_labels.tolist() == [1]
        # Text that looks like numbers in the test file.
        pooled = two(write, "a,y\nx,p\n7,q\n", "a,y\n7,p\n")
        assert pooled.levels == {"a": ("7", "x")}

    def test_a_test_file_that_does_not_fit(self, write: Write) -> None:
        train, real = "age,y\n1,p\n2,q\n", "age,y\n1,1.5\n2,2.5\n"
        rows = [
            (train, "agee,y\n1,p\n", ["'age'", "did you mean 'agee'?"]),
            (train, "age,y\nold,p\n", ["'age'", "'old'", "numbers"]),
            (train, "age,y\n1,r\n", ["'y'", "'r'", "people.csv"]),
            (train, "age,y\n1,\n", ["'y'", "missing in 1 of 1"]),
            (real, "age,y\n1,p\n", ["'y'", "'p'"]),
        ]
        for own, test, words in rows:
            path = write(test, "test.csv")
            refuse([*words, "test.csv"], write(own), test_path=path, parties=1)


class TestTask:
    def test_what_is_inferred(self, write: Write) -> None:
        for labels, names in (
            (["no", "yes", "no"], ("no", "yes")),
            ([10, 9, 9], ("9", "10")),
            (["1.0", "0.0", "1.0"], ("0", "1")),
            ([0.5, 1.5, 0.5], None),
            (range(20), tuple(str(i) for i in range(20))),
            (range(21), None),
        ):
            text = "a,y\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels))
            pooled = two(write, text, text)
            assert isinstance(pooled.task, Classification if names else Regression), labels
            assert pooled.class_names == names
            if names is None:
                assert pooled.train_labels.tolist() == [float(label) for label in labels]

    def test_what_is_said(self, write: Write) -> None:
        path = write("a,y\n1,1\n2,2\n3,1\n")
        assert isinstance(load(path, task="regression").task, Regression)
        path = write("a,y\n1,1.5\n2,2.5\n3,1.5\n")
        assert load(path, task="classification").class_names == ("1.5", "2.5")
        path = write("a,y\n1,1\n2,tall\n3,1\n")
        refuse(["data.task", "'y'", "'tall'"], path, task="regression", parties=1)

    def test_labels_that_are_probably_not_meant_so(self, write: Write) -> None:
        path = write("a,y\n" + "1,yes\n2,YES\n3,no\n" * 9)
        (note,) = load(path).notes
        assert note == f"{path}: the label 'y' has the classes 'YES' and 'yes'; are they one?"
        path = write("a,y\n" + "1,0.1\n2,0.9\n" * 9)
        (note,) = load(path).notes
        assert "the label 'y' has the values 0.1 and 0.9 alone, learnt as numbers" in note
        assert load(path, task="regression").notes == ()
        for labels in ("yes,no", "0.1,0.2,0.3"):
            rows = (f"{i % 5},{label}\n" for i, label in enumerate(9 * labels.split(",")))
            assert load(write("a,y\n" + "".join(rows))).notes == ()

    def test_advice_on_a_label_is_for_a_label(self, write: Write) -> None:
        """It is in no list of features, so that it cannot be named there."""
        lines = [f"{i},{i},{i}.5" for i in range(30)]
        for last, words in (
            ("1,2,tall", "'tall' in line 32, where 30 of 31 values are numbers"),
            ("1,2,$1234.5", "write numbers with a decimal point"),
            (None, "holds dates, such as '2020-01-01'"),
        ):
            days = [f"1,{i},2020-01-{i:02}" for i in range(1, 29)]
            path = write("\n".join(["a,b,y", *(days if last is None else [*lines, last])]))
            refuse([words, "set data.task to classification"], path, parties=1)
        pl.DataFrame({"a": [1, 2], "y": [[1], [2]]}).write_parquet(path := write("", "x.parquet"))
        refuse(["List(Int64)", "name another column in data.label"], path, parties=1)

    def test_no_advice_makes_a_class_of_what_is_missing(self, write: Write) -> None:
        lines = [f"{i},{i},{i}.5" for i in range(30)]
        for nothing in ("None", "NaT", "-", "unknown"):
            for last in (f"1,{nothing},1.5", f"1,2,{nothing}"):
                path = write("\n".join(["a,b,y", *lines, last]))
                words = [repr(nothing), "leave it empty if nothing is known"]
                line = refuse(words, path, parties=1)
                assert line.endswith("nothing is known")

    def test_numbers_that_rounding_would_level_are_refused(self, write: Write) -> None:
        """Seconds since 1970 are 128 apart in float32: all of a minute would be one."""
        for start, step, said in ((1.7e9, 1, "1700000000,"), (-3e7, 0.01, "-30000000,")):
            path = write("a,y\n" + "".join(f"{i},{start + step * i:.2f}\n" for i in range(99)))
            words = ["the label 'y' has values near", said, "subtract a constant"]
            refuse(words, path, parties=1, task="regression")
        for start, step in ((1.7e9, 86400.0), (0.0, 1e-9), (16777216, 100.0), (1e30, 1e28)):
            path = write("a,y\n" + "".join(f"{i},{start + step * i!r}\n" for i in range(99)))
            data = made(path, parties=1, task="regression")
            assert isinstance(data.task, Regression)
            assert data.task.spread == pytest.approx(step * 28, rel=0.2)
        constant = write("a,y\n" + "".join(f"{i},0.1\n" for i in range(99)))
        assert made(constant, parties=1, task="regression").records > 0

    def test_a_label_range_is_for_a_regression(self, write: Write) -> None:
        """Numbers become one, however few there are; text cannot."""
        numbers = write("a,b,y\n" + "1,2,0\n3,4,1\n" * 9)
        assert isinstance(made(numbers, parties=2, label_range=[0, 1]).task, Regression)
        words = write("a,b,y\n" + "1,2,no\n3,4,yes\n" * 9)
        refuse(["holds 'no' in line 2"], words, parties=2, label_range=[0, 1])

    def test_the_positive_class(self, write: Write) -> None:
        """It changes what is measured, and no label's number."""
        path = write("a,b,y\n" + "1,2,no\n3,4,yes\n" * 9)
        plain, found = made(path, parties=2), made(path, parties=2, positive="no")
        assert (plain.positive, found.positive) == ("yes", "no")
        assert found.class_names == plain.class_names
        torch.testing.assert_close(found.labels["train"], plain.labels["train"])
        again = Preparation.from_json(found.preparation.to_json()).task
        assert isinstance(again, Classification)
        assert again.positive == 0
        refuse(["data.positive is 'on'", "'no' or 'yes'"], path, parties=2, positive="on")
        three = write("a,b,y\n" + "1,2,0\n3,4,1\n5,6,2\n" * 9)
        refuse(["data.positive is '1'", "3 classes"], three, parties=2, positive=1)
        values = write("a,b,y\n" + "1,2,0.5\n3,4,1.5\n" * 9)
        refuse(["data.positive is '1'", "a regression"], values, parties=2, positive=1)

    def test_whether_the_classes_are_public(self, write: Write) -> None:
        """Read off the labels, one label may change the model's size: no guarantee stands on it."""
        path = write("a,b,y\n" + "1,2,no\n3,4,yes\n" * 9)
        found = made(path, parties=2)
        assert (found.fitted_labels, found.class_names) == (True, ("no", "yes"))
        found = made(path, parties=2, classes=["yes", "no", "perhaps"])
        assert (found.fitted_labels, found.class_names) == (False, ("yes", "no", "perhaps"))
        assert found.task.outputs == 3
        assert found.labels["train"].unique().tolist() == [0, 1]
        words = ["'no'", "data.classes", "'perhaps'"]
        refuse(words, path, parties=2, classes=["yes", "perhaps"])
        numbers = write("a,b,y\n" + "1,2,0\n3,4,1\n" * 9)
        found = made(numbers, parties=2, classes=[0, 1])
        assert isinstance(found.task, Classification)
        assert not found.fitted_labels
        path = write("a,b,y\n" + "1,2,0.5\n3,4,1.5\n" * 9)
        assert made(path, parties=2).fitted_labels
        assert not made(path, parties=2, label_range=[0, 2]).fitted_labels


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
        path = tmp_path / "a [1].parquet"
        frame.write_parquet(path)
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

        pl.DataFrame({"a": [1.0, 10.0, None, 2.0], "y": [0, 1, 0, 1]}).write_parquet(path)
        assert load(path, categorical=["a"]).levels == {"a": ("1", "2", "10")}

    def test_what_is_neither_number_nor_text(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        for column, word in (
            (pl.Series([[1], [2]]), "List"),
            (pl.Series([float("inf"), 1]), "inf"),
            (pl.Series([1e39, 1]), "1e+39"),
        ):
            pl.DataFrame({"when": column, "b": [1, 2], "y": ["p", "q"]}).write_parquet(path)
            refuse(["'when'", word, str(path)], path, parties=1)
            assert load(path, drop=["when"]).columns == ("b",)

    def test_not_parquet_or_half_of_it(self, write: Write) -> None:
        path = write("a,b\n1,2\n", "a.parquet")
        refuse([str(path), "Parquet"], path, parties=1)
        pl.DataFrame({"a": np.arange(999), "y": np.arange(999) % 2}).write_parquet(path)
        path.write_bytes(path.read_bytes()[:-50])
        refuse(["Parquet"], path, parties=1)


class TestWrongFiles:
    def test_one_line(self, write: Write) -> None:
        rows: list[tuple[str | bytes, list[str]]] = [
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
            ("a,y\n" + "".join(f"1,C{i}\n" for i in range(60)), ["identifier"]),
            (b"a,y\n\xff\xfe,p\n1,q\n", ["UTF-8"]),
            (b"a,y\n" + "é".encode("latin-1") + b",p\n1,q\n", ["UTF-8"]),
            (gzip.compress(b"a,y\n1,p\n" * 999)[:40], ["people.csv"]),  # half a gzip
        ]
        for text, words in rows:
            path = write(text)
            refuse([*words, str(path)], path, parties=1)
        refuse(["missing"], path.with_name("a.csv"))
        refuse(["folder"], path.parent)

    def test_keys_that_do_not_fit_the_file(self, write: Write) -> None:
        rows: list[tuple[dict[str, Any], list[str]]] = [
            ({"label": "yy"}, ["data.label", "'yy'"]),
            ({"label": "aeg"}, ["did you mean 'age'?"]),
            ({"drop": ["jobs"]}, ["data.drop", "did you mean 'job'?"]),
            ({"categorical": ["q"]}, ["data.categorical", "'q'", "age, job, city, y"]),
            ({"categories": {"job": ["chef"]}}, ["data.categories.job", "'cook'"]),
            ({"ranges": {"jbo": [0, 1]}}, ["data.ranges", "did you mean 'job'?"]),
            ({"columns": {"a": ["jobb"]}, "parties": None}, ["data.columns", "'jobb'", "'job'"]),
            ({"parties": None}, ["data.columns", "data.parties"]),
            ({"drop": ["age", "job", "city"]}, ["no column"]),
        ]
        for more, words in rows:
            refuse(words, write(csv()), **{"parties": 2, **more})


def test_a_column_that_no_party_names_is_not_looked_at(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"a": [1, 2, 3, 4], "b": [1, 0, 1, 0], "huge": [1e300] * 4, "y": list("uvuv")}
    ).with_columns(date=pl.lit("2020-01-02").str.to_date())
    path = tmp_path / "t.parquet"
    frame.write_parquet(path)
    assert made(path, columns={"one": ["a"], "two": ["b"]}).parties == ("one", "two")
    refuse(["'huge'"], path, columns={"one": ["a"], "two": ["huge"]})
    refuse(["'bb'", "'b'"], path, columns={"one": ["a"], "two": ["bb"]})


def test_an_identifier_that_is_missing_or_there_twice_changes_no_other_key(write: Write) -> None:
    """Or one careless row would make strangers of all whom a ledger is charged for."""

    def keys(*more: str) -> list[str]:
        rows = [f"{number},{number % 3},{number % 2}" for number in range(20)]
        path = write("\n".join(["person,a,y", *rows, *more]) + "\n")
        return made(path, id="person", columns={"a": ["a"]}, validation=0).keys()

    people = set(keys())
    assert people <= {str(number) for number in range(20)}
    for row in ("3,2,1", ",2,1"):
        assert len(people & set(keys(row))) > 10
