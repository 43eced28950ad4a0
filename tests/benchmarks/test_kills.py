"""The soak that kills agents and their processes, cut short and gone on with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.long]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def test_a_soak_goes_on_where_it_stopped_and_finds_nothing_lost(tmp_path: Path) -> None:
    written = tmp_path / "kills.json"
    command = [sys.executable, str(SCRIPT), str(tmp_path / "soak"), "--preloaded", "--kills", "12"]
    command += ["--json", str(written)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.run(
        [*command, "--minutes", "0.5"], env=environment, capture_output=True, text=True
    )
    assert first.returncode == 0 or "the same command goes on" in first.stderr, first.stderr
    subprocess.run(command, env=environment, check=True)
    found = json.loads(written.read_text())
    assert found["kills"] >= 12
    assert found["scores_answered"] > 500
    assert found["trainings_charged_once"] >= 1
    assert found["trainings_without_noise_as_undisturbed"] >= 1
