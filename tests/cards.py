"""Tests that need a graphics card."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from vertizo.core import arrays
from vertizo.core.arrays import card
from vertizo.zeroth_order import directions

on_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
TRITON = pytest.param(
    "triton", marks=pytest.mark.skipif(not INTERPRETED, reason="for make test-triton")
)
"""The processor, on which Triton's kernels are interpreted."""
DEVICES = ["cpu", pytest.param("cuda", marks=on_a_card)]
LIKE_A_CARD = pytest.param("like a card", marks=pytest.mark.full)
"""See `as_on_a_card`."""


def placed(device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """PyTorch's device for one of `DEVICES` or `TRITON`."""
    if device == "triton":
        monkeypatch.setattr(card, "_fused", lambda seed: card._triton())
    return "cpu" if device == "triton" else device


@contextmanager
def as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The processor's tensors are taken for a card's."""
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "is_cpu", False, raising=False)
        patched.setattr(arrays, "is_card", lambda device: True)
        yield


def on_host_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds on a card have the numbers of the processor, until the patches are undone."""

    def drawn(kind: Any, seed: Tensor, size: int, chunk: int = 0) -> Tensor:
        place = getattr(seed, "raw", seed)  # a stand-in's, which counts looks at the seed itself
        return torch.from_numpy(directions.drawn(kind, int(place) % 2**64, size)).to(seed.device)

    monkeypatch.setattr(card, "drawn", drawn)
    monkeypatch.setattr(card, "_fused", lambda seed: None)


def a_stand_in() -> ModuleType:
    """`tests.stand_in_card`; skips the test where PyTorch is older than what that needs.

    And beside a real card: PyTorch would take the stand-in for the machine's accelerator, whose
    streams and pinned memory it then asks for.
    """
    if torch.cuda.is_available():
        pytest.skip("a stand-in would take the place of the card that is there")
    found: ModuleType = pytest.importorskip("tests.stand_in_card", exc_type=ImportError)
    return found
