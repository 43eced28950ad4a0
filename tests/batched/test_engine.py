"""A comparison whose runs are made together in processes: the same figures, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vertizo import comparison, config
from vertizo.config import ExperimentConfig
from vertizo.engines import Processes
from vertizo.errors import RunError
from vertizo.experiment import Experiment
from vertizo.run_folder import RunFolder

Configs = Callable[..., list[ExperimentConfig]]
CLOCK = {"seconds", "peak_memory_mib", "at_once"}
PATIENT = 120.0
"""Seconds for what takes a few, on a machine that has much else to do."""


def test_the_table_is_that_of_runs_made_alone(tmp_path: Path, configs: Configs) -> None:
    """With controls, and with one run that is finished already."""
    (dpzv,) = configs("rounds=30", seeds=1)
    tables = []
    for way in ("alone", "together"):
        runs = comparison.plan({"dpzv": dpzv}, 2, tmp_path / way, controls=True)
        for run in runs if way == "alone" else runs[1:2]:
            Experiment(run.config).run(run.folder)
        summaries = comparison.execute(runs, Processes(1))
        assert set(summaries) == set(runs)
        (row,) = comparison.rows(runs, summaries, [0.1, 0.2], "validation")
        found = row.as_dict()
        assert found.pop("at_once") == ([1, 1] if way == "alone" else [5, 5])
        tables.append(found)
    alone, together = tables
    assert alone.keys() == together.keys()
    for key in alone.keys() - CLOCK:
        if is_figures(alone[key]):
            assert together[key] == pytest.approx(alone[key], rel=2e-3)
        elif key != "controls":
            assert together[key] == alone[key]
    for control, figures in alone["controls"].items():
        assert together["controls"][control]["test_loss"] == pytest.approx(figures["test_loss"])


def is_figures(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, float) for each in value)


def test_what_turns_out_to_need_a_process_of_its_own(tmp_path: Path, configs: Configs) -> None:
    """Its kind could be made together; its server is too large to hold whole directions."""
    large = configs(
        "method.name=zoo-vfl",
        "server.model.hidden=[50000]",
        "data.limit=20",
        "data.test_limit=5",
        "batch_size=9",
        "rounds=1",
        seeds=2,
    )
    runs = comparison.plan({"large": large[0]}, 2, tmp_path, controls=False)
    summaries = comparison.execute(runs, Processes(1))
    assert [summaries[run]["at_once"] for run in runs] == [1, 1]
    assert [summaries[run]["rounds"] for run in runs] == [1, 1]


def test_one_that_diverges_ends_the_comparison_and_keeps_the_others(
    tmp_path: Path, configs: Configs
) -> None:
    wild = configs("method.name=vafl", "client.optimizer.learning_rate=1e30", seeds=1)[0]
    runs = comparison.plan({"wild": wild}, 1, tmp_path, controls=True)
    with pytest.raises(RunError, match="training diverged in round"):
        comparison.execute(runs, Processes(1))
    ended = {run.control for run in runs if RunFolder(run.folder).summary() is not None}
    assert "frozen" in ended
    assert "none" not in ended


def test_ctrl_c_leaves_runs_that_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "k"
    settings = ("data.limit=100", "batch_size=16", "epochs=3000", "evaluate_every=1000")
    command = [sys.executable, "-m", "vertizo", "compare", "--methods", "vafl", "--no-controls"]
    command += ["--seeds", "3", "--out", str(folder)]
    for setting in settings:
        command += ["--set", setting]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    files = [folder / "vafl" / f"seed{seed}" / "metrics.jsonl" for seed in range(3)]
    until = time.monotonic() + PATIENT
    while time.monotonic() < until and not all(
        file.is_file() and len(file.read_text().splitlines()) > 1 for file in files
    ):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENT)
    assert process.returncode == 130, errors
    assert "goes on" in errors
    assert "Traceback" not in errors
    for file in files:
        state = RunFolder(file.parent).load("last")
        assert 0 < state["server"]["round"] < 72_000
        assert not (file.parent / "summary.json").exists()
        assert len(file.read_text().splitlines()) > 1
    shortened = config.load(files[0].parent / "config.yaml")
    assert shortened.epochs == 3000
    assert json.loads(files[0].read_text().splitlines()[0])["round"] == 0
