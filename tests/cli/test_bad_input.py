"""What people bring by mistake: one line that says where and what to do, and nothing is left."""

from __future__ import annotations

import gzip
import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vertizo.core.errors import UserError
from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare
from vertizo.data.tabular import frames
from vertizo.data.tabular.csv_lines import records

ROWS = 40
HEADER = "customer,age,income,job,payment_delay,opened,defaulted"
CONFIG = """\
epochs: 1
batch_size: 8
data:
  name: table
  path: loans.csv
  id: customer
  label: defaulted
  columns:
    bank: [age, income]
    shop: [job]
    telecom: [payment_delay]
  label_holder: bank
"""
Change = Callable[[list[str]], list[str]]


def good() -> list[str]:
    """The lines of a table without a mistake."""
    rng = random.Random(0)
    lines = [HEADER]
    for row in range(ROWS):
        values = [
            f"C{row:03}",
            str(rng.randint(18, 70)),
            f"{rng.uniform(800, 4000):.2f}",
            rng.choice(["cook", "clerk", "nurse"]),
            str(rng.randint(0, 9)),
            f"20{rng.randint(10, 24)}-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}",
            rng.choice(["yes", "no", "no"]),
        ]
        lines.append(",".join(values))
    return lines


def table(*changes: Change) -> str:
    lines = good()
    for change in changes:
        lines = change(lines)
    return "\n".join(lines) + "\n"


def cell(line: int, column: str, value: str) -> Change:
    """Another value in one line of the file, counted from 1."""

    def change(lines: list[str]) -> list[str]:
        values = lines[line - 1].split(",")
        values[HEADER.split(",").index(column)] = value
        return [*lines[: line - 1], ",".join(values), *lines[line:]]

    return change


def column(name: str, value: Callable[[str], str]) -> Change:
    """Other values in all lines but the header."""
    place = HEADER.split(",").index(name)

    def change(lines: list[str]) -> list[str]:
        rows = [line.split(",") for line in lines[1:]]
        changed = [[*row[:place], value(row[place]), *row[place + 1 :]] for row in rows]
        return [lines[0], *map(",".join, changed)]

    return change


def line(number: int, text: str) -> Change:
    return lambda lines: [*lines[: number - 1], text, *lines[number:]]


def packed(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, table())
    return content.getvalue()


def parquet(frame: pl.DataFrame) -> bytes:
    content = io.BytesIO()
    frame.write_parquet(content)
    return content.getvalue()


FILES: dict[str, tuple[str | bytes, list[str]]] = {
    "a date among the features": (
        table().replace("payment_delay", "seen", 1).replace("opened", "payment_delay", 1),
        ["loans.csv", "'payment_delay' holds dates, such as '20", "line 2", "data.categorical"],
    ),
    "a word in a column of numbers": (
        table(cell(7, "income", "n.k.")),
        ["loans.csv: column 'income' holds 'n.k.' in line 7", "39 of 40 values are numbers"],
    ),
    "two words in a column of numbers": (
        table(cell(7, "income", "n.k."), cell(9, "income", "none")),
        ["'n.k.' in line 7 (and 1 more)", "leave it empty"],
    ),
    "a word behind a value of three lines": (
        table(cell(4, "job", '"night\nshift\ncook"'), lambda lines: cell(9, "age", "old")(lines)),
        ["column 'age' holds 'old' in line 11"],
    ),
    "decimal commas": (
        table(column("income", lambda text: text.replace(".", ";")))
        .replace(",", ":")
        # A comma within, semicolons between.
        .replace(";", ",")
        .replace(":", ";"),
        ["data.delimiter ';'"],
    ),
    "thousands separators": (
        table(column("income", lambda text: f'"1,{text[-6:]}"')),
        ["column 'income' holds '1,", "in line 2", "as 1234.5"],
    ),
    "percentages": (table(column("age", lambda text: f"{text} %")), ["'age'", " %' in line 2"]),
    "an infinite number": (table(cell(5, "income", "inf")), ["'income' holds inf in line 5"]),
    "a number beyond all bounds": (table(cell(5, "age", "9" * 60)), ["'age'", "in line 5"]),
    "too many values": (table(line(5, "C1,1,2,3,4,5,6,7")), ["line 5 has 8 values where 7"]),
    "too few values": (table(line(5, "C1,1,2")), ["line 5 has 3 values where 7 are expected"]),
    "an open quote": (table(cell(6, "job", '"cook')), ["line 6 opens a quote"]),
    "text behind a quote": (table(cell(6, "job", '"cook"s')), ["line 6 has text behind"]),
    "Latin-1": (
        table(cell(6, "job", "Köchin")).encode("latin-1"),
        ["not UTF-8", "line 6", "0xf6", "save it as UTF-8"],
    ),
    "UTF-16": (table().encode("utf-16"), ["UTF-16", "UTF-8"]),
    "UTF-16 without a mark": (table().encode("utf-16-le"), ["not text", "UTF-8"]),
    "two columns of one name": (
        table(line(1, HEADER.replace("opened", "age"))),
        ["two columns named 'age', numbers 2 and 6"],
    ),
    "a column without a name": (
        table(line(1, HEADER.replace("customer", ""))),
        ["line 1", "no name for column 1 of 7", "index=False"],
    ),
    "no header": (table(lambda lines: lines[1:]), ["'defaulted'", "does the first line name"]),
    "no header, numbers alone": ("35,1200.5,0\n36,1300.5,1\n", ["numbers only, 35, 1200.5, 0"]),
    "semicolons": (table().replace(",", ";"), ["one column only", "data.delimiter ';'"]),
    "tabs": (table().replace(",", "\t"), ["one column only", r"data.delimiter '\t'"]),
    "Excel's first line": ("sep=;\n" + table().replace(",", ";"), ["'sep=;'", "data.delimiter"]),
    "an empty file": ("", ["loans.csv is empty"]),
    "blank lines": ("\n\n\n", ["loans.csv is empty"]),
    "a header alone": (HEADER + "\n", ["no rows", "customer, age"]),
    "one row": (table(lambda lines: lines[:2]), ["1 row", "one to train on and one to test on"]),
    "half a gzip": (gzip.compress(table().encode())[:90], ["loans.csv cannot be read"]),
    "a ZIP archive": (packed("loans.csv"), ["ZIP archive; unpack it"]),
    "an Excel workbook": (packed("[Content_Types].xml", "xl/workbook.xml"), ["Excel", "as CSV"]),
    "an old Excel workbook": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), ["Excel workbook"]),
    "a Parquet file": (parquet(pl.DataFrame({"a": [1]})), ["Parquet", ".parquet"]),
    "a web page": ("<!DOCTYPE html>\n<html></html>\n", ["HTML"]),
    "JSON": ('[{"a": 1}]', ["JSON"]),
    "an old Macintosh's lines": (table().replace("\n", "\r"), ["line 1", "carriage return"]),
    "labels missing": (
        table(cell(7, "defaulted", ""), cell(9, "defaulted", "NA")),
        ["'defaulted' is missing in 2 of 40 rows: line 7 and line 9"],
    ),
    "one class": (table(column("defaulted", lambda _: "no")), ["'no' in every row", "two classes"]),
    "a label that is an identifier": (
        table(column("defaulted", lambda _: f"L{random.random()}")),
        ["'defaulted' has 40 different values", "identifier"],
    ),
}


@pytest.fixture
def loans(here: Path) -> Callable[..., None]:
    """Write the table and its configuration."""

    def put(content: str | bytes = table(), config: str = CONFIG) -> None:
        (here / "loans.yaml").write_text(config)
        data = content.encode() if isinstance(content, str) else content
        (here / "loans.csv").write_bytes(data)

    return put


Vertizo = Callable[..., Any]


def complaint(vertizo: Vertizo, files: Callable[[], set[str]], *arguments: str | Path) -> str:
    """The one line that a wrong command says; nothing is left behind."""
    before = files()
    result = vertizo(*arguments)
    assert result.code == 2, result
    text: str = result.line
    assert text.startswith("vertizo: ")
    assert files() == before
    return text


@pytest.mark.parametrize("mistake", FILES)
def test_a_wrong_file(
    mistake: str, loans: Callable[..., None], vertizo: Vertizo, files: Callable[[], set[str]]
) -> None:
    content, words = FILES[mistake]
    loans(content)
    text = complaint(vertizo, files, "train", "loans.yaml")
    assert [word for word in words if word not in text] == [], text


NESTED = pl.DataFrame({"a": [[1], [2], [3]], "b": [1, 2, 3], "y": ["p", "q", "p"]})
KEYS: dict[str, tuple[str, list[str]]] = {
    "a label in other letters": ("data.label=Defaulted", ["data.label", "did you mean 'defau"]),
    "part of a name": ("data.categorical=[payment]", ["did you mean 'payment_delay'?"]),
    "an identifier": ("data.id=customer_id", ["data.id", "did you mean 'customer'?"]),
    "a column that is dropped": ("data.drop=[opend]", ["data.drop", "did you mean 'opened'?"]),
    "a range": ("data.ranges={Income: [0, 1]}", ["data.ranges", "did you mean 'income'?"]),
    "categories": ("data.categories={jobs: [cook]}", ["data.categories", "did you mean 'job'?"]),
    "who holds what": (
        "data.columns={bank: [ages], shop: [jop]}",
        ["gives 'bank' the column 'ages'", "did you mean 'age'?", "nor has it 'jop' ('job'?)"],
    ),
    "the label holder": ("data.label_holder=Bnk", ["data.label_holder", "did you mean 'bank'?"]),
    "numbers that are words": (
        "data.ranges={job: [0, 1]}",
        ["column 'job' holds '", "in line 2 (and 39 more)", "data.ranges is for numbers"],
    ),
    "an option far from its place": (
        "learning_rate=1",
        ["'client.optimizer.learning_rate' or 'server.optimizer.learning_rate'"],
    ),
    "an option of a section": ("data.lable=x", ["data.lable", "did you mean 'label"]),
    "a method": ("method.name=split_learning", ["did you mean 'split'?", "'vafl'"]),
    "a model": ("client.model.name=resnet", ["did you mean 'resnet18'", "'mlp'"]),
    "a codec": ("codecs.up.name=topk", ["did you mean 'top-k'?", "'uniform'"]),
    "a data set": ("data={name: breast_cancer}", ["did you mean 'breast-cancer'?", "digits"]),
    "a choice": ("server.update=secret_sgd", ["did you mean 'poisson-dp-sgd'?", "'none'"]),
    "more records a batch than there are": ("batch_size=60", ["batch_size is 60", "at most 29"]),
    "a limit below the batch": ("data.limit=8", ["batch_size is 8", "7"]),
    "one record of one class": ("data.limit=2", ["batch_size is 8", "2 training records"]),
    "all validate": ("data.validation=0.999", ["data.validation is 0.999"]),
    "a delimiter of two characters": ("data.delimiter=;;", ["data.delimiter is ';;'", "tab"]),
    "no such file": ("data.path=lones.csv", ["lones.csv is missing; did you mean 'loans.csv'"]),
    "a folder": ("data.path=.", ["is a folder, not a file"]),
    "another test file": ("data.test_path=other.csv", ["other.csv", "'age' of", "it has x, y"]),
    "words in a test file": (
        "data.test_path=words.csv",
        ["words.csv: column 'age' holds 'old' in line 3, but only numbers in"],
    ),
    "a class of the test file alone": (
        "data.test_path=classes.csv",
        ["'defaulted' is 'perhaps' in line 5, which does not occur in", "loans.csv"],
    ),
    "classes that are others": (
        "data.classes=[paid, lost]",
        ["the label 'defaulted' is '", "in line 2, which is no class of data.classes, 'paid'"],
    ),
    "an exact guarantee over classes of the file": (
        "privacy.epsilon=1",
        ["privacy.epsilon is 1", 'data.classes (these are ["no", "yes"])', "everybody knows"],
    ),
}


@pytest.mark.parametrize("mistake", KEYS)
def test_a_wrong_key(
    mistake: str,
    loans: Callable[..., None],
    here: Path,
    vertizo: Vertizo,
    files: Callable[[], set[str]],
) -> None:
    setting, words = KEYS[mistake]
    loans()
    (here / "other.csv").write_text("x,y\n1,2\n")
    (here / "words.csv").write_text(table(cell(3, "age", "old")))
    (here / "classes.csv").write_text(table(cell(5, "defaulted", "perhaps")))
    text = complaint(vertizo, files, "train", "loans.yaml", "--set", setting)
    assert [word for word in words if word not in text] == [], text


YAML: dict[str, tuple[str | bytes, list[str]]] = {
    "a tab": ("epochs: 1\ndata:\n\tname: digits\n", ["line 3, column 1", "tab", "spaces"]),
    "a key twice": ("epochs: 1\nepochs: 2\n", ["line 2", "'epochs' occurs twice"]),
    "an open quote": ('seed: 1\nepochs: "1\nseed: 2\n', ["not YAML", "may begin in line 2"]),
    "a wrong indent": ("epochs: 1\n  data: {}\n", ["not YAML in line 2, column 7"]),
    "a list": ("- 1\n", ["keys and values"]),
    "bytes": (b"\x89PNG\r\n", ["not a text file"]),
}


@pytest.mark.parametrize("mistake", YAML)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_wrong_configuration(
    mistake: str, command: str, here: Path, vertizo: Vertizo, files: Callable[[], set[str]]
) -> None:
    content, words = YAML[mistake]
    (here / "c.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    text = complaint(vertizo, files, command, "c.yaml")
    assert [word for word in ["c.yaml", *words] if word not in text] == [], text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("trian",), ["Did you mean 'train'?"]),
        (("privacy", "explian", "x"), ["Did you mean 'explain'"]),
        (("list", "method"), ["methods"]),
        (("attack", "membrship"), ["no attack 'membrship'; did you mean 'membership'?"]),
        (("attack", "table", "--methods", "dpvz"), ["no 'dpvz'; did you mean 'dpzv'?"]),
        (("compare", "--methods", "cascade"), ["no method 'cascade'; did you mean 'cascaded'?"]),
        (("privacy", "explain", "nowhere"), ["nowhere", "No such file"]),
        (("train", "."), [".: Is a directory"]),
        (("train", "mien.yaml"), ["mien.yaml: No such file", "did you mean 'mine.yaml'?"]),
    ],
)
def test_a_wrong_name(
    arguments: tuple[str, ...], words: list[str], vertizo: Vertizo, files: Callable[[], set[str]]
) -> None:
    Path("mine.yaml").write_text("epochs: 1\n")
    text = complaint(vertizo, files, *arguments)
    assert [word for word in words if word not in text] == [], text


class TestParquet:
    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ([[1], [2]], "List(Int64), neither numbers nor text; leave it out"),
            ([{"b": 1}, {"b": 2}], "Struct"),
            ([b"1", b"2"], "Binary"),
        ],
    )
    def test_nested_columns(
        self,
        values: list[Any],
        words: str,
        here: Path,
        vertizo: Vertizo,
        files: Callable[[], set[str]],
    ) -> None:
        frame = pl.DataFrame({"a": values * 9, "b": [1, 2] * 9, "y": ["p", "q"] * 9})
        (here / "t.parquet").write_bytes(parquet(frame))
        settings = ("data.name=table", "data.path=t.parquet", "data.label=y", "data.parties=2")
        each = [part for setting in settings for part in ("--set", setting)]
        text = complaint(vertizo, files, "train", *each)
        assert "column 'a' holds" in text
        assert words in text


class TestNotes:
    """What is allowed and probably not meant is said in a line, and the run goes on."""

    def notes(self, lines: str, here: Path, **more: Any) -> tuple[str, ...]:
        path = here / "t.csv"
        path.write_text(lines)
        options = {"label": "defaulted", "drop": ["opened"], "parties": 2, **more}
        data = prepare(DataConfig(name="table", path=path, **options), Stream.from_seed(0))
        assert not any("\n" in note for note in data.notes)
        return data.notes

    def test_nothing_to_say(self, here: Path) -> None:
        assert self.notes(table(), here, id="customer") == ()

    def test_an_identifier_among_the_features(self, here: Path) -> None:
        (note,) = self.notes(table(), here)
        assert "column 'customer' has another value in nearly every row" in note
        assert "data.id" in note

    def test_a_column_that_counts_the_rows(self, here: Path) -> None:
        counted = table(column("age", lambda _: ""))
        rows = counted.splitlines()
        numbered = [rows[0], *(row.replace(",,", f",{i},", 1) for i, row in enumerate(rows[1:]))]
        (note,) = self.notes("\n".join(numbered) + "\n", here, id="customer")
        assert "column 'age' has another value" in note

    def test_a_constant(self, here: Path) -> None:
        (note,) = self.notes(table(column("job", lambda _: "cook")), here, id="customer")
        assert "column 'job' has the same value in every row" in note

    def test_identifiers_that_occur_twice(self, here: Path) -> None:
        lines = table(cell(7, "customer", "C000"))
        (note,) = self.notes(lines, here, id="customer")
        assert "'customer' is 'C000' in line 2 and line 7" in note

    def test_a_class_without_a_training_record(self, here: Path) -> None:
        (here / "test.csv").write_text(table())
        lines = table(column("defaulted", lambda text: text))
        more = {"id": "customer", "classes": ["no", "yes", "late"], "test_path": here / "test.csv"}
        (note,) = self.notes(lines, here, **more)
        assert "no training record is of class 'late'" in note

    def test_they_are_printed_once(self, loans: Callable[..., None], vertizo: Vertizo) -> None:
        loans(table(column("job", lambda _: "cook")))
        result = vertizo("train", "loans.yaml", "--controls", "--json")
        assert result.code == 0
        assert result.err.count("note: ") == 1
        assert "column 'job' has the same value in every row" in result.err


def test_what_is_no_mistake(loans: Callable[..., None], here: Path, vertizo: Vertizo) -> None:
    """A mark, spaces around names, quoted lines, a packed file, Windows' lines, NA, a tab."""
    changed = table(line(1, HEADER.replace(",", " , ")), cell(9, "income", "n/a"))
    quoted = changed.replace("cook", '"night\ncook"').replace("\n", "\r\n")
    loans(gzip.compress(("\ufeff" + quoted.replace(",", "\t")).encode()))
    result = vertizo("train", "loans.yaml", "--set", "data.delimiter=tab", "--json")
    assert result.code == 0, result.err
    assert (here / "runs" / "table-dpzv-seed0" / "summary.json").is_file()


class TestTheFolder:
    def test_one_that_was_taken_a_moment_ago(
        self, loans: Callable[..., None], here: Path, vertizo: Vertizo
    ) -> None:
        loans()
        (here / "runs" / "table-dpzv-seed0").mkdir(parents=True)
        assert vertizo("train", "loans.yaml", "--json").code == 0
        assert (here / "runs" / "table-dpzv-seed0-2" / "summary.json").is_file()
        assert list((here / "runs" / "table-dpzv-seed0").iterdir()) == []

    def test_a_file_in_its_place(self, here: Path, vertizo: Vertizo) -> None:
        (here / "runs").write_text("mine\n")
        result = vertizo("train", "--set", "epochs=1")
        assert result.code == 2
        assert "--out" in result.line


PIECES = st.sampled_from(
    ["a", "1", "1,5", "nan", '"', '""', '"x"', '"x\ny"', '5" pipe', "\xff", "\0", "é", "\t", ";"]
    + 2 * [",", "\n", "\r\n", "\r", " "]
).map(lambda text: text.encode("latin-1" if text == "\xff" else "utf-8"))
CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.lists(PIECES, max_size=30).map(lambda parts: b"a,y\n" + b"".join(parts)),
    st.lists(st.lists(PIECES, max_size=4).map(b",".join), max_size=9).map(b"\n".join),
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=CONTENTS, packs=st.booleans())
def test_any_bytes_are_a_table_or_refused_in_a_line(
    content: bytes, packs: bool, tmp_path: Path
) -> None:
    """What is read is what Python's own reader has."""
    path = tmp_path / "any.csv"
    path.write_bytes(gzip.compress(content) if packs else content)
    line = refusal_of(lambda: frames.read(path))
    if line is not None:
        assert str(path) in line
        return
    found = frames.read(path)
    rows = records(path, ",")
    expected = [[plain(value) for value in values] for _, values in list(rows)[1:]]
    assert [[plain(value) for value in row] for row in found.rows()] == [
        row for row in expected if any(value is not None for value in row)
    ]


def refusal_of(call: Callable[[], object]) -> str | None:
    """The one line that something is refused in; None if it is not."""
    try:
        call()
    except UserError as error:
        line = str(error)
    else:
        return None
    assert "\n" not in line
    return line


def plain(value: str | None) -> str | None:
    text = (value or "").strip()
    return None if text in frames.MISSING else text


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=CONTENTS)
def test_any_table_is_cut_or_refused_in_a_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.csv"
    path.write_bytes(content)
    options = DataConfig(name="table", path=path, label="y", parties=1)
    refusal_of(lambda: prepare(options, Stream.from_seed(0)))
