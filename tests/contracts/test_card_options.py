"""Rounds on a stand-in for a card are the processor's with every option, model and kind of data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests import federations
from tests.contracts.test_cards import held_to_the_processor
from tests.contracts.test_graphs import OPTIONS
from tests.rows import each
from torch import Tensor, nn

from vertizo.data.vertical import Holding, VerticalData
from vertizo.models.losses import MultiLabel, Regression
from vertizo.protocol.codecs.catalog import CODECS

UPDATED = {"server.update": "private-sgd", "privacy.server_noise_std": 0.3}


class Own(nn.Sequential):
    """A module of somebody's."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


OTHER = {"coordinate"}
"""Laws whose directions are others on a card."""
LAWFUL = [case for case in OPTIONS if case[1].get("method.directions") not in OTHER]
PREPARED: list[tuple[str, dict[str, Any]]] = [
    (method, {"client.pretrain": kind, "client.components": 3})
    for method in ("dpzv", "vafl")
    for kind in ("pca", "whiten", "kmeans", "splines")
]
NARROW = {"name": "uniform", "bits": 8}
CODED: list[tuple[str, dict[str, Any]]] = [
    *(("vafl", {f"codecs.{way}": {"name": name}}) for name in CODECS for way in ("up", "down")),
    *(
        ("vafl", {"codecs.up": NARROW, "codecs.down": NARROW, "codecs.feedback": which})
        for which in ("up", "down", "both")
    ),
    ("czofo", {"codecs.ids": "implicit"}),
]
CODED = [case for case in CODED if {"name": "paired"} not in case[1].values()]
SERVED: list[tuple[str, dict[str, Any]]] = [
    ("dpzv", {"server.model": {"name": "sum"}, "server.update": "none"}),
    ("vafl", {"privacy.mechanism": "teacher", "privacy.epsilon": 2.0, "privacy.delta": 1e-3}),
    ("vafl", {"privacy.mechanism": "randomised-response", "privacy.epsilon": 2.0}),
    ("vafl", {"data.class_weights": "balanced"}),
]


def made(kind: str) -> VerticalData:
    """Small data of that kind."""
    images = kind in ("images", "bytes")
    data = federations.data(sides=(3, 8, 8) if images else ())

    def each_part(change: Callable[[Tensor], Tensor]) -> VerticalData:
        parts = [{k: change(v) for k, v in part.items()} for part in data.features]
        return replace(data, features=tuple(parts), are_images=images)

    if kind == "bytes":
        return each_part(lambda rows: (rows.clamp(-2, 2) * 60).round() / 60)
    if kind == "tokens":
        return each_part(lambda rows: rows.mul(7).long().remainder(20))
    if kind == "categories":
        coded = each_part(lambda rows: torch.cat([rows[:, :1].gt(0).float(), rows[:, 1:]], 1))
        return replace(coded, cardinalities=((2,),) * len(data.parties))
    if kind == "own columns":
        own = Holding("own", dict(data.features[-1]))
        return replace(data, parties=data.parties[:-1], features=data.features[:-1], own=own)
    if kind == "values":
        labels: Any = {k: v.float() for k, v in data.labels.items()}
        return replace(data, labels=labels, task=Regression())
    if kind == "several labels":
        labels = {k: nn.functional.one_hot(v, 3).float() for k, v in data.labels.items()}
        return replace(data, labels=labels, task=MultiLabel(("a", "b", "c")))
    return each_part(lambda rows: rows)


CNN = {"client.model": {"name": "cnn", "channels": [2], "outputs": 3}}
REST = {"name": "resnet18-rest", "width": 4, "assemble": "height", "image": [24, 8], "parts": 3}
SLOW = {"client.optimizer.learning_rate": 1e-4, "server.optimizer.learning_rate": 1e-4}
"""For networks whose steps would make differences of rounding large."""
STEM = {
    **SLOW,
    "client.model": {"name": "resnet18-stem", "width": 4},
    "server.model": REST,
    "data.split": "rows",
}
MOVED = {"client.crop": 2, "client.flip": True}
ENCODED = {"server.encoder": {"name": "mlp", "outputs": 4}}
PARTS_OF_TEXTS = {
    **SLOW,
    "client.model": {"name": "text-embeddings", **federations.TEXT},
    "server.model": {"name": "text-rest", **federations.TEXT, "hidden": []},
}
OF_OWN = {"client.model": {"name": "module", "path": f"{__name__}:Own"}}
BEHIND: list[tuple[str, str, dict[str, Any]]] = [
    (method, kind, options)
    for method in ("dpzv", "vafl", "czofo", "cascaded")
    for kind, options in (
        ("images", CNN),
        ("images", {**CNN, **MOVED}),
        ("bytes", {**CNN, **MOVED}),
        ("images", STEM),
        ("images", {"client.model": {"name": "filters", "count": 2}}),
        ("tokens", {"client.model": {"name": "bag", "vocabulary": 20, "outputs": 3}}),
        ("categories", {"client.model": {"name": "table", "outputs": 3, "dropout": 0.0}}),
        ("categories", {"client.pretrain": "splines", "client.components": 4}),
        ("own columns", ENCODED),
        ("own columns", {**ENCODED, **federations.GAUSSIAN, **UPDATED}),
        ("values", {}),
        ("several labels", {}),
        ("rows", OF_OWN),
        ("rows", {**OF_OWN, **federations.GAUSSIAN, **UPDATED}),
        ("tokens", federations.TEXTS),
        ("tokens", PARTS_OF_TEXTS),
    )
    if method != "czofo" or options is not PARTS_OF_TEXTS  # whose zeros say where a text ends
]
CASES = LAWFUL + PREPARED + CODED + SERVED


@each("method, options", CASES, gate=[CASES[1], PREPARED[0], PREPARED[-1], CODED[0]])
def test_options(method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = federations.config(method, None, options)
    waited = held_to_the_processor(config, monkeypatch, near=1e-3)
    coded = {config.codecs.up.name, config.codecs.down.name} != {"none"}
    assert coded or not waited


@each("method, kind, options", BEHIND, gate=[BEHIND[0], BEHIND[10], BEHIND[33]])
def test_models(
    method: str, kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "checkpoint" in options.get("client.model", {}):
        pytest.importorskip("transformers")
    config = federations.config(method, None, options)
    assert not held_to_the_processor(config, monkeypatch, made(kind), near=1e-3)
