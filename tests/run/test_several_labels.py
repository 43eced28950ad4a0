"""Several labels of a record, from a table to figures and predictions; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.data.refusals import refused
from tests.rows import each

import vertizo as vz
from vertizo.config import schema
from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError, DataError
from vertizo.data.prepared import Preparation
from vertizo.models.losses import MultiLabel
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder
from vertizo.run.trained.prediction import Predictor

NAMES = ["churned", "complained", "late"]


def people(records: int = 600) -> tuple[pl.DataFrame, np.ndarray[Any, Any]]:
    """Columns, and labels of which each follows from all columns."""
    draw = np.random.default_rng(0)
    columns = draw.normal(size=(records, 6))
    truth = columns @ draw.normal(size=(6, 3)) + draw.normal(size=(records, 3)) > 0.8
    return pl.DataFrame({f"x{place}": columns[:, place] for place in range(6)}), truth


Make = Callable[..., Experiment]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """An experiment on a file of people, with these settings and values of labels."""

    def call(*settings: str, no: str = "no", yes: str = "yes", **columns: Any) -> Experiment:
        frame, truth = people()
        labels = {name: np.where(truth[:, place], yes, no) for place, name in enumerate(NAMES)}
        added = [pl.Series(*pair) for pair in {**labels, **columns}.items()]
        frame.with_columns(added).write_csv(path := tmp_path / "people.csv")
        given = (
            f"data.path={path}",
            "data.name=table",
            f"data.label=[{','.join(NAMES)}]",
            "data.columns={a: [x0, x1, x2], b: [x3, x4, x5]}",
            "seed=0",
            "batch_size=50",
            "epochs=15",
        )
        return Experiment(schema.load(None, (*given, *settings)))

    return call


def test_a_run_learns_all_and_predicts_each(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    summary = make("server.final_head=refit").run(folder).summary
    assert summary["labels"] == NAMES
    assert (summary["metric"], summary["positive"]) == ("auc", "yes")
    assert summary["test_auc"] > 0.8
    assert summary["raw_head"]["test_auc"] > 0.85
    each_auc = [summary[f"test_auc_{place}"] for place in (1, 2, 3)]
    assert np.mean(each_auc) == pytest.approx(summary["test_auc"])
    assert summary["test_auc_low"] < summary["test_auc"] < summary["test_auc_high"]
    predictor = Predictor.load(folder)
    again = predictor.test().scores
    assert again["auc"] == pytest.approx(summary["test_auc"], abs=1e-6)
    frame = pl.read_csv(tmp_path / "people.csv")
    found = predictor.predict(frame)
    assert found.scores["auc"] > 0.8
    for name in NAMES:
        holds = found.frame[f"prediction_{name}"] == "yes"
        assert (holds == (found.frame[f"probability_{name}"] > 0.5)).all()
    assert predictor.predict(frame.drop("late")).scores is None


def test_its_preparation_is_read_as_it_was_written(make: Make) -> None:
    made = make().data().preparation
    read = Preparation.from_json(made.to_json())
    assert read.agrees_with(made)
    assert isinstance(read.task, MultiLabel)
    assert read.task.names == tuple(NAMES)
    table = {"churned": ["yes", None], "complained": ["no", "no"], "late": ["yes"] * 2}
    rows, labels = read.labels(pl.DataFrame(table))
    assert (rows.tolist(), labels.tolist()) == ([0], [[1.0, 0.0, 1.0]])
    text = made.to_json().replace(
        '"column": [\n   "churned",\n   "complained",\n   "late"\n  ]', '"column": "late"'
    )
    refused(["label.column is no list"], DataError, Preparation.from_json, text)


def test_an_epsilon_takes_public_values(make: Make) -> None:
    exact = ("privacy.epsilon=2", "privacy.noise=seeded", "epochs=3")
    run = make(*exact, "data.classes=['no', 'yes']").run().summary["privacy"]
    assert (run["guarantee"], run["covers"][0]) == ("simulated", "labels")
    assert run["epsilon"] <= 2
    words = ["privacy.epsilon is 2", "data.classes", '["no", "yes"]']
    refused(words, ConfigError, make(*exact).run)


def test_the_order_of_classes_says_which_is_yes(make: Make) -> None:
    usual, turned = make(), make("data.classes=['yes', 'no']")
    assert torch.equal(usual.data().labels["train"], 1 - turned.data().labels["train"])
    assert turned.data().positive == "no"


def test_labels_that_are_no_yes_and_no_are_refused(make: Make) -> None:
    many = {"late": ["a", "b", "c"] * 200}
    refused(["'late' has 3: 'a', 'b', 'c'"], DataError, make(**many).data)
    other = {"late": ["0", "1"] * 300}
    refused(["'churned' is 'no' or 'yes' but 'late' is '0' or '1'"], DataError, make(**other).data)
    one = {"late": ["yes"] * 600}
    refused(["the label 'late' is 'yes' in every row"], DataError, make(**one).data)
    assert make("data.classes=['no','yes']", **one).run().summary["test_auc"] > 0.7
    gone = {"late": ["yes", "no"] * 299 + [None, "no"]}
    refused(["'late' is missing in 1 of 600"], DataError, make(**gone).data)
    nowhere = make("data.label=[late, nope]")
    refused(["data.label names the column 'nope'"], ConfigError, nowhere.data)


def test_what_is_about_one_label_is_refused(make: Make) -> None:
    table = {"name": "table", "path": "a.csv", "label": ["y", "z"], "classes": ["0", "1"]}
    rows: list[tuple[dict[str, Any], list[str]]] = [
        ({"server": {"final_head": "boosting"}}, ["server.final_head is 'boosting'", "'refit'"]),
        ({"server": {"final_head": "logistic"}}, ["server.final_head is 'logistic'", "'refit'"]),
        ({"method": {"name": "label-statistic"}}, ["'label-statistic'", "'tangent'"]),
        *(
            ({"privacy": {"mechanism": name, "epsilon": 1}}, [f"'{name}'", "'gaussian'"])
            for name in ("teacher", "randomised-response")
        ),
    ]
    for more, words in rows:
        refused([*words, "data.label is a list"], ConfigError, parse, {"data": table, **more})
    narrow = ("server.model.name=sum", "client.model.outputs=1")
    refused(["logits of 3 labels", "1 numbers"], ConfigError, make(*narrow).run)


@pytest.mark.full
def test_an_estimator_takes_zeros_and_ones(tmp_path: Path) -> None:
    frame, truth = people()
    rows, y = frame.to_numpy(), truth.astype(int)
    fitted = vz.VerticalClassifier(
        {"a": [0, 1, 2], "b": [3, 4, 5]}, method="dpzv", epochs=15, batch_size=50, random_state=0
    ).fit(rows, y)
    likely, predicted = fitted.predict_proba(rows), fitted.predict(rows)
    assert likely.shape == predicted.shape == y.shape
    assert ((likely > 0.5) == predicted).all()
    assert (predicted == y).mean() > 0.75
    assert fitted.score(rows, y) == (predicted == y).all(1).mean()
    fitted.save(tmp_path / "kept")
    assert np.array_equal(vz.VerticalClassifier.load(tmp_path / "kept").predict(rows), predicted)
    asked = {"method": "dpzv", "privacy": vz.Privacy(2.0), "random_state": 0}
    private = vz.VerticalClassifier(epochs=2, **asked).fit(rows, y)
    assert private.result_.summary["privacy"]["epsilon"] == pytest.approx(2.0, rel=1e-3)


@each(
    "y, words, more",
    [
        (np.array([[0, 2], [1, 0]] * 10), "y has 2 columns.*one is 2", {}),
        (np.array([["no", "yes"], ["yes", "no"]] * 10), "must be 0 or 1; one is 'no'", {}),
        (np.array([[0, 1], [1, 0]] * 10), "classes is", {"classes": ["a", "b"]}),
        (np.array([[0, 1], [1, 0]] * 10), "data.class_weights", {"class_weight": "balanced"}),
    ],
)
def test_an_estimator_refuses_others(y: Any, words: str, more: dict[str, Any]) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 4))
    with pytest.raises(ValueError, match=words):
        vz.VerticalClassifier(**more).fit(rows, y)


def test_a_folder_keeps_what_it_takes(make: Make, tmp_path: Path) -> None:
    """Its configuration has the list, and a control of it runs as well."""
    summary = make("control=label-free").run(tmp_path / "run").summary
    assert summary["test_auc"] > 0.85
    assert RunFolder(tmp_path / "run").config().data.label == NAMES
