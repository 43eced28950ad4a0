"""Explanations say of each configuration what holds, and never more."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest

from vertizo.explanation import Explanation, explain

fed = SimpleNamespace(**run_path(str(Path(__file__).with_name("federations.py"))))

WANTED = {"privacy.mechanism": "gaussian", "privacy.clip": 0.5, "privacy.epsilon": 2.0}
PRIVACY: dict[str, tuple[dict[str, Any], str]] = {
    "no noise": ({}, "none"),
    "raw labels": (fed.GAUSSIAN, "none"),
    "published": ({**WANTED, "privacy.accounting": "published"}, "published"),
    "embedding noise": (fed.EMBEDDING_NOISE, "none"),
    "server untouched": ({**WANTED, "server.update": "none"}, "exact"),
    "private server": ({**WANTED, "server.update": "private-sgd"}, "exact"),
}
METHODS = ["dpzv", "vafl", "cascaded"]
CASES = list(product(METHODS, PRIVACY))


def explained(method: str, name: str, **more: Any) -> tuple[Explanation, dict[str, Any]]:
    changes = {**PRIVACY[name][0], **{k.replace("__", "."): v for k, v in more.items()}}
    privacy = fed.build(method, None, changes).privacy()
    return explain(fed.config(method, None, changes), privacy), privacy


@pytest.mark.parametrize(("method", "name"), CASES)
def test_no_guarantee_is_claimed_where_none_holds(method: str, name: str) -> None:
    words, privacy = explained(method, name)
    assert words.guarantee == privacy["guarantee"] == PRIVACY[name][1]
    assert words.summary == privacy["words"]
    if words.guarantee == "exact":
        assert privacy["epsilon"] is not None
        text = " ".join(words.protected)
        assert f"ε = {privacy['epsilon']:.4g}" in text
        assert "δ = 1e-05" in text
        assert f"ε = {privacy['epsilon']:.4g}" in words.summary
        return
    assert privacy["epsilon"] is None
    if name != "embedding noise":
        assert words.protected == ()
    assert any("abels" in line for line in words.not_protected)


@pytest.mark.parametrize(("method", "name"), CASES)
def test_validation_records_are_named(method: str, name: str) -> None:
    for validation in (0.1, 0.0):
        words, _ = explained(method, name, data__validation=validation)
        named = any("validation" in line for line in words.not_protected)
        assert named == (validation > 0)


@pytest.mark.parametrize("method", METHODS)
def test_features_of_clients_that_train_on_gradients(method: str) -> None:
    words, privacy = explained(method, "server untouched")
    first_order = fed.config(method).method.first_order_client
    covered = any("features" in thing for thing in privacy["covers"])
    assert covered != first_order
    assert any("Clients' features" in line for line in words.not_protected) != covered
