"""Predictions from a run folder: those that the run was scored by, and for new records."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.data.refusals import refused
from tests.once import Once
from tests.rows import each

from vertizo.config import schema
from vertizo.core.errors import DataError, RunError
from vertizo.data.record_split import set_apart
from vertizo.data.tabular.frames import read
from vertizo.party.metrics import Scores
from vertizo.run.experiment import Experiment
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder
from vertizo.run.trained.prediction import Predictor, coverage_of, predict

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


def trained(folder: Path, *settings: str, frame: pl.DataFrame | None = None) -> Path:
    """A run on people.csv, which is gone afterwards."""
    table = folder / "people.csv"
    (people() if frame is None else frame).write_csv(table)
    overrides = (f"data.path={table}", PARTIES, *TINY, "data.drop=[who]", *settings)
    Experiment(schema.load(None, overrides)).run(folder / "run")
    table.rename(folder / "gone.csv")
    return folder / "run"


@pytest.fixture(scope="module")
def run(once: Once) -> Path:
    """One run that nobody changes."""

    def make(folder: Path) -> None:
        folder.mkdir()
        trained(folder)

    return once("people", make) / "run"


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def held_out(path: Path) -> pl.DataFrame:
    """The rows that a run sets apart for testing, as text."""
    whole = read(path)
    _, chosen = set_apart(whole.height, None)
    return whole[chosen.tolist()]


def summary_of(run: Path) -> dict[str, Any]:
    return RunFolder(run).summary() or {}


def assert_same(found: Scores, run: Path, section: str | None = None) -> None:
    summary = summary_of(run)
    summary = summary if section is None else summary[section]
    assert found
    for name, value in found.items():
        assert value == pytest.approx(summary[f"test_{name}"], rel=1e-9), name


REGRESSION = ("data.label=debt", "data.columns={bank: [age, job], shop: [city, code]}")

EPSILON = ("privacy.mechanism=gaussian", "privacy.clip=0.5", "privacy.epsilon=3")
CLASSES = "data.classes=[high, low, middle]"
PRIVATE = (*EPSILON, "server.update=private-sgd", CLASSES)
TOP_K = ("method.name=vafl", "codecs.up={name: top-k, fraction: 0.5}")
SETTINGS: list[tuple[str, ...]] = [
    (),
    ("data.validation=0",),
    (
        "data.ranges={age: [0, 100]}",
        "data.categories={job: [nurse, pilot, cook], code: [0, 1, 2, 3]}",
        CLASSES,
    ),
    ("data.label_holder=bank",),
    ("data.split=even", "data.parties=3", "data.columns=null"),
    ("server.join=sum",),
    (*TOP_K, "client.model.outputs=8"),
    ("method.name=vafl", "codecs.up={name: uniform, bits: 2}"),
    (*TOP_K, "client.model.outputs=4", "codecs.feedback=up"),
    ("privacy={mechanism: embedding-noise, clip: 0.01, noise_std: 0.1}", "method.name=vafl"),
    PRIVATE,
    (*EPSILON, "server.update=poisson-dp-sgd", CLASSES, "server.secret.sampling=0.2"),
    ("method.name=split",),
    ("method.name=zoo-vfl", "privacy={mechanism: gaussian, clip: 0.5, noise_std: 0.2}"),
]


HEADS: list[tuple[str, ...]] = [
    ("server.final_head=logistic", "data.label_holder=bank", "server.join=sum"),
    ("server.final_head=boosting", CLASSES, "data.validation=0", *EPSILON, "method.name=tangent"),
    ("server.final_head=refit", "data.label_holder=shop", "client.pretrain=splines"),
    ("server.final_head=refit", "method.name=split", "server.model.hidden=[]"),
]


@each("settings", HEADS, gate=HEADS[:2])
def test_both_heads_predict_what_they_were_scored_by(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    run = trained(tmp_path, *settings)
    records = held_out(tmp_path / "gone.csv")
    private, raw = (Predictor.load(run, head).predict(records) for head in ("private", "raw"))
    assert_same(private.scores, run)
    assert_same(raw.scores, run, "raw_head")
    assert not private.frame.equals(raw.frame)


@pytest.mark.full
@each("prepared", [(), ("client.pretrain=kmeans",), (*EPSILON, CLASSES, "method.name=tangent")])
def test_a_label_free_control_predicts_by_its_raw_head(
    tmp_path: Path, prepared: tuple[str, ...]
) -> None:
    run = trained(tmp_path, "control=label-free", *prepared)
    found = Predictor.load(run, "raw").predict(held_out(tmp_path / "gone.csv"))
    assert_same(found.scores, run)
    with pytest.raises(RunError, match="predict with --head raw"):
        Predictor.load(run, "private")


def test_what_has_no_raw_head(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no raw head: its server\.final_head is 'private'"):
        Predictor.load(run, "raw")
    headed = trained(tmp_path, "server.final_head=boosting")
    kept = RunFolder(headed).load("raw_head", "head")["head"]
    records = held_out(tmp_path / "gone.csv")
    for wrong in ({**kept, "width": torch.tensor(3)}, {**kept, "feature": kept["feature"] + 99}):
        RunFolder(headed).save("raw_head", {"head": wrong})
        with pytest.raises(RunError, match="its raw head is of another run"):
            Predictor.load(headed, "raw").predict(records)
    (headed / "checkpoints" / "raw_head.safetensors").unlink()
    with pytest.raises(RunError, match="kept no raw head"):
        Predictor.load(headed, "raw")


@pytest.mark.full
@each("settings", SETTINGS)
def test_predictions_are_those_that_the_run_was_scored_by(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    run = trained(tmp_path, *settings)
    found = Predictor.load(run).predict(held_out(tmp_path / "gone.csv"))
    assert found.scored == found.frame.height == 16
    assert_same(found.scores, run)
    right = found.frame["prediction"] == held_out(tmp_path / "gone.csv")["y"]
    assert right.mean() == pytest.approx(summary_of(run)["test_accuracy"])


def test_a_regression_in_the_labels_own_units(tmp_path: Path) -> None:
    frame = people().with_columns(pl.col("debt").fill_null(5000.0) + 10_000)
    run = trained(tmp_path, *REGRESSION, frame=frame)
    found = Predictor.load(run).predict(held_out(tmp_path / "gone.csv"), id_column="who")
    assert_same(found.scores, run)
    assert found.frame.columns == ["who", "prediction"]
    truth = held_out(tmp_path / "gone.csv")["debt"].cast(pl.Float64)
    error = ((found.frame["prediction"].cast(pl.Float64) - truth) ** 2).mean()
    assert error**0.5 == pytest.approx(summary_of(run)["test_rmse"], rel=1e-5)
    assert 8_000 < found.frame["prediction"].min() < 25_000


@each("settings", [(), ("data.validation=0",), ("data.name=breast-cancer",)])
def test_the_runs_own_test_records(tmp_path: Path, settings: tuple[str, ...]) -> None:
    overrides = ("data.limit=60", "batch_size=9", "epochs=2", *settings)
    Experiment(schema.load(None, overrides)).run(tmp_path / "run")
    found = Predictor.load(tmp_path / "run").test()
    assert_same(found.scores, tmp_path / "run")
    names = summary_of(tmp_path / "run")["classes"] or list("0123456789")
    assert set(found.frame["prediction"]) <= set(names)
    assert found.frame.columns[2:] == [f"probability_{name}" for name in names]
    assert found.frame["row"].to_list() == list(range(1, found.frame.height + 1))


def test_the_best_model_is_used_where_there_is_one(tmp_path: Path) -> None:
    run, fresh = trained(tmp_path, "epochs=6", "client.optimizer.learning_rate=0.3"), people(50, 1)
    folder = RunFolder(run)
    summary, before = folder.summary() or {}, predict(run, fresh)
    assert summary["model"] == "best"
    folder.write_summary({**summary, "model": "last"})
    assert not predict(run, fresh).equals(before)
    folder.save("last", {"parameters": folder.load("best")})
    assert predict(run, fresh).equals(before)


FRESH = people(20, 5)


class TestNewRecords:
    def test_one_record_is_predicted_as_among_others(self, run: Path) -> None:
        together = predict(run, FRESH)
        alone = predict(run, FRESH[7:8])
        assert alone["prediction"][0] == together["prediction"][7]
        for column in alone.columns[2:]:
            assert alone[column][0] == pytest.approx(together[column][7], rel=1e-5)
        total = together.select(pl.sum_horizontal(together.columns[2:])).to_series()
        assert np.allclose(total, 1)

    def test_other_columns_and_another_order_do_not_matter(self, run: Path) -> None:
        turned = FRESH.drop("y").select(reversed(FRESH.drop("y").columns))
        more = turned.with_columns(pl.lit([1]).alias("noise"))
        assert predict(run, more).equals(predict(run, FRESH))

    def test_text_and_typed_columns_are_one(self, run: Path, tmp_path: Path) -> None:
        FRESH.write_csv(tmp_path / "new.csv")
        FRESH.write_parquet(tmp_path / "new.parquet")
        one, other = (read(tmp_path / f"new.{kind}") for kind in ("csv", "parquet"))
        assert predict(run, one).equals(predict(run, other))

    def test_an_unknown_category_is_a_missing_one(self, run: Path) -> None:
        unknown = predict(run, FRESH.with_columns(pl.lit("Aarhus").alias("city")))
        missing = predict(run, FRESH.with_columns(pl.lit(None, pl.String).alias("city")))
        assert unknown.equals(missing)
        assert not unknown.equals(predict(run, FRESH))

    def test_labels_of_some_records_score_those(self, run: Path) -> None:
        known = pl.int_range(pl.len()) < 6
        some = FRESH.with_columns(pl.when(known).then(pl.col("y")).alias("y"))
        found, first = Predictor.load(run).predict(some), Predictor.load(run).predict(FRESH[:6])
        assert (found.scored, found.frame.height) == (6, 20)
        assert found.scores == pytest.approx(first.scores)
        none = Predictor.load(run).predict(FRESH.with_columns(pl.lit(None).alias("y")))
        assert (none.scores, none.scored) == (None, 0)

    @each(
        "change, words",
        [
            ({"age": None}, ["'age'"]),
            ({"age": ["old"]}, ["'age'", "'old'", "row 1", "only numbers"]),
            ({"age": [1e39]}, ["'age'", "too large"]),
            ({"city": [[1]]}, ["'city'", "not categories"]),
            ({"y": ["lowest"]}, ["'y'", "'lowest'", "row 1", "'middle'"]),
            ({"who": None}, ["--id", "'who'"]),
            ({"who": [[1]]}, ["--id", "'who'", "List"]),
        ],
    )
    def test_what_does_not_fit_is_one_line(
        self, run: Path, change: dict[str, Any], words: list[str]
    ) -> None:
        fresh = people(1, 5)
        for name, values in change.items():
            series = None if values is None else pl.Series(name, values)
            fresh = fresh.drop(name) if series is None else fresh.with_columns(series)
        refused(words, DataError, predict, run, fresh, id_column="who")

    def test_columns_of_other_names_are_refused(self, run: Path) -> None:
        """One of nearly a known name is offered, and one of the result's names refused."""
        with pytest.raises(DataError, match="'city'; did you mean 'citty'"):
            predict(run, people(3, 5).rename({"city": "citty"}))
        with pytest.raises(DataError, match="predictions have themselves"):
            predict(run, people(3, 5).rename({"who": "prediction"}), id_column="prediction")


class TestRefusedFolders:
    def test_an_unfinished_one(self, own: Path) -> None:
        (own / "summary.json").unlink()
        with pytest.raises(RunError, match="unfinished"):
            Predictor.load(own)

    def test_new_records_of_images(self, tmp_path: Path) -> None:
        overrides = ("data.limit=60", "batch_size=9", "epochs=1")
        Experiment(schema.load(None, overrides)).run(tmp_path / "run")
        assert not (tmp_path / "run" / "preparation.json").exists()
        with pytest.raises(RunError, match="digits, whose records are no rows"):
            predict(tmp_path / "run", people(3))

    def test_models_of_another_size(self, own: Path) -> None:
        text = (own / "config.yaml").read_text()
        assert "outputs: 16" in text
        text = text.replace("outputs: 16", "outputs: 5")
        checkpoint.keep(own / "config.yaml", text.encode())
        with pytest.raises(RunError, match="parameters of other models"):
            predict(own, people(3))

    def test_test_records_that_are_others_now(self, tmp_path: Path) -> None:
        run = trained(tmp_path)
        with pytest.raises(DataError, match="missing"):
            Predictor.load(run).test()
        people(ROWS, 9).write_csv(tmp_path / "people.csv")
        with pytest.raises(RunError, match="not those that"):
            Predictor.load(run).test()
        shutil.copy(tmp_path / "gone.csv", tmp_path / "people.csv")
        assert_same(Predictor.load(run).test().scores or {}, run)

    def test_a_run_is_not_gone_on_with_on_other_records(self, tmp_path: Path) -> None:
        run = trained(tmp_path)
        (run / "summary.json").unlink()
        people(ROWS, 9).write_csv(tmp_path / "people.csv")
        experiment = Experiment(RunFolder(run).config())
        with pytest.raises(RunError, match=r"a run on another people\.csv"):
            experiment.run(run, resume=True)
        provenance = (run / "provenance.json").rename(tmp_path / "kept")  # as of an older version
        with pytest.raises(RunError, match="run on other records"):
            experiment.run(run, resume=True)
        provenance.rename(run / "provenance.json")
        shutil.copy(tmp_path / "gone.csv", tmp_path / "people.csv")
        again = Experiment(RunFolder(run).config())
        assert again.run(run, resume=True).summary["test_accuracy"] >= 0


def test_what_the_guarantee_says_of_predictions(run: Path, tmp_path: Path) -> None:
    assert "no guarantee covers them" in coverage_of(summary_of(run)["privacy"])
    privacy = summary_of(trained(tmp_path, *PRIVATE))["privacy"]
    assert privacy["guarantee"] == "exact"
    for covers in (privacy["covers"], ["labels", "each client's features", "its columns"]):
        words = coverage_of({**privacy, "covers": covers})
        assert "ε 3, δ 1e-05 for labels of training records holds" in words
        assert "for nothing else" in words
        assert "features" not in words


def test_training_leaves_no_trace_in_what_is_predicted_from(run: Path, own: Path) -> None:
    """The folder alone is enough, wherever it is."""
    torch.manual_seed(7)
    assert predict(own, people(5, 3)).equals(predict(run, people(5, 3)))
