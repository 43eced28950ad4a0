"""What is reached without a federation, beside every run on a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from torch import Tensor

from vertizo.config.schema import parse
from vertizo.data.vertical import VerticalData
from vertizo.party.metrics import scores
from vertizo.protocol.messages import Purpose
from vertizo.run import references
from vertizo.run.experiment import Experiment
from vertizo.run.results import summary_figures


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The bank's column says little of the label, the shop's categories all but a tenth."""
    chance, kinds = np.random.default_rng(0), np.array(["a", "b", "c"])
    age, kind = chance.normal(40, 9, 400), chance.choice(kinds, 400)
    flip = chance.random(400) < 0.1
    label = np.where((kind == "b") ^ flip, "yes", "no")
    frame = {"age": age, "kind": kind, "amount": 3 * age + 50 * (kind == "b"), "y": label}
    pl.DataFrame(frame).write_csv(tmp_path / "t.csv")
    return tmp_path / "t.csv"


def made(path: Path, **changed: Any) -> tuple[Any, VerticalData]:
    columns = {"bank": ["age"], "shop": ["kind"]}
    own = {"name": "table", "path": str(path), "label": "y", "columns": columns, **changed}
    experiment = Experiment(parse({"seed": 0, "data": own}))
    return experiment.config, experiment.data()


def test_the_holder_alone_and_all_columns(table: Path) -> None:
    config, data = made(table, label_holder="bank")

    def turned(values: Mapping[Purpose, Tensor]) -> dict[Purpose, Tensor]:
        """Validation records are the test records in another order."""
        return {**values, "validation": values["test"].flip(0)}

    own = replace(data.own, values=turned(data.own.values))
    features = tuple(map(turned, data.features))
    data = replace(data, labels=turned(data.labels), features=features, own=own)
    found = references.references(config, data)
    assert found["metric"] == "auc"
    for kind in ("boosting", "linear"):
        assert found["alone"][kind] < 0.65
        assert found["pooled"][kind] > 0.8
    logits = references.pooled(config, data)
    expected = scores(references.plain(data.task), logits, data.labels["test"])["auc"]
    assert found["pooled"]["boosting"] == expected
    assert found["validation"] == {key: found[key] for key in ("alone", "pooled")}
    words = dict(summary_figures.statements({"references": found}))["without a federation"]
    assert f"{expected:.4f} by boosting" in words
    assert "no ε covers them" in words


def test_a_regression_and_a_holder_without_columns(table: Path) -> None:
    config, data = made(table, label="amount")
    found = references.references(config, data)
    assert (found["metric"], found["alone"]) == ("rmse", None)
    assert found["pooled"]["linear"] < 1.0
    assert "it has no columns" in summary_figures.statements({"references": found})[0][1]


def test_where_there_is_nothing_to_compare(table: Path) -> None:
    config, data = made(table)
    one = {**data.labels, "test": data.labels["test"] * 0}
    assert references.references(config, replace(data, labels=one)) is None
    none = {**data.labels, "test": data.labels["test"][:0]}
    assert references.references(config, replace(data, labels=none)) is None
    few = {**data.labels, "validation": data.labels["validation"][:0]}
    without = references.references(config, replace(data, labels=few))
    assert without["validation"] is None
    digits = Experiment(parse({"data": {"name": "digits", "limit": 100}}))
    assert references.references(digits.config, digits.data()) is None
