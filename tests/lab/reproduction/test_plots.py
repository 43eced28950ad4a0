"""Pictures as files."""

from __future__ import annotations

import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from tests.words import says

from vertizo.core.errors import RunError
from vertizo.lab.reproduction import plots
from vertizo.lab.reproduction.outcome import Line, Picture, Point

PICTURE = Picture(
    "Accuracy by ε",
    "ε",
    "accuracy (%)",
    (
        Line("DPZV", (Point(0.1, 80, 79, 81), Point(1, 90, 89, 91))),
        Line("DPZV, published", (Point(0.1, 85, 85, 85),), published=True),
    ),
    log_x=True,
    ticks={0.1: "0.1", 1.0: "none"},
)


@pytest.mark.full
def test_a_picture_names_its_lines_and_axes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "picture.svg"
    plots.draw([PICTURE, PICTURE], path)
    text = path.read_text()
    assert xml.etree.ElementTree.fromstring(text).tag.endswith("svg")
    before = path.read_bytes()
    plots.draw([PICTURE, PICTURE], path)
    assert path.read_bytes() == before, "the same figures are the same file"
    says(text, "Accuracy by", "DPZV, published", "accuracy (%)", "none", case="text stays text")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        plots.draw([PICTURE], tmp_path / "file" / "picture.svg")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plots.available()
