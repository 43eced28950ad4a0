"""Explanations say of each configuration what holds, and never more."""

from __future__ import annotations

import re
from itertools import product
from statistics import NormalDist
from typing import Any

import pytest
from tests import federations as fed
from tests.rows import each

from vertizo.config.schema import parse
from vertizo.privacy.accounting import label_advantage
from vertizo.run.build.coverage import FEATURES
from vertizo.run.experiment import Experiment
from vertizo.run.trained.explanation import Explanation, explain

WANTED = {"privacy.mechanism": "gaussian", "privacy.clip": 0.5, "privacy.epsilon": 2.0}
PRIVACY: dict[str, tuple[dict[str, Any], str]] = {
    "no noise": ({}, "none"),
    "raw labels": (fed.GAUSSIAN, "none"),
    "published": ({**WANTED, "privacy.accounting": "published"}, "published"),
    "embedding noise": (fed.EMBEDDING_NOISE, "none"),
    "server untouched": ({**WANTED, "server.update": "none"}, "simulated"),
    "private server": ({**WANTED, "server.update": "private-sgd"}, "simulated"),
}
METHODS = ["dpzv", "vafl", "cascaded"]


def explained(method: str, name: str, **more: Any) -> tuple[Explanation, dict[str, Any]]:
    changes = {**PRIVACY[name][0], **{k.replace("__", "."): v for k, v in more.items()}}
    privacy = fed.build(method, None, changes).privacy()
    return explain(fed.config(method, None, changes), privacy), privacy


@each("method, name", product(METHODS, PRIVACY))
def test_no_guarantee_is_claimed_where_none_holds(method: str, name: str) -> None:
    """And validation records are named, if there are some."""
    for validation in (0.1, 0.0):
        words, _ = explained(method, name, data__validation=validation)
        named = any("validation" in line for line in words.not_protected)
        assert named == (validation > 0)
    words, privacy = explained(method, name)
    assert words.guarantee == privacy["guarantee"] == PRIVACY[name][1]
    assert words.summary == privacy["words"]
    if words.guarantee == "simulated":
        text = " ".join(words.protected)
        assert f"ε = {privacy['epsilon']:.4g}" in text
        assert "δ = 1e-05" in text
        assert f"ε = {privacy['epsilon']:.4g}" in words.summary
        return
    assert privacy["epsilon"] is None
    if name != "embedding noise":
        assert words.protected == ()
    assert any("abels" in line for line in words.not_protected)


@each("method", METHODS)
def test_features_of_clients_that_train_on_gradients(method: str) -> None:
    words, privacy = explained(method, "server untouched")
    first_order = fed.config(method).method.first_order_client
    covered = any("features" in thing for thing in privacy["covers"])
    assert covered != first_order
    assert any("Clients' features" in line for line in words.not_protected) != covered


def test_an_epsilon_is_put_into_how_often_a_guess_is_right() -> None:
    """Who sees one number with noise, whose μ gives this ε at this δ, is right in Φ(μ/2)."""
    for epsilon in (0.1, 1.0, 3.0, 30.0):
        changes = {**WANTED, "privacy.epsilon": epsilon, "server.update": "none"}
        privacy = fed.build("dpzv", None, changes).privacy()
        words = explain(fed.config("dpzv", None, changes), privacy)
        (said,) = re.findall(r"is right at most ([\d.]+) % of the time", words.promise)
        assert ("weak promise" in words.promise) == (epsilon == 30)
        assert "does not know the seed" in words.promise
        right = NormalDist().cdf(privacy["mu"] / 2)
        assert 100 * right - 1e-9 <= float(said) <= 100 * right + 0.1
        assert privacy["label_advantage"] == pytest.approx(2 * right - 1)
        advantage = label_advantage.text(privacy["label_advantage"])
        assert f"label advantage is at most {advantage}" in words.promise
        assert f"Label advantage: at most {advantage}." in words.summary


def test_what_is_not_covered_is_in_the_statement() -> None:
    words, privacy = explained("dpzv", "server untouched")
    assert privacy["records"] == 29
    assert privacy["not_covered"] == ["validation records", "test records"]
    assert "each of the 29 training records" in words.summary
    assert "Not covered: validation records, test records." in words.summary
    assert any(line.startswith("Test records") for line in words.not_protected)


def test_a_simulated_guarantee_is_no_exact_one() -> None:
    words, _ = explained("dpzv", "private server")
    assert words.summary.startswith("Simulated: ε = ")
    text = " ".join(words.protected)
    assert "simulated ε = " in text
    assert "against whoever knows the seed, nothing is protected" in text
    secret, _ = explained("dpzv", "private server", privacy__noise="secure")
    assert secret.guarantee == "exact"
    assert "imulated" not in " ".join([secret.summary, *secret.protected, *secret.how])


def test_a_control_without_labels_hands_on_no_head() -> None:
    """Its one model that predicts is fitted on raw labels, whatever the configuration has."""
    config = parse({"data": {"name": "digits", "limit": 200}, "control": "label-free"})
    words = explain(config, Experiment(config).run().summary["privacy"])
    assert any("raw head (server.final_head logistic)" in line for line in words.not_protected)
    assert not any("Passing on" in line for line in words.protected)
    assert any("Passing on" in line for line in explained("dpzv", "server untouched")[0].protected)


def test_a_raw_head_and_what_mixes_records_are_said() -> None:
    base = {"seed": 0, "data": {"name": "breast-cancer"}, "privacy": {"epsilon": 1.0}}
    for changes, words in (
        ({"server": {"final_head": "boosting"}}, "The raw head (server.final_head boosting)"),
        ({"method": {"name": "tangent"}}, "directions of method 'tangent' are of all records"),
        ({"client": {"pretrain": "pca"}}, "client.pretrain 'pca' is fitted on all of a client's"),
    ):
        config = parse({**base, **changes})
        privacy = Experiment(config).privacy()
        assert privacy["covers"] == ["labels"], changes
        assert any(words in line for line in explain(config, privacy).not_protected), changes
    choice = {"method": {"name": "label-statistic"}, "evaluate_every": 1}
    config = parse({**base, **choice, "data": {"name": "digits", "limit": 200}})
    words = explain(config, Experiment(config).privacy())
    assert any("validation records choose among models" in line for line in words.not_protected)
    for kind, covered in (("whiten", False), ("splines", False), ("filters", True)):
        own = {"data": {"name": "digits", "limit": 200}, "client": {"pretrain": kind}}
        config = parse({**base, **own})
        assert (FEATURES in Experiment(config).privacy()["covers"]) is covered
    orthonormal = {"name": "tangent", "directions": "orthonormal"}
    assert parse({**base, "method": orthonormal}).method.mixes_features is False
