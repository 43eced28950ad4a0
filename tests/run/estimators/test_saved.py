"""Estimators on disk: for Python again, and for the command line."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.command_line import run
from tests.lazy import Lazy
from tests.rows import each
from tests.run.estimators.people import PARTIES, TINY, classifier, people

import vertizo as vz
from vertizo.core.errors import RunError

sklearn_base = Lazy("sklearn.base")

WRONG = {"epsilon": -1}
FRAME = people()
X, Y = FRAME.drop("y", "amount"), FRAME["y"]


def fitted(**changed: Any) -> vz.VerticalClassifier:
    return classifier(**changed).fit(X, Y)


def kept(model: Any, folder: Path) -> Any:
    """What is loaded of a model that was saved."""
    model.save(folder)
    return type(model).load(folder)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``out`` leaves."""
    folder = tmp_path_factory.mktemp("fitted") / "run"
    fitted(out=folder)
    return folder


@pytest.mark.full
def test_the_raw_head_comes_back_as_well(tmp_path: Path) -> None:
    before = fitted(final_head="boosting", head="raw")
    private = before.set_params(head="private").predict_proba(X)
    raw = before.set_params(head="raw").predict_proba(X)
    assert not np.array_equal(private, raw)
    assert np.allclose(raw.sum(1), 1, atol=1e-5)
    assert (raw.argmax(1) == (Y == "paid").to_numpy()).mean() > 0.8  # it has seen these
    assert "must stay with the label holder" in before.privacy_
    after = kept(before, tmp_path / "saved")
    assert np.array_equal(after.predict_proba(X), raw)
    assert np.array_equal(after.set_params(head="private").predict_proba(X), private)
    headed = {**TINY, "final_head": "refit", "head": "raw", "out": tmp_path / "r"}
    amounts = vz.VerticalRegressor(PARTIES, **headed).fit(X, FRAME["amount"])
    again = vz.VerticalRegressor.load(tmp_path / "r")
    assert np.array_equal(again.predict(X), amounts.predict(X))


@each("validation", [0.0, 0.2])
def test_it_comes_back_the_same(tmp_path: Path, validation: float) -> None:
    before = fitted(validation=validation)
    after = kept(before, tmp_path / "saved")
    assert np.array_equal(after.predict_proba(X), before.predict_proba(X))
    assert after.classes_.tolist() == before.classes_.tolist()
    assert after.get_params() == before.get_params()
    assert after.n_features_in_ == 4
    assert list(after.feature_names_in_) == list(before.feature_names_in_)
    assert after.privacy_ == before.privacy_
    assert after.result_.summary["rounds"] == before.result_.summary["rounds"]
    assert len(after.result_.metrics) == len(before.result_.metrics)
    again = kept(after, tmp_path / "again")
    assert np.array_equal(again.predict_proba(X), before.predict_proba(X))


def test_out_leaves_the_same_folder(tmp_path: Path) -> None:
    before = fitted(out=tmp_path / "run")
    after = vz.VerticalClassifier.load(tmp_path / "run")
    assert np.array_equal(after.predict_proba(X), before.predict_proba(X))
    assert before.result_.folder == tmp_path / "run"


@pytest.mark.full
def test_parameters_of_every_kind(tmp_path: Path) -> None:
    before = fitted(
        method="dpzv",
        parties={"bank": np.array([0, 1]), "shop": (2, 3)},
        classes=["late", "paid"],
        privacy=vz.Privacy(epsilon=2.0, noise="secure"),
        random_state=np.random.RandomState(3),
        client_hidden=(4,),
        config={"client": {"optimizer": {"momentum": np.float64(0.5)}}},
        out=tmp_path / "run",
    )
    after = vz.VerticalClassifier.load(tmp_path / "run")
    assert np.array_equal(after.predict_proba(X), before.predict_proba(X))
    assert after.privacy == before.privacy
    assert after.parties == {"bank": [0, 1], "shop": [2, 3]}
    assert after.out == str(tmp_path / "run")
    assert after.privacy_ == before.privacy_
    assert after.privacy_.startswith("ε = ")


def test_numbers_as_classes(tmp_path: Path) -> None:
    y = (Y == "late").to_numpy().astype(np.int8)
    before = vz.VerticalClassifier(PARTIES, **TINY).fit(X, y)
    after = kept(before, tmp_path / "saved")
    assert after.classes_.dtype == np.int8
    assert np.array_equal(after.predict(X), before.predict(X))


@pytest.mark.full
def test_weights_of_numbers_come_back(tmp_path: Path) -> None:
    """JSON has texts as keys alone; a copy of what was loaded is fitted as before."""
    y = (Y == "late").to_numpy().astype(int) + 1
    for weights in ({1: 2.0, 2: 0.5}, {np.int64(2): 3}, "balanced", None):
        before = vz.VerticalClassifier(PARTIES, **TINY, class_weight=weights).fit(X, y)
        after = kept(before, tmp_path / f"{weights}")
        assert after.class_weight == weights
        again = sklearn_base.clone(after).fit(X, y)
        assert np.array_equal(again.predict_proba(X), before.predict_proba(X))


@each(
    "y", [[date(2020, 1, 1 + i % 2) for i in range(len(Y))], [1j * (i % 2) for i in range(len(Y))]]
)
def test_labels_that_cannot_be_kept_are_refused_before_training(tmp_path: Path, y: Any) -> None:
    moments = np.array(y, dtype="datetime64[D]") if isinstance(y[0], date) else np.array(y)
    for given in (y, moments, np.array(y, dtype=object)):
        with pytest.raises(ValueError, match=r"neither a number nor text|[Cc]omplex"):
            classifier(out=tmp_path / "run").fit(X, given)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_saved_leaves_no_folder(tmp_path: Path) -> None:
    before = fitted()
    before.verbose = object()
    with pytest.raises(RunError, match=r"the estimator cannot be saved: .*object"):
        before.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_an_array_has_no_names(tmp_path: Path) -> None:
    numbers = X.select("age", "debt").to_numpy()
    before = vz.VerticalRegressor(**TINY).fit(numbers, FRAME["amount"])
    after = kept(before, tmp_path / "saved")
    assert not hasattr(after, "feature_names_in_")
    assert np.array_equal(after.predict(numbers), before.predict(numbers))


def test_the_command_line_predicts_the_same(tmp_path: Path) -> None:
    model, new = fitted(), people(30, seed=2)
    model.save(tmp_path / "saved")
    new.write_csv(tmp_path / "new.csv")
    out = tmp_path / "found.csv"
    assert run("predict", tmp_path / "saved", "--data", tmp_path / "new.csv", "--out", out) == 0
    found = pl.read_csv(out)
    wanted = model.predict_proba(new.drop("y", "amount"))
    probabilities = found.select("probability_late", "probability_paid").to_numpy()
    assert np.allclose(probabilities, wanted, atol=1e-6)
    assert found["prediction"].to_list() == model.predict(new.drop("y", "amount")).tolist()


def test_the_command_line_shows_a_finished_run(
    ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says that it has no records of its own to predict."""
    assert run("train", "--resume", ran, "--details") == 0
    shown = capsys.readouterr().out
    assert "validation accuracy" in shown
    assert "test" not in shown.replace(str(ran), "")
    assert run("predict", ran) == 2
    said = capsys.readouterr().err
    assert "data.name is 'frame'" in said
    assert said.count("\n") == 1


class TestRefused:
    def test_a_place_that_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("something", encoding="utf-8")
        model = fitted()
        for taken in (tmp_path, tmp_path / "mine"):
            with pytest.raises(RunError, match="there already"):
                model.save(taken)
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    def test_no_estimator_or_another(self, ran: Path, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"VerticalClassifier\.load"):
            vz.VerticalRegressor.load(ran)
        with pytest.raises(RunError, match=r"no estimator\.json"):
            vz.VerticalClassifier.load(tmp_path)

    @each(
        "damage, words",
        [
            (lambda content: [], r"estimator\.json"),
            (lambda content: {**content, "version": 2}, r"estimator\.json has version 2"),
            (lambda c: {k: c[k] for k in c if k != "columns"}, r"estimator\.json"),
            (lambda c: {**c, "classes": {"type": "V8", "values": [1]}}, r"estimator\.json"),
            (lambda c: {**c, "parameters": {**c["parameters"], "colour": "red"}}, "colour"),
            (
                lambda c: c | {"parameters": c["parameters"] | {"privacy": {"$Privacy": WRONG}}},
                r"estimator\.json .*epsilon is -1",
            ),
        ],
    )
    def test_a_damaged_file(self, ran: Path, tmp_path: Path, damage: Any, words: str) -> None:
        content = json.loads((ran / "estimator.json").read_text())
        file = tmp_path / "estimator.json"
        for text in (json.dumps(damage(content)), "{"):
            file.write_text(text, encoding="utf-8")
            with pytest.raises(RunError, match=words if text != "{" else r"estimator\.json"):
                vz.VerticalClassifier.load(tmp_path)
