"""Predictions from a run folder: those that the run was scored by, and for new records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.rows import each

from vertizo.config import schema
from vertizo.core.errors import DataError, RunError
from vertizo.data.datasets.files import set_apart
from vertizo.data.tabular.frames import read
from vertizo.party.metrics import Scores
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder
from vertizo.run.prediction import Predictor, coverage_of, predict

ROWS = 80
TINY = ("epochs=2", "batch_size=9", "data.validation=0.2", "data.name=table", "data.label=y")
PARTIES = "data.columns={bank: [age, job], shop: [city, debt, code]}"


def people(rows: int = ROWS, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(40, 9, rows)
    city = rng.choice(["Rome", "Oslo", "Kyiv"], rows)
    kind = (age > 40).astype(int) + (city == "Oslo")
    return pl.DataFrame(
        {
            "who": [f"p{index}" for index in range(rows)],
            "age": age,
            "job": rng.choice(["cook", "nurse", None], rows).tolist(),
            "city": city.tolist(),
            "debt": [None if index % 7 == 0 else float(index * index) for index in range(rows)],
            "code": rng.integers(0, 4, rows),
            "y": [("low", "middle", "high")[k] for k in kind],
        }
    )


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Path]:
    """A run on people.csv, which is gone afterwards."""

    def train(*settings: str, frame: pl.DataFrame | None = None) -> Path:
        table = tmp_path / "people.csv"
        (people() if frame is None else frame).write_csv(table)
        overrides = (f"data.path={table}", PARTIES, *TINY, "data.drop=[who]", *settings)
        Experiment(schema.load(None, overrides)).run(tmp_path / "run")
        table.rename(tmp_path / "gone.csv")
        return tmp_path / "run"

    return train


def held_out(path: Path) -> pl.DataFrame:
    """The rows that a run sets apart for testing, as text."""
    whole = read(path)
    _, chosen = set_apart(whole.height, None)
    return whole[chosen.tolist()]


def assert_same(found: Scores, run: Path) -> None:
    summary = RunFolder(run).summary() or {}
    assert found
    for name, value in found.items():
        assert value == pytest.approx(summary[f"test_{name}"], rel=1e-9), name


REGRESSION = ("data.label=debt", "data.columns={bank: [age, job], shop: [city, code]}")

SETTINGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "no validation records": ("data.validation=0",),
    "public": (
        "data.ranges={age: [0, 100]}",
        "data.categories={job: [nurse, pilot, cook], code: [0, 1, 2, 3]}",
        "data.classes=[high, low, middle]",
    ),
    "label holder": ("data.label_holder=bank",),
    "runs of columns": ("data.split=even", "data.parties=3", "data.columns=null"),
    "summed": ("server.join=sum",),
    "coded": (
        "method.name=vafl",
        "codecs.up={name: top-k, fraction: 0.5}",
        "client.model.outputs=8",
    ),
    "coded across records": ("method.name=vafl", "codecs.up={name: uniform, bits: 2}"),
    "error feedback": (
        "method.name=vafl",
        "codecs.up={name: top-k, fraction: 0.5}",
        "client.model.outputs=4",
        "codecs.feedback=up",
    ),
    "clipped embeddings": (
        "privacy.mechanism=embedding-noise",
        "privacy.clip=0.01",
        "privacy.noise_std=0.1",
        "method.name=vafl",
    ),
    "private server": (
        "privacy.mechanism=gaussian",
        "privacy.clip=0.5",
        "privacy.epsilon=3",
        "server.update=private-sgd",
        "data.classes=[high, low, middle]",
    ),
    "secret samples": (
        "privacy.mechanism=gaussian",
        "privacy.clip=0.5",
        "privacy.epsilon=3",
        "server.update=poisson-dp-sgd",
        "data.classes=[high, low, middle]",
        "server.secret.sampling=0.2",
    ),
    "synchronous": ("method.name=split",),
    "noise on replies alone": (
        "method.name=zoo-vfl",
        "privacy.mechanism=gaussian",
        "privacy.clip=0.5",
        "privacy.noise_std=0.2",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_predictions_are_those_that_the_run_was_scored_by(
    trained: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    run = trained(*SETTINGS[name])
    found = Predictor.load(run).predict(held_out(tmp_path / "gone.csv"))
    assert found.scores is not None
    assert found.scored == found.frame.height == 16
    assert_same(found.scores, run)
    right = found.frame["prediction"] == held_out(tmp_path / "gone.csv")["y"]
    assert right.mean() == pytest.approx((RunFolder(run).summary() or {})["test_accuracy"])


def test_a_regression_in_the_labels_own_units(trained: Callable[..., Path], tmp_path: Path) -> None:
    frame = people().with_columns(pl.col("debt").fill_null(5000.0) + 10_000)
    run = trained(*REGRESSION, frame=frame)
    found = Predictor.load(run).predict(held_out(tmp_path / "gone.csv"), id_column="who")
    assert found.scores is not None
    assert_same(found.scores, run)
    assert found.frame.columns == ["who", "prediction"]
    truth = held_out(tmp_path / "gone.csv")["debt"].cast(pl.Float64)
    error = ((found.frame["prediction"].cast(pl.Float64) - truth) ** 2).mean()
    assert isinstance(error, float)
    assert error**0.5 == pytest.approx((RunFolder(run).summary() or {})["test_rmse"], rel=1e-5)
    assert 8_000 < found.frame["prediction"].min() < 25_000  # type: ignore[operator]


@each("settings", [(), ("data.validation=0",), ("data.name=breast-cancer",)])
def test_the_runs_own_test_records(tmp_path: Path, settings: tuple[str, ...]) -> None:
    overrides = ("data.limit=60", "batch_size=9", "epochs=2", *settings)
    Experiment(schema.load(None, overrides)).run(tmp_path / "run")
    found = Predictor.load(tmp_path / "run").test()
    assert found.scores is not None
    assert_same(found.scores, tmp_path / "run")
    names = (RunFolder(tmp_path / "run").summary() or {})["classes"] or list("0123456789")
    assert set(found.frame["prediction"]) <= set(names)
    assert found.frame.columns[2:] == [f"probability_{name}" for name in names]
    assert found.frame["row"].to_list() == list(range(1, found.frame.height + 1))


def test_the_best_model_is_used_where_there_is_one(trained: Callable[..., Path]) -> None:
    run, fresh = trained("epochs=6", "client.optimizer.learning_rate=0.3"), people(50, 1)
    folder = RunFolder(run)
    summary, before = folder.summary() or {}, predict(run, fresh)
    assert summary["model"] == "best"
    folder.write_summary({**summary, "model": "last"})
    assert not predict(run, fresh).equals(before)
    folder.save("last", {"parameters": folder.load("best")})
    assert predict(run, fresh).equals(before)


class TestNewRecords:
    def test_one_record_is_predicted_as_among_others(self, trained: Callable[..., Path]) -> None:
        run, fresh = trained(), people(20, 5)
        together = predict(run, fresh)
        alone = predict(run, fresh[7:8])
        assert alone["prediction"][0] == together["prediction"][7]
        for column in alone.columns[2:]:
            assert alone[column][0] == pytest.approx(together[column][7], rel=1e-5)
        total = together.select(pl.sum_horizontal(together.columns[2:])).to_series()
        assert np.allclose(total, 1)

    def test_other_columns_and_another_order_do_not_matter(
        self, trained: Callable[..., Path]
    ) -> None:
        run, fresh = trained(), people(20, 5)
        turned = fresh.drop("y").select(reversed(fresh.drop("y").columns))
        more = turned.with_columns(pl.lit([1]).alias("noise"))
        assert predict(run, more).equals(predict(run, fresh))

    def test_text_and_typed_columns_are_one(
        self, trained: Callable[..., Path], tmp_path: Path
    ) -> None:
        run, fresh = trained(), people(20, 5)
        fresh.write_csv(tmp_path / "new.csv")
        fresh.write_parquet(tmp_path / "new.parquet")
        one, other = (read(tmp_path / f"new.{kind}") for kind in ("csv", "parquet"))
        assert predict(run, one).equals(predict(run, other))

    def test_an_unknown_category_is_a_missing_one(self, trained: Callable[..., Path]) -> None:
        run, fresh = trained(), people(20, 5)
        unknown = predict(run, fresh.with_columns(pl.lit("Aarhus").alias("city")))
        missing = predict(run, fresh.with_columns(pl.lit(None, pl.String).alias("city")))
        assert unknown.equals(missing)
        assert not unknown.equals(predict(run, fresh))

    def test_labels_of_some_records_score_those(self, trained: Callable[..., Path]) -> None:
        run, fresh = trained(), people(20, 5)
        known = pl.int_range(pl.len()) < 6
        some = fresh.with_columns(pl.when(known).then(pl.col("y")).alias("y"))
        found, first = Predictor.load(run).predict(some), Predictor.load(run).predict(fresh[:6])
        assert (found.scored, found.frame.height) == (6, 20)
        assert found.scores == pytest.approx(first.scores)
        none = Predictor.load(run).predict(fresh.with_columns(pl.lit(None).alias("y")))
        assert (none.scores, none.scored) == (None, 0)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"age": None}, ["'age'"]),
            ({"age": ["old"]}, ["'age'", "'old'", "row 1", "only numbers"]),
            ({"age": [1e39]}, ["'age'", "too large"]),
            ({"city": [[1]]}, ["'city'", "not categories"]),
            ({"y": ["lowest"]}, ["'y'", "'lowest'", "row 1", "'middle'"]),
            ({"who": None}, ["--id", "'who'"]),
            ({"who": [[1]]}, ["--id", "'who'", "List"]),
            ({}, ["no rows"]),
        ],
    )
    def test_what_does_not_fit_is_one_line(
        self, trained: Callable[..., Path], change: dict[str, Any], words: list[str]
    ) -> None:
        run, fresh = trained(), people(1, 5)
        for name, values in change.items():
            series = None if values is None else pl.Series(name, values)
            fresh = fresh.drop(name) if series is None else fresh.with_columns(series)
        with pytest.raises(DataError) as caught:
            predict(run, fresh if change else fresh[:0], id_column="who")
        assert "\n" not in str(caught.value)
        for word in words:
            assert word in str(caught.value)

    def test_a_column_with_nearly_that_name_is_offered(self, trained: Callable[..., Path]) -> None:
        run, fresh = trained(), people(3, 5).rename({"city": "citty"})
        with pytest.raises(DataError, match="'city'; did you mean 'citty'"):
            predict(run, fresh)

    def test_an_id_column_may_not_be_called_as_a_result(self, trained: Callable[..., Path]) -> None:
        run, fresh = trained(), people(3, 5).rename({"who": "prediction"})
        with pytest.raises(DataError, match="predictions have themselves"):
            predict(run, fresh, id_column="prediction")


class TestRefusedFolders:
    def test_an_empty_one(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="holds no run"):
            Predictor.load(tmp_path)

    def test_an_unfinished_one(self, trained: Callable[..., Path]) -> None:
        run = trained()
        (run / "summary.json").unlink()
        with pytest.raises(RunError, match="unfinished"):
            Predictor.load(run)

    def test_new_records_of_images(self, tmp_path: Path) -> None:
        overrides = ("data.limit=60", "batch_size=9", "epochs=1")
        Experiment(schema.load(None, overrides)).run(tmp_path / "run")
        assert not (tmp_path / "run" / "preparation.json").exists()
        with pytest.raises(RunError, match="digits, whose records are no rows"):
            predict(tmp_path / "run", people(3))

    def test_models_of_another_size(self, trained: Callable[..., Path]) -> None:
        run = trained()
        text = (run / "config.yaml").read_text()
        assert "outputs: 16" in text
        (run / "config.yaml").write_text(text.replace("outputs: 16", "outputs: 5"))
        with pytest.raises(RunError, match="parameters of other models"):
            predict(run, people(3))

    def test_test_records_that_are_others_now(
        self, trained: Callable[..., Path], tmp_path: Path
    ) -> None:
        run = trained()
        with pytest.raises(DataError, match="missing"):
            Predictor.load(run).test()
        people(ROWS, 9).write_csv(tmp_path / "people.csv")
        with pytest.raises(RunError, match="not those that"):
            Predictor.load(run).test()
        shutil.copy(tmp_path / "gone.csv", tmp_path / "people.csv")
        assert_same(Predictor.load(run).test().scores or {}, run)

    def test_a_run_is_not_gone_on_with_on_other_records(
        self, trained: Callable[..., Path], tmp_path: Path
    ) -> None:
        run = trained()
        (run / "summary.json").unlink()
        people(ROWS, 9).write_csv(tmp_path / "people.csv")
        experiment = Experiment(RunFolder(run).config())
        with pytest.raises(RunError, match="run on other records"):
            experiment.run(run, resume=True)
        shutil.copy(tmp_path / "gone.csv", tmp_path / "people.csv")
        again = Experiment(RunFolder(run).config())
        assert again.run(run, resume=True).summary["test_accuracy"] >= 0


def test_what_the_guarantee_says_of_predictions(trained: Callable[..., Path]) -> None:
    assert "no guarantee covers them" in coverage_of(Predictor.load(trained()).summary["privacy"])


def test_what_an_exact_guarantee_says_of_predictions(trained: Callable[..., Path]) -> None:
    run = trained(*SETTINGS["private server"])
    assert json.loads((run / "summary.json").read_text())["privacy"]["guarantee"] == "exact"
    assert "ε 3" in coverage_of(Predictor.load(run).summary["privacy"])


def test_training_leaves_no_trace_in_what_is_predicted_from(
    trained: Callable[..., Path], tmp_path: Path
) -> None:
    """The folder alone is enough, wherever it is."""
    run, fresh = trained(), people(5, 3)
    before = predict(run, fresh)
    run.rename(tmp_path / "elsewhere")
    torch.manual_seed(7)
    assert predict(tmp_path / "elsewhere", fresh).equals(before)
