"""Under a guarantee no label, and nothing else that is protected, decides whether a run goes on.

Whoever sees that training was refused, or ended early, would learn of it. So all labels, and all
weights, are exchanged for others, under every mechanism that protects them: each run makes as many
rounds and sends as many bytes, in a simulation, in an estimator and over a network alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests import deployments as dep
from tests.network import by_hand
from tests.refusals import refused
from tests.rows import each, pairs
from torch import Tensor, nn

import vertizo as vz
from vertizo.config import schema
from vertizo.core.errors import ConfigError, DataError, RunError
from vertizo.run.experiment import Experiment

ROWS = 60
COLUMNS = {"bank": ["income"], "shop": ["visits"], "lab": ["age", "height"]}
LABELS: dict[str, list[str]] = {
    "mixed": ["no", "yes"] * (ROWS // 2),
    "all of one class": ["no"] * ROWS,
    "all of the other": ["yes"] * ROWS,
    "one of the other": ["yes"] + ["no"] * (ROWS - 1),
}
GAUSSIAN = ["privacy.mechanism=gaussian", "privacy.epsilon=3", "privacy.delta=1e-3"]
PROTECTED: dict[str, list[str]] = {
    "replies": [*GAUSSIAN, "server.update=none"],
    "a private server": [*GAUSSIAN, "server.update=private-sgd", "client.model.hidden=[]"],
    "a zeroth-order server": [*GAUSSIAN, "server.update=private-zeroth-order"],
    "secret samples": [*GAUSSIAN, "server.update=poisson-dp-sgd", "client.model.hidden=[]"],
    "own columns": [*GAUSSIAN, "data.label_holder=bank", "server.encoder.outputs=2"],
    "label statistics": [*GAUSSIAN, "method.name=label-statistic"],
    "tangents": [*GAUSSIAN, "method.name=tangent"],
    "randomised response": ["privacy.mechanism=randomised-response", "privacy.epsilon=2"],
    "a teacher": ["privacy.mechanism=teacher", "privacy.epsilon=2", "privacy.delta=1e-3"],
    "label-free": ["control=label-free"],
    "a raw head": [*GAUSSIAN, "server.final_head=logistic"],
    "a boosting head": [*GAUSSIAN, "server.final_head=boosting"],
    "a refit head": [*GAUSSIAN, "server.final_head=refit"],
}


def table(folder: Path, labels: Sequence[Any], weights: Sequence[float] | None = None) -> Path:
    chance = np.random.default_rng(3)
    columns: dict[str, Any] = {
        column: chance.normal(size=ROWS).round(3) for own in COLUMNS.values() for column in own
    }
    columns["bought"] = labels
    if weights is not None:
        columns["counts"] = weights
    folder.mkdir(exist_ok=True, parents=True)
    pl.DataFrame(columns).write_csv(folder / "t.csv")
    return folder / "t.csv"


def config(path: Path, *settings: str) -> schema.ExperimentConfig:
    columns = "{" + ", ".join(f"{p}: [{', '.join(own)}]" for p, own in COLUMNS.items()) + "}"
    plain = [
        *(f"data.path={path}", "data.name=table", "data.label=bought", f"data.columns={columns}"),
        *("seed=1", "epochs=1", "batch_size=16", "client.model.outputs=2"),
    ]
    if not any(setting.startswith("data.label_range") for setting in settings):
        plain.append("data.classes=['no', 'yes']")
    return schema.load(None, [*plain, *settings])


def heard(path: Path, *settings: str) -> tuple[int, int, int]:
    """Rounds, and bytes each way."""
    summary = Experiment(config(path, *settings)).run().summary
    return summary["rounds"], summary["bytes_up"], summary["bytes_down"]


OTHERS = [name for name in LABELS if name != "mixed"]


@each("name, labels", list(product(PROTECTED, OTHERS)), gate=pairs(PROTECTED, OTHERS)[1::3])
def test_all_labels_exchanged_change_no_run(name: str, labels: str, tmp_path: Path) -> None:
    one, other = (table(tmp_path / which, LABELS[which]) for which in ("mixed", labels))
    assert heard(one, *PROTECTED[name]) == heard(other, *PROTECTED[name])


def test_without_protection_they_are_refused_as_before(tmp_path: Path) -> None:
    path = table(tmp_path, LABELS["all of one class"])
    words = r"are of class 'no'; training takes records of two classes"
    for settings in (
        [],
        ["privacy.mechanism=embedding-noise", "privacy.clip=5", "privacy.epsilon=5"],
    ):
        refused("one class", DataError, heard, path, *settings, match=words)
    weighed = table(tmp_path, LABELS["mixed"], [0.0] * ROWS)
    words = "the weight 'counts' is 0 in every row"
    refused("no weight", DataError, heard, weighed, "data.weight=counts", match=words)


WEIGHTS = [[0.0] * ROWS, [0.0] * (ROWS - 1) + [1.0], [1e30] * ROWS]
HEADS = ["logistic", "boosting", "private", "refit"]


@each("weights, head", list(product(WEIGHTS, HEADS)), gate=pairs(WEIGHTS, HEADS)[:2])
def test_all_weights_exchanged_change_no_run(
    weights: list[float], head: str, tmp_path: Path
) -> None:
    settings = (*GAUSSIAN, "data.weight=counts", f"server.final_head={head}")
    one = table(tmp_path / "one", LABELS["mixed"], [1.0] * ROWS)
    other = table(tmp_path / "other", LABELS["mixed"], weights)
    assert heard(one, *settings) == heard(other, *settings)


NUMBERS = {
    "equal": [5.0] * ROWS,
    "hardly apart": [1e7 + place / ROWS for place in range(ROWS)],
    "large but one": [1e7] * (ROWS - 1) + [0.0],
    "beyond the range": [3e7] * ROWS,
    "one beyond all": [3e38] + [0.0] * (ROWS - 1),
    "all beyond all": [3e38, -3e38] * (ROWS // 2),
}


@each("name, head", list(product(NUMBERS, HEADS)), gate=pairs(NUMBERS, HEADS)[2:])
def test_all_numbers_exchanged_change_no_run(name: str, head: str, tmp_path: Path) -> None:
    """Without a public range, float32 would be refused for rounding the second."""
    settings = (*GAUSSIAN, "data.label_range=[0, 2e7]", f"server.final_head={head}")
    plain = table(tmp_path / "one", range(ROWS))
    path = table(tmp_path / "other", NUMBERS[name])
    assert heard(path, *settings) == heard(plain, *settings)
    if name == "all beyond all":
        bare = "data.task=regression", "data.label_range=[0, 2e7]"
        refused(name, RunError, heard, path, *bare, match="loss is inf")
    if name == "hardly apart":
        bare = "data.task=regression", "data.label_range=null"
        refused(name, DataError, heard, path, *bare, match="float32 rounds by")


def test_a_range_that_float32_cannot_tell_apart_is_refused_whatever_the_labels(
    tmp_path: Path,
) -> None:
    path, bad = table(tmp_path, list(range(ROWS))), "data.label_range=[10000000, 10000001]"
    refused(bad, ConfigError, heard, path, *GAUSSIAN, bad, match="float32 rounds such labels")


class Picky(nn.Module):
    """An encoder of the label holder's that fails for some of its records."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 2)

    def forward(self, rows: Tensor) -> Tensor:
        if float(rows.detach().abs().max()) > 1.5:
            raise ValueError("no income is like that")
        return self.layer(rows)


def test_an_encoder_that_fails_for_a_record_ends_nothing(tmp_path: Path) -> None:
    path = table(tmp_path, LABELS["mixed"])
    model = f"server.encoder={{name: module, path: '{__file__}:Picky'}}"
    settings = [*GAUSSIAN, "server.secret.warm_up=8", "data.label_holder=bank"]
    plain = heard(path, *settings, "server.encoder.outputs=2")
    assert heard(path, *settings, model) == plain
    refused("without noise", ConfigError, heard, path, settings[-1], model, match="like that")


PRIVACY = vz.Privacy(epsilon=3.0, delta=1e-3)


@each("labels", list(LABELS))
@pytest.mark.filterwarnings("ignore:frame:UserWarning")  # notes on the labels
def test_an_estimator_refuses_no_labels(labels: str) -> None:
    chance = np.random.default_rng(3)
    held, options = {"a": [0, 1], "b": [2]}, {"method": "dpzv", "epochs": 1, "random_state": 0}
    made = vz.VerticalClassifier(held, privacy=PRIVACY, classes=["no", "yes"], **options)
    made.fit(chance.normal(size=(ROWS, 3)), np.array(LABELS[labels]), np.zeros(ROWS))
    assert made.result_.summary["rounds"] > 0
    plain = vz.VerticalClassifier(held, **options)
    with pytest.raises(ValueError, match=r"two classes|one class|non-zero number"):
        plain.fit(chance.normal(size=(ROWS, 3)), np.array(LABELS[labels]), np.zeros(ROWS))


@each("labels", OTHERS, gate=["one of the other"])
def test_a_served_job_refuses_no_labels(
    labels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = []
    for which in ("mixed", labels):
        folder = tmp_path / which
        folder.mkdir()
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))  # where the same people are registered
        columns = {"bank": ["diagnosis"], "lab": ["x0", "x1"], "clinic": ["x2"]}
        by_hand.write_tables(folder, columns, 60)
        said = [by_hand.CLASSES[label == "yes"] for label in LABELS[which]]
        rows = pl.read_csv(folder / "bank.csv").with_columns(pl.Series("diagnosis", said))
        rows.write_csv(folder / "bank.csv")
        keys = {**dep.PRIVATE, "epochs": 1, "batch_size": 16}
        config = by_hand.holder(folder, folder, {"trial": False}, **keys)
        members = [by_hand.member(folder, folder, name) for name in by_hand.NAMES]
        queries.append([one.queries for one in dep.served(folder, config, members)])
    assert queries[0] == queries[1]
