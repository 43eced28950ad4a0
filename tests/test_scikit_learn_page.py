"""docs/scikit-learn.md: its code runs, from the first block to the last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "scikit-learn.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(BLOCKS) >= 7
    for number, block in enumerate(BLOCKS, 1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
    said = capsys.readouterr().out.splitlines()
    assert float(said[0]) > 0.85, "the accuracy of the first model"
    assert any("No privacy guarantee" in line for line in said)
    assert "['north', 'south']" in said
    bound = re.compile(r"(Simulated: )?ε = (2\.9\d*|3) at δ = 0\.0001 ")
    assert any(map(bound.match, said)), said
    assert (tmp_path / "tumours" / "estimator.json").is_file()
