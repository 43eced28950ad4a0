"""The label holder's own features, with every method: half of what decides a label is theirs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import federations as fed
from tests.data.refusals import refused
from tests.rows import each
from torch import nn

from vertizo.config import schema as configuration
from vertizo.core.errors import ConfigError
from vertizo.data.vertical import Holding, VerticalData
from vertizo.methods.choice import asking
from vertizo.models.losses import Regression
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import Federation
from vertizo.run.trained.explanation import explain
from vertizo.run.trained.prediction import Predictor


def half_own(data: VerticalData) -> VerticalData:
    """The last client's part belongs to the label holder."""
    own = Holding("own", dict(data.features[-1]))
    return replace(data, parties=data.parties[:-1], features=data.features[:-1], own=own)


FIRST_ORDER = {"vafl", "split", "compressed-vfl", "fedbcd", "flex-vfl", "czofo"}


def changes(method: str) -> dict[str, Any]:
    rate = 0.1 if method in FIRST_ORDER else 0.03
    zeroth = "zoo" in method
    return {
        "epochs": 200 if zeroth else 20,
        "batch_size": 16,
        "client.model": {"name": "mlp", "outputs": 1},
        "client.optimizer.learning_rate": 0.003 if zeroth else rate,
        "server.optimizer.learning_rate": 0.01 if zeroth else 0.1,
        "server.model": {"name": "mlp", "hidden": [12]},
        "server.encoder": {"name": "mlp", "outputs": 4},
        **({} if method in {*FIRST_ORDER, "tangent"} else {"method.smoothing": 0.05}),
    }


@pytest.mark.full
@each("method", {*asking()} - {"label-statistic"})  # whose replies hold nothing of it
def test_every_method_learns_from_both(method: str) -> None:
    """A client decides one bit of the label, the label holder the other: alone each gets half."""
    data = half_own(fed.two_bits(160))
    federation, _ = fed.ran(method, None, changes(method), of=data)
    federation.simulator.upload("test", 400)
    assert federation.server.score("test")["accuracy"] > 0.7


def joined_module(federation: Federation, width: int, own: int, sizes: list[int]) -> nn.Module:
    """Server and encoder as plain modules with the federation's parameters."""
    encoder = nn.Linear(own, 4)
    top = nn.Sequential(nn.Linear(width + 4, sizes[0]), nn.ReLU(), nn.Linear(sizes[0], sizes[1]))
    both = nn.ModuleDict({"top": top, "encoder": encoder})
    parameters = federation.server.side.model.parameters
    nn.utils.vector_to_parameters(parameters.clone(), both.parameters())
    return both


@each("join", ["concat", "sum", "mean"])
def test_split_learning_is_gradient_descent_on_the_joined_model(join: str) -> None:
    data = half_own(fed.data(24, 3))
    settings = {
        "batch_size": 24,
        "server.join": join,
        "server.encoder": {"name": "mlp", "outputs": 4, "final_relu": False},
    }
    federation = fed.build("split", None, settings, of=data)
    clients = [fed.twin(m.parameters, [4, 3]).float() for m in federation.models]
    both = joined_module(federation, 6 if join == "concat" else 3, 4, [5, 3])
    federation.start(upload_table=False)
    fed.go_on(federation, 1)
    parts = [client(own["train"]) for client, own in zip(clients, data.features, strict=False)]
    joined = torch.cat(parts, 1) if join == "concat" else sum(parts)
    joined = joined / 2 if join == "mean" else joined
    rows = torch.cat([joined, both["encoder"](data.own.values["train"])], 1)
    nn.functional.cross_entropy(both["top"](rows), data.labels["train"]).backward()
    for module, found, rate in [
        *((c, m.parameters, 0.05) for c, m in zip(clients, federation.models, strict=True)),
        (both, federation.server.side.model.parameters, 0.1),
    ]:
        before = nn.utils.parameters_to_vector(module.parameters())
        moved = torch.cat([w.grad.reshape(-1) for w in module.parameters() if w.grad is not None])
        torch.testing.assert_close(found, (before - rate * moved).detach(), atol=1e-6, rtol=1e-4)


@each("update", ["zeroth-order", "forward-difference", "none"])
def test_the_encoder_is_trained_by_whatever_trains_the_server(update: str) -> None:
    data = half_own(fed.data(24, 3))
    federation = fed.build("dpzv", None, {"server.update": update}, of=data)
    before = federation.server.side.model.parameters.clone()
    federation.start(upload_table=False)
    fed.go_on(federation, 5)
    moved = federation.server.side.model.parameters != before
    encoder = 4 * 16 + 16
    assert moved[-encoder:].any() == moved[:-encoder].any() == (update != "none")


def test_own_features_cost_no_bytes_and_are_told_to_nobody() -> None:
    """Frames are the same in number and size, and no query changes with the label holder's own."""
    base = half_own(fed.data(24, 3))
    other = Holding("own", {p: torch.randn_like(v) for p, v in base.own.values.items()})
    tables = (base, replace(base, own=other), replace(base, own=None))
    tapes = [fed.ran("dpzv", None, {"control": "frozen"}, of=data)[1] for data in tables]
    sizes = [[len(frame) for *_, frame in tape.seen] for tape in tapes]
    assert sizes[0] == sizes[1] == sizes[2]
    queries = [[f for _, way, _, f in tape.seen if way == "up"] for tape in tapes]
    assert queries[0] == queries[1] == queries[2]


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    settings = ["data.name=breast-cancer", "data.label_holder=worst", "epochs=2"]
    whole = Experiment(configuration.load(None, settings)).run(tmp_path / "whole").summary
    assert whole["parties"] == ["mean", "error"]
    assert whole["test_auc"] > 0.9
    again = Experiment(configuration.load(tmp_path / "whole" / "config.yaml")).run().summary
    assert again["test_loss"] == whole["test_loss"]


SUM: dict[str, Any] = {
    "server.model": {"name": "sum"},
    "server.update": "private-sgd",
    "server.final_head": "boosting",
    "server.embedding_bound": 1e30,
    "privacy.mechanism": "gaussian",
    "privacy.clip": 0.5,
    "privacy.epsilon": 1.0,
}


@each("method", ["tangent", "dpzv"])
def test_nothing_of_a_sum_is_computed_from_own_columns(method: str) -> None:
    """Whatever they are, not even finite: the server's state and every byte to a client."""
    base = half_own(fed.data(29, 3))
    found = []
    for size in (1.0, -1e30, math.inf, math.nan):
        values = {purpose: size * part for purpose, part in base.own.values.items()}
        own = replace(base.own, values=values)
        data = replace(base, own=own, fitted=("own",))
        federation, tape = fed.ran(method, None, SUM, of=data)
        assert federation.statement().covers[:2] == ("labels", "the label holder's columns")
        federation.simulator.upload("test", 11)
        scores = federation.server.score("test")
        found.append((tape.seen, scores, federation.server.side.model.parameters.tolist()))
    alone, tape = fed.ran(method, None, SUM, of=replace(base, own=None))
    alone.simulator.upload("test", 11)
    scores = alone.server.score("test")
    found.append((tape.seen, scores, alone.server.side.model.parameters.tolist()))
    assert all(one == found[0] for one in found)


def test_own_columns_of_a_sum_enter_the_raw_head(tmp_path: Path) -> None:
    settings = ["data.name=breast-cancer", "method.name=tangent", "server.final_head=logistic"]
    settings += ["privacy.epsilon=1", "data.label_holder=worst"]
    experiment = Experiment(configuration.load(None, settings))
    with experiment.opened() as training:
        assert any("the raw head" in note for note in training.federation.notes)
    whole = experiment.run(tmp_path / "whole").summary
    assert whole["raw_head"]["test_auc"] > whole["test_auc"] + 0.002
    words = explain(experiment.config, whole["privacy"])
    assert not any("holder's own columns" in line for line in words.not_protected)
    again = Predictor.load(tmp_path / "whole").test().scores  # of the private model
    assert again["auc"] == pytest.approx(whole["test_auc"])


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"server.encoder": {"name": "cnn"}}, ["server.encoder", "'cnn'", "[4]"]),
    ({"server.model": {"name": "sum"}, "server.join": "sum"}, ["'sum'", "(own)", "final_head"]),
    (
        {"server.encoder": {"name": "function", "path": "a.py:b", "num_parameters": 2}},
        ["server.encoder", "function"],
    ),
]


@each("settings, words", REFUSED)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], words: list[str]) -> None:
    data = half_own(fed.data(24, 3))
    refused(words, ConfigError, fed.build, "dpzv", None, settings, of=data)


def test_regression_labels_scaled_by_their_own_mean_have_no_guarantee() -> None:
    """None is printed with noise alone, and a target is refused."""
    base = fed.data(24, 3)
    labels = {purpose: values.float() for purpose, values in base.labels.items()}
    scaled = replace(base, task=Regression(1.0, 0.5), labels=labels, fitted_labels=False)
    fitted = replace(scaled, fitted_labels=True)
    private = {"server.update": "none", "privacy.mechanism": "gaussian", "privacy.clip": 1.0}
    noised = {**private, "privacy.noise_std": 3.0}
    assert fed.build("dpzv", None, noised, of=scaled).statement().guarantee == "simulated"
    statement = fed.build("dpzv", None, noised, of=fitted).statement()
    assert (statement.guarantee, statement.epsilon, statement.mu) == ("none", None, None)
    assert "label_range" in statement.words
    asked = {**private, "privacy.epsilon": 1.0}
    fed.build("dpzv", None, asked, of=scaled)
    with pytest.raises(ConfigError, match=r"epsilon is 1.0 .* data.label_range"):
        fed.build("dpzv", None, asked, of=fitted)
