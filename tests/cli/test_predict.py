"""``vertizo predict``: where predictions go, and what is wrong in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from vertizo.cli.predict import predict_offline
from vertizo.core.errors import UserError
from vertizo.run.prediction import predict

Vertizo = Callable[..., Any]

TABLE = "name;size;shape;y\n" + "".join(
    f"n{i};{i % 11}.5;{'round' if i % 3 else 'long'};{'yes' if i % 11 > 5 else 'no'}\n"
    for i in range(60)
)


@pytest.fixture
def run(vertizo: Vertizo, here: Path) -> Path:
    """A run on a file with semicolons."""
    Path("things.csv").write_text(TABLE)
    settings = (
        "data={name: table, path: things.csv, label: y, drop: [name], delimiter: ';',"
        " columns: {a: [size], b: [shape]}}",
        "batch_size=8",
        "epochs=2",
    )
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert vertizo("train", *arguments, "--out", "run").code == 0
    return Path("run")


def test_a_file_of_predictions(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    predict_offline(run, Path("things.csv"), Path("out.csv"), id_column="name")
    said = capfd.readouterr()
    assert said.err == ""
    assert "60 records in out.csv" in said.out
    assert "scores: loss" in said.out
    assert "no guarantee covers them" in said.out
    found = pl.read_csv("out.csv")
    assert found.columns == ["name", "prediction", "probability_no", "probability_yes"]
    assert found["name"].to_list() == [f"n{i}" for i in range(60)]
    wanted = predict(run, pl.read_csv("things.csv", separator=";"), id_column="name")
    assert found["prediction"].equals(wanted["prediction"])
    predict_offline(run, Path("things.csv"), Path("out.parquet"), id_column="name")
    assert pl.read_parquet("out.parquet").equals(wanted)
    assert not list(Path().glob("*.partial"))


def test_standard_output_is_for_other_programs(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("new.csv").write_text("size,shape\n3,long\n")
    predict_offline(run, Path("new.csv"), None, delimiter=",")
    said = capfd.readouterr()
    assert said.out.splitlines()[0] == "row,prediction,probability_no,probability_yes"
    assert len(said.out.splitlines()) == 2
    assert "1 record\n" in said.err
    assert "scores" not in said.err


def test_a_run_that_is_not_there_is_named(vertizo: Vertizo) -> None:
    for more in ((), ("--data", "new.csv"), ("--id", "name")):
        outcome = vertizo("predict", "nosuchrun", *more)
        assert outcome.code == 2
        assert "nosuchrun is not there; name a run folder of `vertizo train`" in outcome.line


def test_the_runs_own_test_records(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    predict_offline(run, None, Path("out.csv"))
    assert "12 records" in capfd.readouterr().out
    assert pl.read_csv("out.csv")["row"].to_list() == list(range(1, 13))


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("size;shape\nx;long\n", {}, ["new.csv", "'size'", "'x'", "line 2"]),
        ("sizes;shape\n1;long\n", {}, ["new.csv", "'size'", "did you mean 'sizes'"]),
        ("size;shape\n1;long\n", {"id_column": "nam"}, ["--id", "'nam'"]),
        ("size;shape\n1;long\n", {"delimiter": ";;"}, ["--delimiter", "';;'"]),
        ("size;shape\n1;long\n", {"out": Path("out.txt")}, ["out.txt", ".csv or .parquet"]),
        ("size;shape\n1;long\n", {"out": Path("no/out.csv")}, ["no/out.csv", "no folder"]),
        ("size;shape\n1;long\n", {"out": Path("new.csv")}, ["new.csv", "--data"]),
        ("size;shape\n1;long\n", {"data": None, "id_column": "name"}, ["--id name"]),
        ("size;shape\n1;long\n", {"data": Path("other.csv")}, ["other.csv", "missing"]),
        ("size;shape\n1;long\n", {"run": Path("other")}, ["other", "holds no run"]),
        ("", {}, ["new.csv", "empty"]),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(
    run: Path,
    files: Callable[[], set[str]],
    text: str,
    more: dict[str, Any],
    words: list[str],
) -> None:
    Path("new.csv").write_text(text)
    before = files()
    given = {"run": run, "data": Path("new.csv"), "out": Path("out.csv"), **more}
    with pytest.raises(UserError) as caught:
        predict_offline(given.pop("run"), given.pop("data"), given.pop("out"), **given)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert files() == before
    assert Path("new.csv").read_text() == text
