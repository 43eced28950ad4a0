"""A graphics card that is not there is said in one line, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.cli.conftest import TINY, Vertizo


def test_without_a_device_one_line_says_so(
    vertizo: Vertizo, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ended = vertizo("train", *TINY, "--set", "client.device=cuda", "--out", str(here / "run"))
    assert ended.code == 2
    assert "client.device is 'cuda', but PyTorch finds no CUDA device; use 'cpu'" in ended.line
