"""What made a result is that of all runs behind it."""

from __future__ import annotations

import json
from pathlib import Path

from vertizo.lab import made_by
from vertizo.run.results.folder import CLOSING


def run(path: Path, commit: str, seconds: float) -> Path:
    path.mkdir()
    begun = {"commit": commit, "processor": "p", "versions": {"torch": "2"}}
    (path / "provenance.json").write_text(json.dumps(begun))
    (path / "summary.json").write_text(json.dumps({**dict.fromkeys(CLOSING), "seconds": seconds}))
    return path


def test_of_runs_of_several_commits(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", "b2", 1.5), run(tmp_path / "b", "a1", 2.0)]
    unfinished = tmp_path / "c"
    unfinished.mkdir()
    found = made_by.runs([*runs, unfinished])
    assert found == {
        "commits": ["a1", "b2"],
        "processors": ["p"],
        "versions": {"torch": "2"},
        "seconds": 3.5,
    }
    assert made_by.runs([unfinished]) == {}
    this = made_by.this(0.5)
    assert made_by.together([None, {}, found, this])["seconds"] == 4.0


def test_of_a_run_older_than_this(tmp_path: Path) -> None:
    (run(tmp_path / "a", "x", 1.0) / "provenance.json").unlink()
    assert made_by.runs([tmp_path / "a"])["commits"] == [""]
