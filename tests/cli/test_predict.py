"""``vertizo predict``: where predictions go, and what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.command_line import Refuses, Vertizo, sets
from tests.words import says

from vertizo.cli.predict import predict_offline
from vertizo.run.trained.prediction import predict

TABLE = "name;size;shape;y\n" + "".join(
    f"n{i};{i % 11}.5;{'round' if i % 3 else 'long'};{'yes' if i % 11 > 5 else 'no'}\n"
    for i in range(60)
)


DATA = (
    "data={name: table, path: things.csv, label: y, drop: [name], delimiter: ';',"
    " columns: {a: [size], b: [shape]}}"
)


@pytest.fixture
def run(vertizo: Vertizo, here: Path) -> Path:
    """A run on a file with semicolons."""
    Path("things.csv").write_text(TABLE)
    assert vertizo("train", *sets(DATA, "batch_size=8", "epochs=2"), "--out", "run").code == 0
    return Path("run")


def test_a_file_of_predictions(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    predict_offline(run, Path("things.csv"), Path("out.csv"), id_column="name")
    said = capfd.readouterr()
    assert said.err == ""
    says(said.out, "60 records in out.csv", "scores: loss", "no guarantee covers them")
    found = pl.read_csv("out.csv")
    assert found.columns == ["name", "prediction", "probability_no", "probability_yes"]
    assert found["name"].to_list() == [f"n{i}" for i in range(60)]
    wanted = predict(run, pl.read_csv("things.csv", separator=";"), id_column="name")
    assert found["prediction"].equals(wanted["prediction"])
    predict_offline(run, Path("things.csv"), Path("out.parquet"), id_column="name")
    assert pl.read_parquet("out.parquet").equals(wanted)
    assert not list(Path().glob("*.partial"))


def test_a_header_alone_predicts_a_header_alone(
    run: Path, refuses: Refuses, capfd: pytest.CaptureFixture[str]
) -> None:
    """A night without new records must not break whoever predicts every night."""
    wanted = ["name", "prediction", "probability_no", "probability_yes"]
    columns = ("name", "size", "shape")
    Path("new.csv").write_text(";".join(columns) + "\n")
    schema = {"name": pl.String, "size": pl.Float64, "shape": pl.String}
    pl.DataFrame(schema=schema).write_parquet("new.parquet")
    for new in ("new.csv", "new.parquet"):
        predict_offline(run, Path(new), Path("out.csv"), id_column="name")
        assert Path("out.csv").read_text() == ",".join(wanted) + "\n"
        predict_offline(run, Path(new), Path("out.parquet"), id_column="name")
        found = pl.read_parquet("out.parquet")
        assert (found.columns, found.height) == (wanted, 0)
        assert found.schema["probability_no"] == pl.Float32
        said = capfd.readouterr()
        assert said.err == ""
        assert "predictions: 0 records in out.parquet" in said.out
        assert "scores" not in said.out
    Path("new.csv").write_text("name;size\n")
    refuses.row("a column less", ["'shape'"], "predict", "run", "--data", "new.csv")
    Path("new.csv").write_text("")
    refuses.row("no header", ["new.csv is empty"], "predict", "run", "--data", "new.csv")


def test_identifiers_come_back_letter_for_letter(run: Path) -> None:
    """As the file has them, though they would be missing values or numbers as features."""
    names = ["NA", "null", "?", " 8 ", "007", "", "1.0", "é"]
    rows = [f"{name};3.5;round;no" for name in names]
    Path("new.csv").write_text("\n".join(["name;size;shape;y", *rows, ""]))
    predict_offline(run, Path("new.csv"), Path("out.csv"), id_column="name")
    written = Path("out.csv").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in written] == names
    new = pl.read_csv("new.csv", separator=";")
    new = new.with_columns(took=pl.duration(seconds=pl.int_range(len(names))))
    new.write_parquet("new.parquet")
    predict_offline(run, Path("new.parquet"), Path("out.csv"), id_column="took", delimiter=None)
    written = Path("out.csv").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in written] == [f"{each}.0" for each in range(8)]


def test_standard_output_is_for_other_programs(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("new.csv").write_text("size,shape\n3,long\n")
    predict_offline(run, Path("new.csv"), None, delimiter=",")
    said = capfd.readouterr()
    Path("other.csv").write_text("size;shape;名\n3;long;张\n", encoding="gb18030")
    predict_offline(run, Path("other.csv"), None, encoding="gb18030")
    assert capfd.readouterr().out == said.out
    assert said.out.splitlines()[0] == "row,prediction,probability_no,probability_yes"
    assert len(said.out.splitlines()) == 2
    assert "1 record\n" in said.err
    assert "scores" not in said.err


def test_a_column_of_strangers_is_said(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("new.csv").write_text("size;shape\n" + "3;oval\n" * 6)
    predict_offline(run, Path("new.csv"), Path("out.csv"))
    said = capfd.readouterr()
    assert "note: new.csv: 6 of 6 values of 'shape', such as 'oval'" in said.err
    assert "'long', 'round'; all of them count as missing" in said.err


@pytest.mark.full
def test_what_covers_the_raw_head_is_said(run: Path, vertizo: Vertizo, refuses: Refuses) -> None:
    for arguments, words in (
        ("run --head raw", "run has no raw head: its server.final_head is 'private'"),
        ("run --head secret", "'secret' is not one of 'private', 'raw'; see --help"),
    ):
        refuses.row(arguments, [words, "private"], "predict", *arguments.split())
    settings = ("server.final_head=logistic",)
    assert vertizo("train", "run/config.yaml", *sets(*settings), "--out", "headed").code == 0
    for head, words in (("raw", "nothing covers these predictions"), ("private", "no guarantee")):
        out = vertizo("predict", "headed", "--head", head, "--out", "out.csv").well()
        assert words in out.splitlines()[-1]


def test_the_runs_own_test_records(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    predict_offline(run, None, Path("out.csv"))
    assert "12 records" in capfd.readouterr().out
    assert pl.read_csv("out.csv")["row"].to_list() == list(range(1, 13))


def test_what_is_wrong_is_one_line_and_leaves_nothing(run: Path, refuses: Refuses) -> None:
    good = "size;shape\n1;long\n"
    new = "run --data new.csv --out out.csv"
    for text, arguments, words in (
        ("size;shape\nx;long\n", new, ["new.csv", "'size'", "'x'", "line 2"]),
        ("sizes;shape\n1;long\n", new, ["new.csv", "'size'", "did you mean 'sizes'"]),
        ("", new, ["new.csv", "empty"]),
        (good, f"{new} --id nam", ["--id", "'nam'"]),
        (good, f"{new} --delimiter ;;", ["--delimiter", "';;'"]),
        (good, f"{new} --encoding gbk", ["--encoding", "'gbk'", "gb18030"]),
        (good, "run --data new.csv --out out.txt", ["out.txt", ".csv or .parquet"]),
        (good, "run --data new.csv --out no/out.csv", ["no/out.csv", "no folder"]),
        (good, "run --data new.csv --out new.csv", ["new.csv", "--data"]),
        (good, "run --out out.csv --id name", ["--id name"]),
        (good, "run --data other.csv --out out.csv", ["other.csv", "missing"]),
        (good, "empty --data new.csv", ["empty", "holds no run"]),
        (good, "nosuchrun", ["nosuchrun is not there; name a run folder of `vertizo train`"]),
        (good, "nosuchrun --id name", ["nosuchrun is not there"]),
    ):
        Path("empty").mkdir(exist_ok=True)
        Path("new.csv").write_text(text)
        refuses.row(arguments, words, "predict", *arguments.split())
        assert Path("new.csv").read_text() == text
