"""``vertizo tune`` as people call it: one table, what is wrong in one line, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import Refuses, Vertizo, sets
from tests.waiting import until
from tests.words import says

SMALL = sets("data.limit=60", "data.parties=2", "batch_size=18", "epochs=2")
RATE = "client.optimizer.learning_rate=1e-3..1e-1:log"
EXACT = sets(
    "server.update=none", "privacy.mechanism=gaussian", "privacy.clip=0.5", "privacy.epsilon=3"
)


@pytest.mark.full
def test_the_table(call: Vertizo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = ("tune", *SMALL, "--search", RATE, "--trials", "4", "--pruner", "none", *EXACT)
    out = call(*command).quietly()
    folder = Path("runs/tune-digits-dpzv")
    found = json.loads((folder / "results.json").read_text())
    says(
        out,
        "configured",
        "validation accuracy",
        "trials: 4 of 4 (4 finished)",
        f"test, of trial {found['best']['trial']}: loss {found['test']['loss']:.4f}",
        "All 4 trials together: ε = ",
        "by itself: ε = 3 at δ = 1e-05",
        f"best configuration: {folder}/best.yaml",
    )
    assert "…" not in out
    assert max(map(len, out.split("privacy:")[0].splitlines())) <= 100
    assert json.loads(call(*command, "--json").out) == found
    monkeypatch.setenv("COLUMNS", "64")
    narrow = call(*command).out
    assert out.splitlines()[2].count("trial") > narrow.splitlines()[2].count("trial") >= 1
    assert "…" not in narrow
    monkeypatch.setenv("COLUMNS", "30")
    assert "client.optimizer.learning_rate" in call(*command).out, "which is whole, though too wide"
    monkeypatch.delenv("COLUMNS")
    assert call(*command).out.splitlines()[2].count("trial") == 3, "a file is as wide as it takes"


MISTAKES = """\
--search batch_sze=1..2 | 'batch_sze' | 'batch_size'
--trials 0 | --trials
--pruner best | --pruner best | median, halving, none
--objective f1 | --objective f1 | accuracy
--total-epsilon -1 | --total-epsilon
--total-epsilon 2 | --total-epsilon | privacy.epsilon
--set data.validation=0 | data.validation is 0
--set privacy.ledger=x | privacy.ledger
"""


def test_what_is_wrong_is_one_line_and_leaves_nothing(refuses: Refuses) -> None:
    refuses(MISTAKES, "tune", *SMALL)


@pytest.mark.long
@pytest.mark.full
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_it_goes_on_after_ctrl_c(tmp_path: Path, jobs: str) -> None:
    command = [
        *(sys.executable, "-m", "vertizo", "tune", "--set", "epochs=200", "--trials", "3"),
        *("--search", RATE, "--out", "s", "--jobs", jobs, "--pruner", "none"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    begun = tmp_path / "s/trials/000/metrics.jsonl"
    assert until(lambda: begun.exists() or child.poll() is not None, 240)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=240)
    assert child.returncode == 130, err
    assert "--out s continues" in err
    assert "Traceback" not in err
    assert (tmp_path / "s/trials/000/checkpoints/last.safetensors").is_file()
    assert not (tmp_path / "s/best.yaml").exists()
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=500)
    found = json.loads((tmp_path / "s/results.json").read_text())
    assert [trial["outcome"] for trial in found["trials"]] == ["finished"] * 3
