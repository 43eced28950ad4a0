"""What Vertizo demands of its own parts, of these (docs/own-method.md)."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from vertizo.testing import (
    check_codec,
    check_dataset,
    check_method,
    check_model,
    check_tracker,
)
from vertizo_example.codec import SharedExponent
from vertizo_example.model import Gated


def test_the_method() -> None:
    check_method("zo-sign", rough=True)  # a sign jumps where a slope crosses zero


def test_the_codec() -> None:
    check_codec(SharedExponent(), error=1 / 32767)


def test_the_model() -> None:
    check_model(lambda: Gated(hidden=5).module((4,), None), torch.randn(7, 4))


def test_the_data_set() -> None:
    check_dataset("rings")


def rounds(place: Path) -> list[int]:
    return [json.loads(line)["round"] for line in place.read_text().splitlines()]


def test_the_tracker() -> None:
    check_tracker("json-lines", read=rounds)
