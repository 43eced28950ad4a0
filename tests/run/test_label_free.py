"""The control at ε = 0: no label leaves, and what clients send are their own best numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import federations as fed
from tests.lazy import Lazy
from tests.rows import each

from vertizo.config.schema import ExperimentConfig, parse
from vertizo.core.errors import RunError
from vertizo.run.build.coverage import FEATURES
from vertizo.run.build.label_free import FITTED, controls_of, is_private
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import build
from vertizo.run.trained.prediction import Predictor

decomposition = Lazy("sklearn.decomposition")

PRIVATE: dict[str, Any] = {"privacy": {"epsilon": 1.0, "clip": 1.0}, "epochs": 2, "batch_size": 64}


def configured(**changes: Any) -> ExperimentConfig:
    return parse({"seed": 0, "control": "label-free", **changes})


@pytest.mark.full
def test_it_is_better_than_frozen_clients_and_releases_nothing(tmp_path: Path) -> None:
    """Digits, three numbers of each of four parties; a ledger is not even looked for."""
    ledger = {"privacy": {**PRIVATE["privacy"], "ledger": str(tmp_path / "absent.sqlite")}}
    seen: list[bytes] = []
    found = Experiment(configured(**PRIVATE | ledger)).run(
        tmp_path / "run", observer=lambda now, way, client, frame: seen.append(frame)
    )
    frozen = Experiment(parse({"seed": 0, "control": "frozen", **PRIVATE})).run().summary
    summary = found.summary
    assert summary["test_accuracy"] > 0.85 > frozen["test_accuracy"] + 0.3
    assert summary["test_accuracy"] == summary["raw_head"]["test_accuracy"]
    assert (summary["raw_head"]["kind"], summary["rounds"]) == ("logistic", 0)
    assert (seen, found.metrics, summary["bytes_up"], summary["bytes_down"]) == ([], [], 0, 0)
    assert summary["bytes_table"] == pytest.approx(1294 * 4 * 3 * 4, rel=0.2), "one upload"
    assert (found.federation.releases, found.federation.server.noises) == (None, [])
    privacy = summary["privacy"]
    assert (privacy["guarantee"], privacy["covers"]) == ("exact", ["labels", FEATURES])
    assert [privacy[key] for key in ("epsilon", "delta", "label_advantage")] == [0, 0, 0]
    assert privacy["words"].startswith("ε = 0: ")
    again = Experiment(configured(**PRIVATE | ledger)).run(tmp_path / "run", resume=True)
    assert again.summary["test_accuracy"] == summary["test_accuracy"]
    with pytest.raises(RunError, match="predict with --head raw"):
        Predictor.load(tmp_path / "run", "private")


def test_there_is_no_guarantee_where_labels_say_what_the_classes_are() -> None:
    """One of a class of its own may add a number to what clients upload, or end a job."""
    data = replace(fed.data(), fitted_labels=True)
    for method, changes in (
        ("tangent", {"server.model": {"name": "sum"}, "client.model.outputs": fed.CLASSES}),
        ("dpzv", {}),
    ):
        changes = {"control": "label-free", **changes}
        read = build(fed.config(method, None, changes), data).statement()
        assert (read.guarantee, read.words) == ("none", FITTED)
        known = build(fed.config(method, None, changes), fed.data()).statement()
        assert (known.guarantee, known.epsilon) == ("exact", 0)


def test_clients_send_their_first_components_whatever_the_labels() -> None:
    data = fed.data(records=60)
    sent = []
    for labels in (data.labels["train"], data.labels["train"].flip(0)):
        data.labels["train"] = labels
        federation = build(fed.config(changes={"control": "label-free"}), data)
        sent.append([model(own["train"]) for model, own in _pairs(federation, data)])
    for first, second, own in zip(*sent, data.features, strict=True):
        assert torch.equal(first, second)
        assert first.shape == (60, fed.DIM)
        fitted = decomposition.PCA(fed.DIM).fit_transform(own["train"].double().numpy())
        components = torch.from_numpy(fitted)
        apart = (first.double() / components).abs()  # up to the sign of each
        assert torch.allclose(apart, torch.ones_like(apart), rtol=1e-3)


def _pairs(federation: Any, data: Any) -> Any:
    return zip(federation.models, data.features, strict=True)


KEPT = [
    ({"client": {"pretrain": "kmeans"}}, 3),
    ({"client": {"pretrain": "splines", "components": 2}}, 3),
    ({"client": {"pretrain": "pca", "components": 2}}, 3),
    ({"method": {"name": "tangent"}}, 10),
    ({"client": {"model": {"name": "filters", "count": 2}}, "data": {"parties": 2}}, None),
]
"""Changes, and the numbers that a client sends; None where its own model makes them."""


@each("changes, numbers", KEPT)
def test_as_many_numbers_as_the_method_sends(changes: dict[str, Any], numbers: int | None) -> None:
    data = {"limit": 200, "test_limit": 50, **changes.get("data", {})}
    config = configured(**{**changes, "data": data})
    experiment = Experiment(config)
    own = build(config, experiment.data())
    frozen = build(config.model_copy(update={"control": "frozen"}), experiment.data())
    dims = [client.embedding_dim for client in own.made]
    assert dims == [client.embedding_dim for client in frozen.made]
    assert numbers is None or set(dims) == {numbers}
    rows = experiment.data().features[0]["test"]
    assert torch.equal(own.models[0](rows), frozen.models[0](rows)) == (numbers is None)


@pytest.mark.full
@each(
    "changes",
    [
        {"data": {"name": "diabetes"}},
        {"data": {"name": "breast-cancer", "label_holder": "worst"}},
        {"server": {"final_head": "boosting"}, "data": {"limit": 100, "validation": 0}},
        {"method": {"name": "vafl"}, "codecs": {"feedback": "up", "up": {"name": "uniform"}}},
        {"method": {"name": "split"}, "data": {"limit": 100}},
        {"server": {"join": "sum", "model": {"name": "sum"}}, "client": {"model": {"outputs": 10}}},
    ],
)
def test_it_goes_with_every_task_method_and_head(changes: dict[str, Any]) -> None:
    summary = Experiment(configured(**changes)).run().summary
    usual = "boosting" if "name" in changes.get("data", {}) else "logistic"
    head = changes.get("server", {}).get("final_head", usual)
    assert summary["raw_head"]["kind"] == head
    assert summary["test_loss"] == summary["raw_head"]["test_loss"]
    fitted = changes.get("data", {}).get("name") == "diabetes"  # its scale is read off its labels
    assert summary["privacy"]["epsilon"] == (None if fitted else 0)


def test_who_has_it() -> None:
    embeddings = {"client": {"model": {"name": "text-embeddings", "checkpoint": "random"}}}
    assert controls_of(ExperimentConfig()) == ("frozen", "random", "label-free")
    texts = parse({**embeddings, "server": {"model": {"name": "text-rest"}}})
    assert controls_of(texts) == ("frozen", "random")
    for changes, expected in (
        ({}, False),
        ({"privacy": {"epsilon": 1.0}}, True),
        ({"privacy": {"epsilon": 1.0, "accounting": "published"}}, False),
        ({"privacy": {"clip": 1.0, "noise_std": 1.0}, "server": {"update": "sgd"}}, False),
    ):
        assert is_private(parse(changes)) == expected
