"""``vertizo compare``: one table, nothing run twice, and what is wrong in one line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from tests.command_line import TINY, Refuses, Vertizo
from tests.methods.test_reported import OWN
from tests.waiting import until
from tests.words import says

from vertizo.cli.console import grid, parts, print_table, say
from vertizo.lab.commands.studies import bar
from vertizo.lab.comparison import Standing


def table(out: str) -> list[str]:
    """Lines that a table drew."""
    return [line for line in out.splitlines() if line[:1] in set("┏┃┡│└├")]


@pytest.mark.full
def test_the_table(vertizo: Vertizo) -> None:
    out = vertizo("compare", "--methods", "vafl,split", *TINY, "--out", "both").quietly()
    assert "digits, 4 clients, 1 seed" in out
    assert out.count("┏") == 1, "one table"
    assert max(map(len, table(out))) <= 80
    says(out, "vafl", "split", "accuracy %", "best control", "its controls: ", "none")
    command = ("compare", "--methods", "vafl,split", *TINY, "--out", "both", "--details")
    detailed = vertizo(*command).out
    says(detailed, "frozen", "random", "bytes to", "label-free,", "peak MiB")
    found = json.loads(Path("both/comparison.json").read_text())
    accuracy = found["methods"]["vafl"]["test_accuracy"]
    assert f"{100 * accuracy[0]:.2f}" in out
    assert "…" not in out
    assert len(list(Path("both").glob("*/*/summary.json"))) == 8


@pytest.mark.full
def test_methods_of_one_s_own_in_processes(vertizo: Vertizo, here: Path) -> None:
    """From a file beside the configuration; one that fails is named."""
    (here / "own.py").write_text(OWN)
    good, bad = ({"method": {"name": "own.py:Own", **more}} for more in ({}, {"fails": "told"}))
    plain = {"epochs": 1, "data": {"name": "digits", "limit": 40, "test_limit": 20}}
    for name, methods in (("one", {"ok": good}), ("both", {"ok": good, "bad": bad})):
        (here / f"{name}.yaml").write_text(json.dumps({**plain, "methods": methods}))
    options = ("--seeds", "2", "--no-controls", "--out")
    assert vertizo("compare", "one.yaml", *options, "one").code == 0
    failed = vertizo("compare", "both.yaml", *options, "both")
    assert failed.code == 2
    says(failed.err, "both/bad/seed", "method Own: told failed in own.py")


@pytest.mark.full
def test_a_second_time_nothing_is_run_again(vertizo: Vertizo) -> None:
    command = ("compare", "--methods", "vafl", "--no-controls", *TINY, "--json")
    first = vertizo(*command)
    stamps = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("summary.json")}
    assert len(stamps) == 1
    assert vertizo(*command).out == first.out
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert json.loads(first.out)["vafl"]["controls"] == {}


@pytest.mark.full
def test_a_second_time_what_was_left_to_the_records_is_what_it_was(vertizo: Vertizo) -> None:
    """Epochs and batch sizes that no key names are in the folder's file."""
    small = ("--set", "data.name=digits", "--set", "data.limit=60", "--set", "rounds=4")
    command = ("compare", "--methods", "vafl", "--no-controls", "--seeds", "2", *small, "--json")
    first = vertizo(*command)
    assert vertizo(*command).out == first.out


MISTAKES = """\
 | --methods is missing | dpzv
--methods vafl,vafl | names a method twice
--methods vaffl | 'vaffl' | 'vafl'
--methods vafl --targets 60,x | --targets | 'x'
--methods vafl --targets 160 | --targets | '160'
--methods vafl --by test | --by | validation
--methods vafl --seeds 0 | --seeds
--methods vafl --set client.model.name=function | client.model
--methods vafl --set codecs.up.name=paired | 'paired' | 'vafl'
--methods vafl --ray-address a:1 | --ray-address a:1 is for --engine ray
"""


def test_what_is_wrong_is_one_line_and_leaves_nothing(refuses: Refuses) -> None:
    refuses(MISTAKES, "compare", *TINY)


def test_a_folder_that_holds_a_run_is_refused(refuses: Refuses, here: Path) -> None:
    (here / "run").mkdir()
    (here / "run" / "config.yaml").touch()
    compare = ["compare", "--methods", "vafl"]
    for command in (compare, ["worth"], ["reproduce", "dpzv-figure6"]):
        refuses.row(command[0], ["run holds a run; name another"], *command, "--out", "run")


def test_a_table_breaks_lines_between_words_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headings = ["server", "test accuracy %", "privacy"]
    rows = [["poisson-dp-sgd server", "85.10 ± 0.98", "simulated: ε 2, δ 1e-05"]]
    for width in (60, 54, 50, 46):
        drawn = grid(headings, rows, width=width)
        Console(width=200).print(drawn)
        out = capsys.readouterr().out
        assert max(map(len, table(out))) <= width
        assert all(word in out for word in ("poisson-dp-sgd", "85.10 ± 0.98", "ε 2,", "simulated:"))
    many = [*headings, *(f"figure {number}" for number in range(9))]
    lines = [[*rows[0], *(str(number) for number in range(9))]]
    print_table(many, lines, "what fits", whole=False)
    out = capsys.readouterr().out
    assert "simulated:" in out
    assert "(continued)" not in out
    monkeypatch.delenv("COLUMNS")  # in a file, lines are as long as need be
    print_table(many, lines, "everything")
    out = capsys.readouterr().out
    assert "figure 8" in out
    assert "(continued)" not in out


def test_a_terminal_gets_lines_wrapped_at_words() -> None:
    words = ["a long line of several words", "a/path/that/is/longer/than/the/terminal/is"]
    for terminal in (True, False):
        out = io.StringIO()
        say(words, Console(file=out, width=20, force_terminal=terminal, color_system=None))
        said = out.getvalue().splitlines()
        assert said[-1] == words[1]
        assert said[:-1] == (["a long line of", "several words"] if terminal else words[:1])


def test_a_log_gets_a_line_a_minute_about_what_finished_last() -> None:
    out, now = io.StringIO(), [0.0]
    console = Console(file=out, get_time=lambda: now[0])
    latest = " · vafl, seed 1, frozen clients: test accuracy 61.28 %"
    with bar("compare", "runs", console) as show:
        for now[0], finished in ((0.5, 0), (30, 1), (60.5, 2), (100, 3)):
            show(Standing(finished, 8, finished / 8, latest=latest))
    line = f"compare: 2 of 8 runs{latest} · 25% · about 0:03:00 left\n"
    assert out.getvalue() == line


def test_what_does_not_fit_side_by_side_is_continued_below(
    capsys: pytest.CaptureFixture[str],
) -> None:
    headings = ["", *(f"a-long-name-{number}" for number in range(7))]
    rows = [["bytes up", *(f"{number}0.5 MB" for number in range(7))]]
    found = list(parts(headings, rows, 80))
    assert [place for part in found for place in part] == list(range(1, 8))
    assert 1 < len(found) < 7
    assert [len(part) for part in parts(headings, rows, 10)] == [1] * 7
    print_table(headings, rows, "seven")
    out = capsys.readouterr().out
    assert out.count("(continued)") == len(found) - 1
    assert all(f"a-long-name-{number}" in out and f"{number}0.5 MB" in out for number in range(7))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads what processes do")
@pytest.mark.full
def test_ctrl_c_is_one_line_at_most_however_early(tmp_path: Path) -> None:
    """Even while a child is still importing; the same command goes on afterwards."""
    begun = "import vertizo.__main__ as m; heed = m.heed_ctrl_c; "
    begun += "m.heed_ctrl_c = lambda: (heed(), print(flush=True)); m.main()"
    command = [sys.executable, "-c", begun, "compare", "--methods", "vafl", "--no-controls"]
    command += ["--seeds", "3", "--set", "epochs=1000000", "--out", str(tmp_path / "k")]
    moments: list[Callable[[int], bool]] = [
        lambda session: True,
        lambda session: _has_loaded(_of_session(session)[:1], "numpy"),
        lambda session: len(_of_session(session)) > 1,
        lambda session: _has_loaded(_of_session(session)[1:], "libtorch"),
        lambda session: any((tmp_path / "k").rglob("metrics.jsonl")),
    ]
    # a terminal tells every process; `kill -INT` this one alone, which then tells the others
    tells = [os.killpg, os.kill, os.killpg, os.kill, os.killpg]
    cases = [*zip(moments, tells, strict=True), (moments[-1], os.kill)]
    for moment, tell in cases:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        try:
            process.stdout.readline()  # before this line it is Python's own beginning
            assert until(partial(moment, process.pid), 300, 0.002)
            tell(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=300)
        finally:
            if process.poll() is None:  # nothing is left behind by a test that fails
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert errors.count("\n") <= 1, errors  # none where nothing had begun


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads which processes there are")
@pytest.mark.full
def test_children_end_when_the_command_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vertizo", "compare", "--methods", "vafl", "--no-controls"]
    command += ["--set", "epochs=100000", "--out", str(tmp_path / "k")]
    with subprocess.Popen(command, start_new_session=True) as process:
        assert until(lambda: any((tmp_path / "k").rglob("metrics.jsonl")), 300)
        assert len(_of_session(process.pid)) > 1
        process.kill()
        process.wait()
    assert until(lambda: not _of_session(process.pid), 300)


def _has_loaded(processes: Sequence[str], library: str) -> bool:
    """Whether one of them has a library's file in its memory."""
    for process in processes:
        with contextlib.suppress(OSError):
            if library in (Path("/proc") / process / "maps").read_text():
                return True
    return False


def _of_session(session: int) -> list[str]:
    """Processes of it that have not ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, own = file.read_text().rpartition(")")[2].split()[:4]
            if own == str(session) and state != "Z":
                found.append(file.parent.name)
    return sorted(found, key=int)
