"""A file through ``vertizo train``, and its rows through an estimator: the same to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from tests.command_line import run
from tests.lazy import Lazy
from tests.rows import each

import vertizo as vz
from vertizo.config.schema import ExperimentConfig
from vertizo.run.results.folder import RunFolder
from vertizo.run.trained.prediction import Predictor

pd = Lazy("pandas")

LOANS = Path(__file__).parents[3] / "examples" / "loans.csv"
PARTIES = {
    "bank": ["age", "job", "income", "balance", "late_payments"],
    "shop": ["visits", "basket", "favourite", "returns"],
    "telecom": ["calls", "plan", "arrears"],
}
SHARED: dict[str, Any] = {
    "seed": 3,
    "epochs": 2,
    "batch_size": 50,
    "client": {"model": {"outputs": 4}, "optimizer": {"learning_rate": 0.002}},
    "server": {"model": {"hidden": [16]}, "optimizer": {"learning_rate": 0.01}},
}


def trained(tmp_path: Path, data: Any = None, **changed: Any) -> Path:
    """The run folder of ``vertizo train`` on a file of training rows and one of test rows."""
    lines = LOANS.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "train.csv").write_text("".join(lines[:801]), encoding="utf-8")
    (tmp_path / "test.csv").write_text("".join([lines[0], *lines[801:]]), encoding="utf-8")
    paths = {"path": str(tmp_path / "train.csv"), "test_path": str(tmp_path / "test.csv")}
    table = {"name": "table", "label": "defaulted", "columns": PARTIES, "label_holder": "bank"}
    tree = {**SHARED, "data": {**paths, **table, **(data or {})}, **changed}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert run("train", tmp_path / "run.yaml", "--out", tmp_path / "run") == 0
    return tmp_path / "run"


def estimator(**changed: Any) -> vz.VerticalClassifier:
    return vz.VerticalClassifier(
        PARTIES,
        method="dpzv",
        label_holder="bank",
        epochs=2,
        batch_size=50,
        embedding_dim=4,
        server_hidden=[16],
        client_learning_rate=0.002,
        server_learning_rate=0.01,
        random_state=3,
        **changed,
    )


def assert_same(run: Path, fitted: Any, rows: Any) -> None:
    predictor, folder = Predictor.load(run), RunFolder(run)
    theirs, ours = predictor.parameters, fitted.result_.parameters
    assert torch.equal(theirs["server"], ours["server"])
    for one, other in zip(theirs["clients"], ours["clients"], strict=True):
        assert torch.equal(one, other)
    known, found = folder.metrics(), fitted.result_.metrics
    assert [row["validation_auc"] for row in known] == [row["validation_auc"] for row in found]
    assert known[-1]["bytes_up"] == found[-1]["bytes_up"]
    frame = pl.read_csv(run.parent / "test.csv", infer_schema=False)
    probabilities = predictor.predict(frame).frame.select("^probability_.*$").to_numpy()
    assert np.array_equal(probabilities, fitted.predict_proba(rows))
    assert folder.preparation() == fitted._preparation or (
        folder.preparation().to_json().replace('"defaulted"', '"label"')
        == fitted._preparation.to_json()
    )


@pytest.mark.full
@each("library", ["pandas", "polars"])
def test_the_same_file(tmp_path: Path, library: str) -> None:
    folder = trained(tmp_path)
    package: Any = {"pandas": pd, "polars": pl}[library]
    train, test = (package.read_csv(tmp_path / f"{name}.csv") for name in ("train", "test"))
    columns = [column for column in train.columns if column != "defaulted"]
    fitted = estimator().fit(train[columns], train["defaulted"])
    assert_same(folder, fitted, test[columns])


@pytest.mark.full
def test_the_same_guarantee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two configurations share no noise, and these name different sources: here they do."""
    monkeypatch.setattr(ExperimentConfig, "digest", "the same")
    folder = trained(
        tmp_path,
        privacy={"epsilon": 2.0},
        client={"optimizer": {"learning_rate": 0.002}},
        server={"optimizer": {"learning_rate": 0.01}},
        data={"classes": ["no", "yes"]},
    )
    train, test = (pl.read_csv(tmp_path / f"{name}.csv") for name in ("train", "test"))
    model = estimator(privacy={"epsilon": 2.0}, classes=["no", "yes"])
    model.set_params(embedding_dim=None, server_hidden=None)
    fitted = model.fit(train.drop("defaulted"), train["defaulted"])
    assert_same(folder, fitted, test.drop("defaulted"))
    theirs = RunFolder(folder).summary()
    assert fitted.result_.summary["privacy"] == theirs["privacy"]
    assert theirs["privacy"]["guarantee"] == "simulated"
