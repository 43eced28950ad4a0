"""The documentation's figures are those of the results' files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from vertizo.core.errors import ConfigError
from vertizo.lab.reproduction import page, study

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "experiments" / "results"
CONTENT = {
    "name": "dpzv-table1",
    "title": "Bytes",
    "paper": "DPZV",
    "command": "vertizo reproduce dpzv-table1",
    "seeds": 1,
    "reduced": "less",
    "settings": ["epochs=2"],
    "tables": [{"title": "T", "columns": ["a|b"], "rows": [["DPZV", "1"], ["  published", "2"]]}],
    "notes": ["Not run: x"],
}


def test_the_page_shows_what_was_measured() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    assert page.updated(text, RESULTS) == text, (
        "python -m vertizo.lab.reproduction.page experiments/results docs/reproduction.md"
    )


@pytest.mark.full
def test_results_are_of_the_study_as_it_is() -> None:
    """What was measured is what the study says, row by row and column by column."""
    for name, quick in itertools.product(study.names(), (False, True)):
        file = RESULTS / f"{name}{'-quick' if quick else ''}.json"
        if not file.is_file():
            continue
        content = json.loads(file.read_text("utf-8"))
        found = study.load(name, quick=quick)
        assert content["name"] == name
        assert content["title"] == found.title
        assert content["reduced"] == found.reduced
        assert content["seeds"] >= 1
        assert content["version"]
        if isinstance(found, study.GridConfig):
            cells = {(cell["row"], cell["column"]) for cell in content["figures"]["cells"]}
            assert cells == {(row, column) for row in found.rows for column in found.columns}


def test_a_result_as_markdown(tmp_path: Path) -> None:
    (tmp_path / "dpzv-table1-quick.json").write_text(json.dumps(CONTENT))
    text = page.measured(tmp_path)
    assert "| T | a\\|b |\n|---|--:|\n| DPZV | 1 |\n| *published* | 2 |" in text
    assert "Reduced: less." in text
    assert "Changed: `epochs=2`." in text
    assert text.startswith("### Quick forms\n\n#### dpzv-table1\n")
    assert "#### czofo-table2\n" in text.partition("### Not measured yet\n")[2]
    assert "svg" not in text
    (tmp_path / "dpzv-table1.json").write_text(json.dumps({**CONTENT, "reduced": None}))
    (tmp_path / "dpzv-table1.svg").write_text("")
    text = page.measured(tmp_path)
    assert text.startswith("### Full forms\n\n#### dpzv-table1\n")
    assert "Reduced" not in text
    assert "results/dpzv-table1.svg" in text
    with pytest.raises(ConfigError, match="has no lines"):
        page.updated("# Page", tmp_path)
