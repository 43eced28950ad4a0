"""`experiments/client_memory.py`: what a client's round takes over its model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import client_memory
import pytest

from vertizo.lab.reproduction.runs import Task, results

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def test_the_committed_figures_are_what_it_makes_of_its_peaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the script itself, up to the page's file and picture."""
    content = json.loads((RESULTS / f"{client_memory.NAME}.json").read_text("utf-8"))
    peaks = {
        (each["row"], each["method"], seed): {
            "weights": each["weights"],
            "peak": ratio * each["weights"],
        }
        for each in content["figures"]["cells"]
        for seed, ratio in enumerate(each["ratios"])
    }

    def known(
        tasks: Mapping[Any, Task], folder: Path, jobs: int, report: object, *, reused: bool
    ) -> tuple[dict[Any, Any], dict[str, Any]]:
        assert tasks.keys() == peaks.keys()
        assert (folder, jobs, reused) == (Path("runs/dpzv-figure4"), 1, False)
        return peaks, content["made_by"]

    monkeypatch.setattr("scripted.results", known)
    monkeypatch.setattr("sys.argv", ["client_memory.py", "--seeds", "1", "--out", str(tmp_path)])
    client_memory.main()
    made = json.loads((tmp_path / "dpzv-figure4.json").read_text("utf-8"))
    assert made["command"] == "python experiments/client_memory.py --seeds 1"
    assert {**content, "command": made["command"]} == made
    assert "BERT-base" in capsys.readouterr().out
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["client_memory.py", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as ended:
        client_memory.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(
    not client_memory.PEAK_RESET.exists(), reason="peak memory is measured on Linux"
)
@pytest.mark.full
def test_back_propagation_takes_more_memory_than_evaluating(tmp_path: Path) -> None:
    """Four layers of a million parameters each: gradients double what the weights take.

    The least peak of three: what else a process holds at its peak only adds to it.
    """
    client = {"model": {"name": "mlp", "hidden": [1024, 1024, 1024], "outputs": 1024}}
    methods = ("inference", "dpzv", "vafl")
    tasks = {
        f"{method} {turn}": Task(method, client_memory.peak, (client, [16, 1024], None, method, 0))
        for method in methods
        for turn in range(3)
    }
    found, _ = results(tasks, tmp_path, 1)
    weights = found["dpzv 0"]["weights"]
    assert weights == pytest.approx(4 * 1024 * 1025 * 4 / 2**20)
    ratios = {
        method: min(found[f"{method} {turn}"]["peak"] for turn in range(3)) / weights
        for method in methods
    }
    assert 0.9 < ratios["inference"] < 1.8
    assert ratios["dpzv"] < ratios["inference"] + 0.5
    assert ratios["vafl"] > ratios["dpzv"] + 0.5
