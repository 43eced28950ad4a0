"""How figures are taken, and the files and the table they end in."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
import report
import summary


def test_a_rate_is_rounds_of_a_second_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's clock, which does not go on while somebody waits."""
    worked = 0.0

    def work() -> int:
        nonlocal worked
        worked += 0.01
        return 3

    monkeypatch.setattr(report.time, "process_time", lambda: worked)
    assert report.rate(work, 0.05) == pytest.approx(300)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are kept on a core on Linux alone")
def test_a_process_is_kept_on_one_of_its_cores() -> None:
    before = os.sched_getaffinity(0)
    try:
        report.one_core()
        assert len(os.sched_getaffinity(0)) == 1
        assert os.sched_getaffinity(0) <= before
    finally:
        os.sched_setaffinity(0, before)


def test_every_way_is_measured_so_often_and_in_turn() -> None:
    seen: list[str] = []
    ways = {name: lambda name=name: seen.append(name) or len(seen) for name in "ab"}
    measured = report.in_turn(ways, 3)
    assert "".join(seen) == "abbaab"
    assert measured == [{"a": 1, "b": 2}, {"b": 3, "a": 4}, {"a": 5, "b": 6}]


def test_a_ratio_is_the_median_of_ratios() -> None:
    measured = [{"a": 1.0, "b": 2.0}, {"a": 9.0, "b": 9.0}, {"a": 4.0, "b": 1.0}]
    assert report.median(measured, "a") == 4.0
    assert report.median_ratio(measured, "a", "b") == 1.0


@pytest.mark.parametrize("given", [["--json", "FILE"], ["--json=FILE"], []])
def test_a_file_says_how_its_figures_came_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    path = tmp_path / "made" / "here.json"
    words = [word.replace("FILE", str(path)) for word in given]
    words = ["--seconds", "0.2", *words, "--note", "the cores were shared"]
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "here.py"), *words])
    options = report.parser("Words.\n", seconds=1.0, repeats=3).parse_args(words)
    report.write(options, {"rows": [1]}, [report.line("what", "2 rounds/s")], ("torch", "none"))
    if not given:
        assert not path.exists()
        return
    text = path.read_text("utf-8")
    found = json.loads(text)
    assert found["command"] == "benchmarks/here.py --seconds 0.2 --note 'the cores were shared'"
    assert found["note"] == "the cores were shared"
    assert found["rows"] == [1]
    assert {"cpu", "machine", "python", "torch", "vertizo", "cpu_capability"} <= found.keys()
    assert "none" not in found
    assert str(tmp_path) not in text
    assert socket.gethostname() not in text


def test_all_summaries_become_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, lines in (("one", [("first", "1", "x")]), ("two", [("second", "2", "y")])):
        results = {"torch": "3", "summary": [report.line(*line) for line in lines]}
        (tmp_path / f"{name}.json").write_text(json.dumps(results))
    (tmp_path / "three.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["summary.py", str(tmp_path)])
    summary.main()
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["one", "first", "1", "x"] in shown
    assert ["two", "second", "2", "y"] in shown
    assert ["one,", "two:", "torch", "3"] in shown
    assert ["without", "a", "summary:", "three"] in shown
