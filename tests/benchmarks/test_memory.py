"""`benchmarks/memory.py` on a card: one process, and models that are made there."""

from __future__ import annotations

import json
from pathlib import Path

import memory
import pytest
import report
import torch


def test_models_are_made_where_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand million numbers take the processor half a minute."""
    made: list[str] = []
    make = memory.make

    def noted(name: str) -> torch.nn.Module:
        module = make(name)
        made.extend({part.device.type for part in module.parameters()})
        return module

    monkeypatch.setattr(memory, "make", noted)
    monkeypatch.setattr(memory, "PEAK_RESET", Path("/dev/null"))
    assert memory.rounds("small", "inference", 1, "meta") == 4097 * 64 + 65 * 16
    assert made == ["meta"]


def test_a_card_is_measured_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Less what was there before the model."""

    def rounds(name: str, variant: str, count: int, device: str) -> int:
        assert device == "cuda"
        return 5

    figures = {"memory_allocated": 2**20, "max_memory_allocated": 5 * 2**20}
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(memory, "rounds", rounds)
    monkeypatch.setattr(report, "of_its_own", None)
    path = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["memory.py", "--device", "cuda", "--json", str(path)])
    memory.main()
    rows = json.loads(path.read_text("utf-8"))["rows"]
    assert [row["model"] for row in rows] == [*memory.MODELS, "base", "large", "billion"]
    assert {row["dpzv_mebibytes"] for row in rows} == {4.0}
    assert "billion" in capsys.readouterr().out
