"""``vertizo train``: what it prints, what it leaves, and that nothing stops it for good."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests import warm
from tests.command_line import TINY, Outcome, Vertizo, sets
from tests.same import same, timeless
from tests.waiting import until
from tests.words import says

from vertizo.core.names import CONTROLS
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_without_a_configuration_a_new_folder_is_made_each_time(vertizo: Vertizo) -> None:
    for folder, more in (
        ("runs/digits-dpzv-seed0", []),
        ("runs/digits-dpzv-seed0-2", []),
        ("runs/digits-vafl-seed3", sets("method.name=vafl", "seed=3")),
    ):
        out = vertizo("train", *TINY, *more).quietly()
        assert f"run folder: {folder}" in out
        assert Path(folder, "summary.json").is_file()
    assert len(list(Path("runs").iterdir())) == 3


@pytest.mark.full
def test_the_closing_table_and_a_folder_as_it_is(vertizo: Vertizo) -> None:
    for name in ("run [bold]", "run[/x]", "[red]run", "a b"):
        out = vertizo("train", *TINY, "--details", "--out", name).well()
        assert f"run folder: {name}\n" in out
    summary = json.loads(Path(name, "summary.json").read_text())
    accuracy, loss = f"{100 * summary['test_accuracy']:.2f} %", f"{summary['test_loss']:.4f}"
    says(out, "dpzv on digits", accuracy, loss, "48", "No privacy guarantee")


def test_a_file_with_settings_on_top_and_json(vertizo: Vertizo, here: Path) -> None:
    (here / "my.yaml").write_text("seed: 5\nmethod: {name: cascaded}\n")
    out = vertizo("train", "my.yaml", *TINY, "--out", "a/b/run", "--json").quietly()
    settings = RunFolder(Path("a/b/run")).config()
    assert (settings.seed, settings.method.name, settings.epochs) == (5, "cascaded", 2)
    assert out.count("\n") == 1
    summary = json.loads(out, parse_constant=no_constant)
    assert summary == json.loads(Path("a/b/run/summary.json").read_text())
    assert summary["rounds"] == 48


def test_json_where_the_terminal_knows_no_greek(
    vertizo: Vertizo, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = sets("privacy={mechanism: gaussian, clip: 1, noise_std: 1}")
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="latin-1", write_through=True) as latin:
        monkeypatch.setattr(sys, "stdout", latin)
        assert vertizo("train", *TINY, *noise, "--json").code == 0
        monkeypatch.undo()
        assert "μ" in json.loads(raw.getvalue().decode("latin-1"))["privacy"]["words"]


@pytest.mark.full
def test_a_bar_on_a_terminal(vertizo: Vertizo, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown)
    # So long that the bar is drawn between two evaluations, after which there is no loss yet.
    out = vertizo("train", *TINY, "--set", "epochs=400", "--json").well()
    assert json.loads(out)["rounds"] == 9600
    says(shown.getvalue(), "dpzv", "9,600 rounds", "acc", "loss", "MB", "no ε")


@pytest.mark.full
def test_a_run_does_not_depend_on_where_it_is_repeated_or_continued(
    vertizo: Vertizo, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files beside the configuration are found again from any folder."""
    (here / "mine").mkdir()
    (here / "files").mkdir()
    (here / "mine" / "rules.py").write_text("def apply(w, x):\n    return x[:, 0, 0, :2] * w\n")
    (here / "mine" / "run.yaml").write_text(
        "data: {root: files}\n"
        "client: {model: {name: function, path: 'rules.py:apply', num_parameters: 2}}\n"
    )
    first = vertizo("train", "mine/run.yaml", *TINY, "--out", "run", "--json").quietly()
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    for arguments in (["../run/config.yaml"], ["--resume", "../run"]):
        (here / "run" / "summary.json").unlink(missing_ok=True)
        out = vertizo("train", *arguments, "--json").quietly()
        assert timeless(json.loads(out)) == timeless(json.loads(first))


@pytest.mark.full
def test_controls_under_a_guarantee_are_counted_in_words(vertizo: Vertizo, here: Path) -> None:
    """Each reads the labels once more; without a ledger nothing adds that up."""
    guarantee = sets("privacy.epsilon=1", "privacy.delta=1e-5", "server.update=none")
    private = ("train", *TINY, *guarantee)
    said = vertizo(*private, "--controls", "--out", "a").err
    assert said.count("note: each ε is of one run; frozen, random read the same labels") == 1
    assert "note: each" not in vertizo(*private, "--out", "b").err
    assert "note: each" not in vertizo("train", *TINY, "--controls", "--out", "c").err


@pytest.mark.full
def test_controls_stand_beside_the_run_and_can_be_added_later(vertizo: Vertizo, here: Path) -> None:
    def check(run: Path) -> None:
        for control in CONTROLS:
            folder = RunFolder(run / "controls" / control)
            summary = folder.summary()
            assert summary["control"] == folder.config().control == control
            assert summary["rounds"] == (0 if control == "label-free" else 48)

    out = vertizo("train", *TINY, "--controls", "--out", "both").quietly()
    assert out.count("┏") == 1, "one table"
    says(out, "frozen", "random", "label-free,", "bytes up", "privacy")
    assert "balanced" not in out
    assert "balanced" in vertizo("train", "--resume", "both", "--details").out
    assert "ε = 0" in out
    assert re.search("^controls: .*test accuracy .* the run's ", out, re.MULTILINE)
    check(here / "both")
    vertizo("train", *TINY, "--out", "run")
    before = json.loads((here / "run" / "summary.json").read_text())
    added = vertizo("train", "--resume", "run", "--controls", "--json")
    assert added.out.count("\n") == 1
    assert json.loads(added.out)["control"] == "none"
    after = json.loads((here / "run" / "summary.json").read_text())
    assert after.pop("instead")["words"]  # which controls give cause for
    assert after == before
    check(here / "run")


def test_resuming(vertizo: Vertizo, here: Path) -> None:
    """A finished run is shown again; another begins where it stopped."""
    first = vertizo("train", *TINY, "--out", "run", "--json")
    before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    again = vertizo("train", "--resume", "run", "--json").quietly()
    assert json.loads(again) == json.loads(first.out)
    assert {path: path.read_bytes() for path in before} == before
    (here / "run" / "summary.json").unlink()
    with (here / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 99, "lo')
    again = vertizo("train", "--resume", "run", "--json")
    assert timeless(json.loads(again.out)) == timeless(json.loads(first.out))
    rows = (here / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [0, 24, 48]


CONFIG = """
{{seed: 0, epochs: 170, batch_size: 9, evaluate_every: 40, checkpoint_seconds: 0.02,
data: {{limit: 60}}, {}}}
"""
CONFIGS = {
    "dpzv": "client: {optimizer: {learning_rate: 0.005, momentum: 0.9}}, simulation: {drop: 0.1, "
    "timeout: 2}, privacy: {mechanism: gaussian, clip: 0.5, noise_std: 0.3}",
    "vafl": "method: {name: vafl}",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders with a configuration and ``run``, its uninterrupted run, each made once."""

    @cache
    def run(name: str) -> Path:
        place = tmp_path_factory.mktemp(name)
        (place / "config.yaml").write_text(CONFIG.format(CONFIGS[name]))
        Experiment.from_yaml(place / "config.yaml").run(place / "run")
        return place

    return run


def wait_for(process: warm.Process | subprocess.Popen[str], happened: Callable[[], bool]) -> bool:
    """Whether it happened before the process ended."""
    came = until(lambda: process.poll() is not None or happened(), 120, 0.001)
    return came and process.poll() is None


def evaluations(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def assert_same(one: Path, two: Path) -> None:
    """Summaries, metrics and last checkpoints are identical but for the clock."""
    first, second = RunFolder(one), RunFolder(two)
    assert timeless(first.summary()) == timeless(second.summary()) != {}
    assert [*map(timeless, first.metrics())] == [*map(timeless, second.metrics())]
    for name in ("last", "best"):
        states = [folder.load(name) for folder in (first, second)]
        for state in states if name == "last" else ():
            state.pop("standing")
        assert same(*states), name


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.full
def test_killed_again_and_again_it_ends_with_the_same_numbers(
    name: str, whole: Callable[[str], Path], vertizo: Vertizo
) -> None:
    reference, folder = whole(name), Path("run")
    rng = random.Random(f"kills of {name}")
    total = evaluations(reference / "run")
    # 0: there is a folder, and hardly more; later: so many evaluations were made
    moments = [0, 1] + [round(total * (part + rng.random()) / 6) for part in (1, 2, 3)]
    for moment in moments:
        first = (reference / "config.yaml", "--out", folder)
        arguments = ("--resume", folder) if folder.exists() else first
        process = warm.Process(["train", *map(str, arguments)], Path("said"))
        assert wait_for(
            process,
            lambda m=moment: (folder / "config.yaml").exists() and evaluations(folder) >= m,
        )
        time.sleep(rng.random() * 0.02)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        assert Path("said").read_bytes() == b"", "nothing is said before the end"
        assert not (folder / "summary.json").exists()
    assert vertizo("train", "--resume", folder).code == 0
    assert_same(folder, reference / "run")


@pytest.mark.full
def test_ctrl_c_keeps_what_was_done_and_says_how_to_go_on(
    whole: Callable[[str], Path], vertizo: Vertizo
) -> None:
    reference, folder = whole("dpzv"), Path("my run")
    third = evaluations(reference / "run") // 3
    command = [sys.executable, "-m", "vertizo", "train", str(reference / "config.yaml")]
    command += ["--out", "my run", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe) as process:
        assert wait_for(process, lambda: evaluations(folder) >= third)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (130, "", 1)
    says(err, "stopped in round", "--resume", "my run")
    assert RunFolder(folder).summary() is None
    stopped = RunFolder(folder).load("last")["server"]["round"]
    assert f"round {stopped}" in err
    assert vertizo("train", "--resume", "my run", "--json").code == 0
    assert_same(folder, reference / "run")


@pytest.fixture
def stopping(
    here: Path, vertizo: Vertizo, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Train, and press Ctrl-C after so many calls of a client's model; none if negative."""
    (here / "stopping.py").write_text(
        "import os, signal\n"
        "def apply(w, x):\n"
        "    left = int(os.environ['STOP'])\n"
        "    os.environ['STOP'] = str(left - 1)\n"
        "    if left == 0:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    return x[:, 0, 0, :2] * w\n"
    )
    model = "client.model={name: function, path: 'stopping.py:apply', num_parameters: 2}"

    def train(calls: int, *arguments: str) -> Outcome:
        monkeypatch.setenv("STOP", str(calls))
        return vertizo("train", *TINY, *sets(model), *arguments)

    return train


def continued(vertizo: Vertizo, stopped: Outcome) -> Outcome:
    """Do what a stopped run says to go on with, as if it were pasted."""
    assert stopped.code == 130
    _, found, command = stopped.line.partition("continue with ")
    assert found, stopped
    return vertizo("train", *shlex.split(command), "--json")


@pytest.mark.full
def test_stopped_at_any_moment_it_can_be_resumed(
    stopping: Callable[..., Outcome], vertizo: Vertizo
) -> None:
    """At the first evaluation, in training, at an evaluation, at the closing test; in a control."""
    whole = stopping(-1, "--out", "whole", "--json")
    calls = -1 - int(os.environ["STOP"])
    moments = [calls * part // 16 for part in (12, 13, 14)]  # models are tried before the run
    for name, moment in zip(
        ("run", "my run", "it's", "a", "b"), [*moments, calls - 10, calls - 1], strict=True
    ):
        again = continued(vertizo, stopping(moment, "--out", name))
        assert timeless(json.loads(again.out)) == timeless(json.loads(whole.out)), moment
    stopped = stopping(calls * 7 // 4, "--controls", "--out", "controlled")
    assert Path("controlled/summary.json").is_file()
    assert not Path("controlled/controls/frozen/summary.json").exists()
    assert continued(vertizo, stopped).code == 0
    for control in CONTROLS:
        assert Path(f"controlled/controls/{control}/summary.json").is_file()


def test_stopped_before_the_first_round_nothing_is_left(stopping: Callable[..., Outcome]) -> None:
    stopped = stopping(0, "--out", "run")
    assert stopped.code == 130
    assert stopped.line
    assert {path.name for path in Path().iterdir()} <= {"stopping.py"}
