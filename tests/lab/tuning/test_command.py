"""``vertizo tune`` as people call it: one table, what is wrong in one line, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.lab.conftest import Call

SMALL = (
    *("--set", "data.limit=60", "--set", "data.parties=2"),
    *("--set", "batch_size=18", "--set", "epochs=2"),
)
RATE = "client.optimizer.learning_rate=1e-3..1e-1:log"
EXACT = (
    *("--set", "server.update=none", "--set", "privacy.mechanism=gaussian"),
    *("--set", "privacy.clip=0.5", "--set", "privacy.epsilon=3"),
)


@pytest.mark.full
def test_the_table(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = ("tune", *SMALL, "--search", RATE, "--trials", "4", "--pruner", "none", *EXACT)
    code, out, errors = call(*command)
    assert (code, errors) == (0, "")
    folder = Path("runs/tune-digits-dpzv")
    found = json.loads((folder / "results.json").read_text())
    for words in (
        "configured",
        "validation accuracy",
        "trials: 4 of 4 (4 finished)",
        f"test, of trial {found['best']['trial']}: loss {found['test']['loss']:.4f}",
        "All 4 trials together: ε = ",
        "by itself: ε = 3 at δ = 1e-05",
        f"best configuration: {folder}/best.yaml",
    ):
        assert words in out
    assert "…" not in out
    assert max(map(len, out.split("privacy:")[0].splitlines())) <= 100
    assert json.loads(call(*command, "--json")[1]) == found
    monkeypatch.setenv("COLUMNS", "64")
    narrow = call(*command)[1]
    assert out.splitlines()[2].count("trial") > narrow.splitlines()[2].count("trial") >= 1
    assert "…" not in narrow
    monkeypatch.setenv("COLUMNS", "30")
    assert "client.optimizer.learning_rate" in call(*command)[1], "which is whole, though too wide"
    monkeypatch.delenv("COLUMNS")
    assert call(*command)[1].splitlines()[2].count("trial") == 3, "a file is as wide as it takes"


def test_what_is_wrong_is_one_line_and_leaves_nothing(call: Call, tmp_path: Path) -> None:
    for option, value, *words in (
        ("--search", "batch_sze=1..2", "'batch_sze'", "'batch_size'"),
        ("--trials", "0", "--trials"),
        ("--pruner", "best", "--pruner best", "median, halving, none"),
        ("--objective", "f1", "--objective f1", "accuracy"),
        ("--total-epsilon", "-1", "--total-epsilon"),
        ("--total-epsilon", "2", "--total-epsilon", "privacy.epsilon"),
        ("--set", "data.validation=0", "data.validation is 0"),
        ("--set", "privacy.ledger=x", "privacy.ledger"),
    ):
        code, out, errors = call("tune", *SMALL, option, value)
        assert (code, out) == (2, ""), option
        assert errors.count("\n") == 1
        for word in words:
            assert word in errors
        assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.full
@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.full
def test_it_goes_on_after_ctrl_c(tmp_path: Path, jobs: str) -> None:
    command = [
        *(sys.executable, "-m", "vertizo", "tune", "--set", "epochs=200", "--trials", "3"),
        *("--search", RATE, "--out", "s", "--jobs", jobs, "--pruner", "none"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 240
    while not list(tmp_path.glob("s/trials/000/metrics.jsonl")):
        assert time.monotonic() < until
        assert child.poll() is None
        time.sleep(0.02)
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
