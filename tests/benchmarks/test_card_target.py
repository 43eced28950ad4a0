"""`make card`: a failure stops nothing that follows, since a card is lent for minutes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("broken", ["pytest", "devices.py", "nothing"])
def test_every_step_is_tried(broken: str, tmp_path: Path) -> None:
    """And the target fails if one of them did. A program stands in for Python."""
    stand_in, log = tmp_path / "bin" / "python", tmp_path / "log"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncase "$*" in *{broken}*) exit 3;; esac\n')
    stand_in.chmod(0o755)
    for name in ("installed", "installed-dev"):
        (tmp_path / name).touch()
    command = ["make", "-C", str(ROOT), "card", f"VENV={tmp_path}", f"RESULTS={tmp_path}"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (made.returncode != 0) == (broken != "nothing"), made.stderr
    calls = log.read_text("utf-8").splitlines()
    words = (
        "-m pytest",
        "benchmarks/devices.py",
        "benchmarks/memory.py",
        "benchmarks/precision.py",
    )
    assert [call.startswith(word) for call, word in zip(calls, words, strict=True)] == [True] * 4
    assert "not cuda-full" in calls[0], "which takes minutes; make card-search runs it"
