"""Rounds on a stand-in for a card are the processor's with every option, model and kind of data."""

from __future__ import annotations

from typing import Any

import pytest
from tests import federations
from tests.contracts.test_cards import held_to_the_processor
from tests.contracts.test_graphs import OPTIONS
from tests.rows import each

from vertizo.protocol.codecs.catalog import CODECS

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
CASES = LAWFUL + PREPARED + CODED + SERVED


@each("method, options", CASES, gate=[CASES[1], PREPARED[0], PREPARED[-1], CODED[0]])
def test_options(method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    held_to_the_processor(federations.config(method, None, options), monkeypatch, near=1e-3)
