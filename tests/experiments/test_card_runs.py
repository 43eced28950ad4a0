"""`experiments/card_runs.py`: lines of a list within minutes, and what an archive keeps of them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tarfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import card_runs
import pytest
from tests.lab.reproduction.test_study import ORDER

from vertizo.config import schema, tree
from vertizo.lab.reproduction import grid, study
from vertizo.lab.reproduction.study import GridConfig

ROOT = Path(__file__).parents[2]
ENDLESS = "import sys, time; print('begun', file=sys.stderr, flush=True); time.sleep(600)"


@dataclass(frozen=True)
class Program(card_runs.Line):
    """A line whose command is a program of Python."""

    def command(self, folder: Path, device: str) -> list[str]:
        """With its folder and device as arguments."""
        return [sys.executable, "-c", self.run, str(folder), device]


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The script's exit code."""
    monkeypatch.setattr("sys.argv", ["card_runs.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        card_runs.main()
    return int(ended.value.code or 0)


@pytest.mark.full
def test_every_line_of_the_list_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file, methods and settings; and every file beside the list is in one of its lines."""
    monkeypatch.chdir(ROOT)
    files = {path.name for path in card_runs.LIST.parent.iterdir()} - {card_runs.LIST.name}
    for line in card_runs.lines(card_runs.LIST):
        command, name, *options = shlex.split(line.run)
        files.discard(Path(name).name)
        settings = [new for old, new in pairwise(options) if old == "--set"]
        if command == "compare":
            labels = options[options.index("--methods") + 1] if "--methods" in options else ""
            wanted = labels.split(",") if labels else tree.labels(Path(name))
            assert wanted
            for label in wanted:
                schema.load(Path(name), settings, label)
        else:
            assert command == "reproduce"
            found = study.load(name)
            assert isinstance(found, GridConfig)
            order = replace(ORDER, overrides=tuple(settings))
            assert grid.cases(found, order)
    assert not files


@pytest.mark.full
def test_a_line_that_ends_has_a_result(tmp_path: Path) -> None:
    line = Program("one", 1, "import sys; print(sys.argv[1:])")
    assert card_runs.advance(line, tmp_path, "cpu", 60) == 0
    assert (tmp_path / "one.json").read_text("utf-8").strip() == str([f"{tmp_path}/one", "cpu"])
    assert card_runs.state(line, tmp_path) == "done"


@pytest.mark.full
def test_a_line_that_fails_or_is_stopped_has_none(tmp_path: Path) -> None:
    assert card_runs.advance(Program("bad", 1, "1 / 0"), tmp_path, "cpu", 60) == 1
    assert "ZeroDivisionError" in (tmp_path / "bad.log").read_text("utf-8")
    assert card_runs.advance(Program("slow", 1, ENDLESS), tmp_path, "cpu", 5) != 0
    assert "KeyboardInterrupt" in (tmp_path / "slow.log").read_text("utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.log", "slow.log"]


@pytest.mark.full
def test_finished_runs_leave_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the line goes on: its next run may need all of it."""
    monkeypatch.setattr(card_runs, "LOOKING", 0.1)
    line = tmp_path / "line"
    for name, ended in (("ended", True), ("begun", False)):
        (line / name / "checkpoints").mkdir(parents=True)
        for file, size in (("last", card_runs.SMALL + 1), ("best", 5)):
            (line / name / "checkpoints" / file).touch()
            os.truncate(line / name / "checkpoints" / file, size)
        if ended:
            (line / name / "summary.json").write_text("{}", "utf-8")
    gone = f"{line}/ended/checkpoints/last"
    wait = f"import os, time\nwhile os.path.exists({gone!r}): time.sleep(0.01)"
    assert card_runs.advance(Program("line", 1, wait), tmp_path, "cpu", 60) == 0
    left = sorted(str(path.relative_to(line)) for path in line.glob("*/checkpoints/*"))
    assert left == ["begun/checkpoints/best", "begun/checkpoints/last", "ended/checkpoints/best"]


def test_lines_are_taken_in_order_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is done is left alone; what needs longer than is left makes room for what does not."""
    tried: list[str] = []

    def advance(line: card_runs.Line, out: Path, device: str, seconds: float) -> int:
        tried.append(line.name)
        (out / f"{line.name}.json").touch()
        return 0

    monkeypatch.setattr(card_runs, "advance", advance)
    minutes = {"a": 1, "b": 9, "c": 1, "d": 1}
    lines = "".join(f"- {{name: {n}, minutes: {m}, run: x}}\n" for n, m in minutes.items())
    (tmp_path / "list.yaml").write_text(lines, "utf-8")
    archive, out = tmp_path / "made" / "small.tar.gz", tmp_path / "out"
    given = ("--list", str(tmp_path / "list.yaml"), "--archive", str(archive), "--minutes", "5")
    assert called(monkeypatch, *given, "--out", str(out), "--only", "c,b") == 0
    assert tried == ["c"]
    assert called(monkeypatch, *given, "--out", str(tmp_path / "elsewhere")) == 0
    assert tried == ["c", "a", "d"], "the archive says that c is done"
    assert called(monkeypatch, *given, "--out", str(out), "--show") == 0
    assert tried == ["c", "a", "d"]
    capsys.readouterr()
    assert called(monkeypatch, *given, "--only", "e") == 2
    assert capsys.readouterr().err.count("\n") == 1
    for name, content in {"odd": "- {name: a, hours: 1}", "text": "some", "cut": "- {name"}.items():
        (tmp_path / name).write_text(content, "utf-8")
        assert called(monkeypatch, "--list", str(tmp_path / name)) == 2, name
        assert capsys.readouterr().err.count("\n") == 1, name
    broken = ("--archive", str(tmp_path / "text"), "--out", str(tmp_path / "new"))
    assert called(monkeypatch, *broken) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "text").write_bytes(archive.read_bytes()[:-40])
    assert called(monkeypatch, *broken) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not [*tmp_path.glob("new*")]


def test_lines_can_be_stopped_where_ctrl_c_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a shell's background: what is ignored stays so in all processes that begin there."""
    found = []
    monkeypatch.setattr(
        card_runs, "advance", lambda *_: found.append(signal.getsignal(signal.SIGINT)) or 0
    )
    (tmp_path / "list.yaml").write_text("- {name: a, minutes: 1, run: x}\n", "utf-8")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        given = ("--list", str(tmp_path / "list.yaml"), "--out", str(tmp_path / "out"))
        assert called(monkeypatch, *given) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [signal.default_int_handler]


def test_an_archive_has_what_is_small_and_what_was_begun(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, ended in (("ended", True), ("begun", False)):
        (out / name / "checkpoints").mkdir(parents=True)
        (out / name / "config.yaml").touch()
        (out / name / "checkpoints" / "last").write_bytes(b"state")
        if ended:
            (out / name / "summary.json").write_text(json.dumps({}), "utf-8")
    os.truncate(out / "begun" / "config.yaml", 5)
    (out / "begun" / "checkpoints" / "best").touch()
    os.truncate(out / "begun" / "checkpoints" / "best", card_runs.SMALL + 1)
    archive = tmp_path / "small.tar.gz"
    card_runs.pack(out, archive)
    with tarfile.open(archive) as made:
        names = set(made.getnames())
    kept = {"begun/config.yaml", "begun/checkpoints/last"}
    assert names == kept | {"ended/config.yaml", "ended/summary.json"}
    card_runs.unpack(archive, tmp_path / "again")
    assert (tmp_path / "again" / "begun" / "checkpoints" / "last").read_bytes() == b"state"
    card_runs.unpack(archive, out)
    assert (out / "begun" / "checkpoints" / "best").exists(), "a folder that is there stays"
