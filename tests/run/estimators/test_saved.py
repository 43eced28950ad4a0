"""Estimators on disk: for Python again, and for the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.rows import each
from tests.run.estimators.people import PARTIES, people

from vertizo import Privacy, VerticalClassifier, VerticalRegressor
from vertizo.cli.main import main
from vertizo.core.errors import RunError

TINY: dict[str, Any] = {"method": "vafl", "epochs": 2, "batch_size": 20, "random_state": 0}
FRAME = people()
X, Y = FRAME.drop("y", "amount"), FRAME["y"]


def fitted(**changed: Any) -> VerticalClassifier:
    return VerticalClassifier(**{"parties": PARTIES, **TINY, **changed}).fit(X, Y)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["vertizo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


@each("validation", [0.0, 0.2])
def test_it_comes_back_the_same(tmp_path: Path, validation: float) -> None:
    before = fitted(validation=validation)
    before.save(tmp_path / "saved")
    after = VerticalClassifier.load(tmp_path / "saved")
    assert np.array_equal(after.predict_proba(X), before.predict_proba(X))
    assert after.classes_.tolist() == before.classes_.tolist()
    assert after.get_params() == before.get_params()
    assert after.n_features_in_ == 4
    assert list(after.feature_names_in_) == list(before.feature_names_in_)
    assert after.privacy_ == before.privacy_
    assert after.result_.summary["rounds"] == before.result_.summary["rounds"]
    assert len(after.result_.metrics) == len(before.result_.metrics)
    after.save(tmp_path / "again")
    again = VerticalClassifier.load(tmp_path / "again")
    assert np.array_equal(again.predict_proba(X), before.predict_proba(X))


def test_out_leaves_the_same_folder(tmp_path: Path) -> None:
    before = fitted(out=tmp_path / "run")
    after = VerticalClassifier.load(tmp_path / "run")
    assert np.array_equal(after.predict_proba(X), before.predict_proba(X))
    assert before.result_.folder == tmp_path / "run"


def test_parameters_of_every_kind(tmp_path: Path) -> None:
    before = fitted(
        method="dpzv",
        parties={"bank": np.array([0, 1]), "shop": (2, 3)},
        classes=["late", "paid"],
        privacy=Privacy(epsilon=2.0, noise="secure"),
        random_state=np.random.RandomState(3),
        client_hidden=(4,),
        config={"client": {"optimizer": {"momentum": np.float64(0.5)}}},
        out=tmp_path / "run",
    )
    after = VerticalClassifier.load(tmp_path / "run")
    assert np.array_equal(after.predict_proba(X), before.predict_proba(X))
    assert after.privacy == before.privacy
    assert after.parties == {"bank": [0, 1], "shop": [2, 3]}
    assert after.out == str(tmp_path / "run")
    assert after.privacy_ == before.privacy_
    assert after.privacy_.startswith("ε = ")


def test_numbers_as_classes(tmp_path: Path) -> None:
    y = (Y == "late").to_numpy().astype(np.int8)
    before = VerticalClassifier(PARTIES, **TINY).fit(X, y)
    before.save(tmp_path / "saved")
    after = VerticalClassifier.load(tmp_path / "saved")
    assert after.classes_.dtype == np.int8
    assert np.array_equal(after.predict(X), before.predict(X))


def test_an_array_has_no_names(tmp_path: Path) -> None:
    numbers = X.select("age", "debt").to_numpy()
    before = VerticalRegressor(**TINY).fit(numbers, FRAME["amount"])
    before.save(tmp_path / "saved")
    after = VerticalRegressor.load(tmp_path / "saved")
    assert not hasattr(after, "feature_names_in_")
    assert np.array_equal(after.predict(numbers), before.predict(numbers))


def test_the_command_line_predicts_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, new = fitted(), people(30, seed=2)
    model.save(tmp_path / "saved")
    new.write_csv(tmp_path / "new.csv")
    out = tmp_path / "found.csv"
    call(
        monkeypatch,
        *("predict", str(tmp_path / "saved"), "--data", str(tmp_path / "new.csv")),
        *("--out", str(out)),
    )
    found = pl.read_csv(out)
    wanted = model.predict_proba(new.drop("y", "amount"))
    probabilities = found.select("probability_late", "probability_paid").to_numpy()
    assert np.allclose(probabilities, wanted, atol=1e-6)
    assert found["prediction"].to_list() == model.predict(new.drop("y", "amount")).tolist()


def test_the_command_line_shows_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(out=tmp_path / "run")
    call(monkeypatch, "train", "--resume", str(tmp_path / "run"))
    shown = capsys.readouterr().out
    assert "validation accuracy" in shown
    assert "test" not in shown.replace(str(tmp_path), "")


def test_what_has_no_records_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(out=tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["vertizo", "predict", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "data.name is 'frame'" in said
    assert said.count("\n") == 1


class TestRefused:
    def test_a_place_that_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("something", encoding="utf-8")
        for taken in (tmp_path, tmp_path / "mine"):
            with pytest.raises(RunError, match="there already"):
                fitted().save(taken)
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    def test_another_estimator(self, tmp_path: Path) -> None:
        fitted().save(tmp_path / "saved")
        with pytest.raises(RunError, match=r"VerticalClassifier\.load"):
            VerticalRegressor.load(tmp_path / "saved")

    def test_no_estimator(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"no estimator\.json"):
            VerticalClassifier.load(tmp_path)

    @each(
        "damage",
        [
            lambda content: [],
            lambda content: {**content, "version": 2},
            lambda content: {k: v for k, v in content.items() if k != "columns"},
            lambda content: {**content, "classes": {"type": "V8", "values": [1]}},
            lambda content: {**content, "parameters": {"privacy": {"$Privacy": {"epsilon": -1}}}},
        ],
    )
    def test_a_damaged_file(self, tmp_path: Path, damage: Any) -> None:
        fitted().save(tmp_path / "saved")
        file = tmp_path / "saved" / "estimator.json"
        file.write_text(json.dumps(damage(json.loads(file.read_text()))), encoding="utf-8")
        with pytest.raises(RunError, match=r"estimator\.json"):
            VerticalClassifier.load(tmp_path / "saved")
        file.write_text("{", encoding="utf-8")
        with pytest.raises(RunError, match=r"estimator\.json"):
            VerticalClassifier.load(tmp_path / "saved")

    def test_parameters_that_there_are_not(self, tmp_path: Path) -> None:
        fitted().save(tmp_path / "saved")
        file = tmp_path / "saved" / "estimator.json"
        content = json.loads(file.read_text())
        content["parameters"]["colour"] = "red"
        file.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(RunError, match="colour"):
            VerticalClassifier.load(tmp_path / "saved")
