"""Tests that need a graphics card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from vertizo.core import arrays

on_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=on_a_card)]
LIKE_A_CARD = pytest.param("like a card", marks=pytest.mark.full)
"""See `as_on_a_card`."""


@contextmanager
def as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The processor's tensors are taken for a card's."""
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "is_cpu", False, raising=False)
        patched.setattr(arrays, "is_card", lambda device: True)
        yield
