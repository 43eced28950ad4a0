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
import torch
from tests.command_line import Refuses, Vertizo, sets

from vertizo.config.schema import ExperimentConfig
from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

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
        table(cell(7, "opened", "31.01.2020"))
        .replace("payment_delay", "seen", 1)
        .replace("opened", "payment_delay", 1),
        ["loans.csv", "'payment_delay' holds '31.01.2020' in line 7", "2020-01-31T08:30"],
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


def test_wrong_files(loans: Callable[..., None], refuses: Refuses) -> None:
    for mistake, (content, words) in FILES.items():
        loans(content)
        refuses.row(mistake, words, "train", "loans.yaml")


KEYS = """\
data.label=Defaulted | data.label | did you mean 'defau
data.categorical=[payment] | did you mean 'payment_delay'?
data.id=customer_id | data.id | did you mean 'customer'?
data.drop=[opend] | data.drop | did you mean 'opened'?
'data.ranges={Income: [0, 1]}' | data.ranges | did you mean 'income'?
'data.categories={jobs: [cook]}' | data.categories | did you mean 'job'?
'data.columns={bank: [ages], shop: [jop]}' | gives 'bank' the column 'ages' | did you mean 'age'?
    | nor has it 'jop' ('job'?)
data.label_holder=Bnk | data.label_holder | did you mean 'bank'?
'data.ranges={job: [0, 1]}' | column 'job' holds ' | in line 2 (and 39 more)
    | data.ranges is for numbers
learning_rate=1 | 'client.optimizer.learning_rate' or 'server.optimizer.learning_rate'
data.lable=x | data.lable | did you mean 'label
method.name=split_learning | did you mean 'split'? | 'vafl'
client.model.name=resnet | did you mean 'resnet18' | 'mlp'
codecs.up.name=topk | did you mean 'top-k'? | 'uniform'
'data={name: breast_cancer}' | did you mean 'breast-cancer'? | digits
server.update=poisson_dp_sgd | did you mean 'poisson-dp-sgd'? | 'none'
batch_size=60 | batch_size is 60 | at most 29
data.limit=8 | batch_size is 8 | 7
data.limit=2 | batch_size is 8 | 2 training records
data.validation=0.999 | data.validation is 0.999
data.delimiter=;; | data.delimiter is ';;' | tab
data.path=lones.csv | lones.csv is missing; did you mean 'loans.csv'
data.path=. | is a folder, not a file
data.test_path=other.csv | other.csv | 'age' of | it has x, y
data.test_path=words.csv | words.csv: column 'age' holds 'old' in line 3, but only numbers in
data.test_path=classes.csv | 'defaulted' is 'perhaps' in line 5, which does not occur in | loans.csv
'data.classes=[paid, lost]' | the label 'defaulted' is '
    | in line 2, which is no class of data.classes, 'paid'
privacy.epsilon=1 | privacy.epsilon is 1 | data.classes (these are ["no", "yes"]) | everybody knows
"""


def test_wrong_keys(loans: Callable[..., None], here: Path, refuses: Refuses) -> None:
    loans()
    (here / "other.csv").write_text("x,y\n1,2\n")
    (here / "words.csv").write_text(table(cell(3, "age", "old")))
    (here / "classes.csv").write_text(table(cell(5, "defaulted", "perhaps")))
    refuses(KEYS, "train", "loans.yaml", "--set")


YAML: dict[str, tuple[str | bytes, list[str]]] = {
    "a tab": ("epochs: 1\ndata:\n\tname: digits\n", ["line 3, column 1", "tab", "spaces"]),
    "a key twice": ("epochs: 1\nepochs: 2\n", ["line 2", "'epochs' occurs twice"]),
    "an open quote": ('seed: 1\nepochs: "1\nseed: 2\n', ["not YAML", "may begin in line 2"]),
    "a wrong indent": ("epochs: 1\n  data: {}\n", ["not YAML in line 2, column 7"]),
    "a list": ("- 1\n", ["keys and values"]),
    "bytes": (b"\x89PNG\r\n", ["not a text file"]),
}


def test_wrong_configurations(here: Path, refuses: Refuses) -> None:
    for mistake, (content, words) in YAML.items():
        (here / "c.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
        for command in (("train",), ("compare",), ("tune",), ("attack", "table")):
            refuses.row(f"{command}: {mistake}", ["c.yaml", *words], *command, "c.yaml")


NAMES = """\
trian | no command 'trian'; did you mean 'train'?
privacy explian x | did you mean 'explain'
explain x | no command 'explain'; did you mean 'vertizo privacy explain'?
tune --search server.lr=0.1..0.2 | did you mean 'server.optimizer.learning_rate'
privacy | Missing command
--verbose | --verbose
list | methods | datasets
list method | 'method' | methods | datasets
attack membrship | no attack 'membrship'; did you mean 'membership'?
attack table --methods dpvz | no 'dpvz'; did you mean 'dpzv'?
compare --methods cascade | no method 'cascade'; did you mean 'cascaded'?
privacy explain nowhere | nowhere | No such file
train . | .: Is a directory
train mien.yaml | mien.yaml: No such file | did you mean 'mine.yaml'?
"""


def test_wrong_names(refuses: Refuses) -> None:
    Path("mine.yaml").write_text("epochs: 1\n")
    refuses(NAMES)


def test_nested_columns(here: Path, refuses: Refuses) -> None:
    keys = ("data.name=table", "data.path=t.parquet", "data.label=y", "data.parties=2")
    rows: list[tuple[list[Any], str]] = [
        ([[1], [2]], "List(Int64), neither numbers nor text; leave it out"),
        ([{"b": 1}, {"b": 2}], "Struct"),
        ([b"1", b"2"], "Binary"),
    ]
    for values, words in rows:
        frame = pl.DataFrame({"a": values * 9, "b": [1, 2] * 9, "y": ["p", "q"] * 9})
        (here / "t.parquet").write_bytes(parquet(frame))
        refuses.row(words, ["column 'a' holds", words], "train", *sets(*keys))


class TestNotes:
    """What is allowed and probably not meant is said in a line, and the run goes on."""

    def notes(self, lines: str, here: Path, **more: Any) -> tuple[str, ...]:
        path = here / "t.csv"
        path.write_text(lines)
        options = {"label": "defaulted", "drop": ["opened"], "parties": 2, **more}
        data = prepare(DataConfig(name="table", path=path, **options), Stream.from_seed(0))
        assert not any("\n" in note for note in data.notes)
        return data.notes

    def test_each(self, here: Path) -> None:
        counted = table(column("age", lambda _: ""))
        header, *rows = counted.splitlines()
        numbered = [header, *(row.replace(",,", f",{i},", 1) for i, row in enumerate(rows))]
        (here / "test.csv").write_text(table())
        classes = {"classes": ["no", "yes", "late"], "test_path": here / "test.csv"}
        own = {"id": "customer"}
        assert self.notes(table(), here, **own) == ()
        for lines, more, words in (
            (table(), {}, "column 'customer' has values that only name rows"),
            (table(), {}, "data.id"),
            ("\n".join(numbered) + "\n", own, "column 'age' has values that only name rows"),
            (
                table(column("job", lambda _: "cook")),
                own,
                "column 'job' has the same value in every row",
            ),
            (table(cell(7, "customer", "C000")), own, "'customer' is 'C000' in line 2 and line 7"),
            (table(), {**own, **classes}, "no training record is of class 'late'"),
        ):
            (note,) = self.notes(lines, here, **more)
            assert words in note

    @pytest.mark.full
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
    assert vertizo("train", "loans.yaml", "--set", "data.delimiter=tab", "--json").code == 0
    assert (here / "runs" / "loans-dpzv-seed0" / "summary.json").is_file()


def test_a_folder_that_was_taken_a_moment_ago(loans: Callable[..., None], vertizo: Vertizo) -> None:
    loans()
    Path("runs/loans-dpzv-seed0").mkdir(parents=True)
    assert vertizo("train", "loans.yaml", "--json").code == 0
    assert Path("runs/loans-dpzv-seed0-2/summary.json").is_file()
    assert list(Path("runs/loans-dpzv-seed0").iterdir()) == []


def test_a_file_in_place_of_the_folder(here: Path, vertizo: Vertizo) -> None:
    (here / "runs").write_text("mine\n")
    vertizo("train", "--set", "epochs=1").refused("--out")


AROUND = {
    "good.yaml": "epochs: 1\ndata: {limit: 60}\nbatch_size: 9\n",
    "unknown.yaml": "epoch: 3\n",
    "deep.yaml": "client: {optimizer: {lerning_rate: 1}}\n",
    "wrong.yaml": "data: {validation: 2}\n",
    "nul.yaml": "epochs: 1\0",
    "date.yaml": "seed: 2024-13-45\n",
    "file.txt": "no folder\n",
    "mine.py": (
        "from torch import nn\n"
        "class Norm(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(16)\n"
        "    def forward(self, x):\n"
        "        return self.norm(x.flatten(1))\n"
        "class Angry(nn.Module):\n"
        "    def __init__(self):\n"
        "        raise RuntimeError('two\\nlines')\n"
        "def short(w, x):\n"
        "    return w[:3]\n"
    ),
    "fails.py": "import nobody_has_this\n",
}


MISTAKES = """\
absent.yaml | absent.yaml | No such file
. | directory
nul.yaml | nul.yaml
date.yaml | date.yaml
unknown.yaml | unknown.yaml | 'epoch' | did you mean 'epochs'?
deep.yaml | client.optimizer.lerning_rate
wrong.yaml | wrong.yaml | data.validation is 2
--set sede=3 | --set | 'sede' | 'seed'
--set seed=-3 | --set | seed is -3
--set epochs | --set epochs | key=value
--set 'epochs=[1' | --set epochs=[1 | YAML
--set | --set
--set client.optimizer.learning_rate=-1 | learning_rate is -1
--set client.optimizer.learning_rate=inf | finite
--set method.name=dpvz | method.name | 'dpvz' | 'dpzv'
--set client.model.name=gpt | client.model.name | 'mlp'
--set data.name=mnits | data.name | 'mnits' | mnist
--set data.root=nowhere | data.root | nowhere | not a folder
--set data.name=mnist --set data.root=damaged | damaged | train-images-idx3-ubyte
--set data.parties=9 | data.parties is 9 | 1 to 8
--set data.split=columns | data.split | digits
--set data.name=breast-cancer --set data.split=rows | data.split | breast-cancer
--set data.name=breast-cancer --set 'data.columns={a: [mean raduis]}' | data.columns | 'mean raduis'
    | did you mean 'mean radius'?
--set data.split=halves --set data.parties=3 | 'halves'
--set batch_size=60 --set data.limit=60 | batch_size is 60 | 54
--set data.validation=0.9999 --set batch_size=1 | data.validation
--set 'simulation.stragglers={4: 2}' | simulation.stragglers | 4
--set privacy.clip=0 | privacy.clip
--set 'privacy={mechanism: gaussian, clip: 1, epsilon: 1}' --set server.update=sgd | privacy.epsilon
    | server.update
--set method.name=vafl --set client.model.name=function --set client.model.path=mine.py:short
    --set client.model.num_parameters=3
    | vafl | client.model | mine.py:short
--set 'client.model={name: module, path: absent.py:Net}' | no file absent.py
--set 'client.model={name: module, path: mine.py:Net}' | mine.py has no 'Net'
--set 'client.model={name: module, path: nobody.has:Net}' | client.model.path
--set 'client.model={name: module, path: fails.py:Net}' | fails.py | nobody_has_this
--set 'client.model={name: module, path: torch.nn:Linear}' | client.model.arguments | in_features
--set 'client.model={name: module, path: mine.py:Angry}' | client.model | two
--set 'client.model={name: module, path: mine.py:Norm}' | BatchNorm1d
--set 'client.model={name: function, path: mine.py:short, num_parameters: 3}' | client.model | (3,)
good.yaml --out file.txt | --out file.txt | folder
good.yaml --out file.txt/run | file.txt/run
good.yaml --out taken | --out taken | already holds a run | --resume taken
--resume absent | absent holds no run
--resume file.txt | file.txt holds no run
--resume empty | empty holds no run
--resume cut | cut/checkpoints/last.safetensors
good.yaml --resume taken | --resume
--resume taken --set epochs=2 | --resume
--resume taken --out other | --resume
good.yaml unknown.yaml | unknown.yaml
--outt run | --outt
--out | --out
"""


@pytest.fixture
def prepared(here: Path) -> None:
    for name, text in AROUND.items():
        (here / name).write_text(text)
    (here / "empty").mkdir()
    RunFolder(here / "taken").create(ExperimentConfig())
    cut = RunFolder(here / "cut")
    cut.create(ExperimentConfig())
    with cut.locked():
        checkpoint.keep(here / "cut" / "checkpoints" / "last.safetensors", b"abc")
    (here / "damaged").mkdir()
    for purpose in ("train", "t10k"):
        for content in ("images-idx3", "labels-idx1"):
            (here / "damaged" / f"{purpose}-{content}-ubyte").write_bytes(b"not these")


@pytest.mark.usefixtures("prepared")
def test_train_refuses_in_one_line(refuses: Refuses) -> None:
    refuses(MISTAKES, "train")
    refuses(f"good.yaml --out {'x' * 300} | long", "train")


@pytest.mark.usefixtures("prepared")
def test_a_folder_in_use(vertizo: Vertizo, here: Path) -> None:
    with RunFolder(here / "taken").locked():
        vertizo("train", "--resume", "taken").refused("taken is in use by another process")


@pytest.mark.usefixtures("prepared")
def test_a_run_that_diverges(vertizo: Vertizo) -> None:
    for settings in (
        ("client.optimizer.learning_rate=1e9",),
        ("client.optimizer.learning_rate=1e30",),
        ("client.optimizer.learning_rate=1e9", "evaluate_every=1"),
        ("client.optimizer.learning_rate=1e9", "method.name=vafl"),
        ("server.optimizer.learning_rate=1e30",),
    ):
        result = vertizo("train", "good.yaml", *sets("epochs=5", *settings))
        result.refused("diverged", "round", "learning_rate", case=settings)


@pytest.mark.usefixtures("prepared")
def test_a_graphics_card_that_is_not_there(
    refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for key in ("client.device", "server.device"):
        words = f"{key} is 'cuda', but PyTorch finds no CUDA device; use 'cpu'"
        refuses(f"good.yaml --set {key}=cuda | {words}", "train")


def test_memory_that_runs_out_later_is_one_line(
    vertizo: Vertizo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vertizo.run.build.models.available", lambda: None)
    options = ("data.name=digits", "client.model.hidden=[9999999999999]")
    outcome = vertizo("train", *sets(*options))
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert outcome.err.splitlines()[-1].startswith("vertizo: memory ran out; use a smaller model")
