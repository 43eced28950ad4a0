"""``vertizo train``: what it prints, what it leaves, and that nothing stops it for good."""

from __future__ import annotations

import io
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, tensor

from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder

CLOCK = {"seconds", "rounds_per_second", "peak_memory_mib"}
"""Figures that no two runs share."""


def timeless(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in CLOCK}


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


class TestOutput:
    def test_without_a_configuration_a_new_folder_is_made_each_time(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...], here: Path
    ) -> None:
        for folder in ("runs/digits-dpzv-seed0", "runs/digits-dpzv-seed0-2"):
            result = vertizo("train", *tiny)
            assert (result.code, result.err) == (0, "")
            assert f"run folder: {folder}" in result.out
            assert (here / folder / "summary.json").is_file()
        vertizo("train", *tiny, "--set", "method.name=vafl", "--set", "seed=3")
        assert sorted(path.name for path in (here / "runs").iterdir()) == [
            "digits-dpzv-seed0",
            "digits-dpzv-seed0-2",
            "digits-vafl-seed3",
        ]

    def test_the_closing_table(self, vertizo: Callable[..., Any], tiny: tuple[str, ...]) -> None:
        result = vertizo("train", *tiny, "--out", "run")
        summary = json.loads(Path("run/summary.json").read_text())
        for words in (
            "dpzv on digits",
            f"{100 * summary['test_accuracy']:.2f} %",
            f"{summary['test_loss']:.4f}",
            "48",
            "No privacy guarantee",
            "run folder: run",
        ):
            assert words in result.out

    def test_a_configuration_file_with_settings_on_top(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...], here: Path
    ) -> None:
        (here / "my.yaml").write_text("seed: 5\nmethod: {name: cascaded}\n")
        assert vertizo("train", "my.yaml", *tiny, "--out", "a/b/run").code == 0
        settings = RunFolder(Path("a/b/run")).config()
        assert (settings.seed, settings.method.name, settings.epochs) == (5, "cascaded", 2)

    def test_json_is_the_only_line(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...]
    ) -> None:
        result = vertizo("train", *tiny, "--out", "run", "--json")
        assert (result.code, result.err) == (0, "")
        assert result.out.count("\n") == 1
        summary = json.loads(result.out, parse_constant=no_constant)
        assert summary == json.loads(Path("run/summary.json").read_text())
        assert summary["rounds"] == 48

    def test_json_where_the_terminal_knows_no_greek(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        noise = ("--set", "privacy={mechanism: gaussian, clip: 1, noise_std: 1}")
        raw = io.BytesIO()
        with io.TextIOWrapper(raw, encoding="latin-1", write_through=True) as latin:
            monkeypatch.setattr(sys, "stdout", latin)
            assert vertizo("train", *tiny, *noise, "--json").code == 0
            monkeypatch.undo()
            assert "μ" in json.loads(raw.getvalue().decode("latin-1"))["privacy"]["words"]

    def test_quiet_on_standard_error_unless_it_is_a_terminal(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        assert vertizo("train", *tiny, "--json").err == ""
        shown = Terminal()
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", shown)
        result = vertizo("train", *tiny, "--set", "epochs=40", "--json")
        assert result.code == 0
        assert json.loads(result.out)["rounds"] == 960
        for word in ("dpzv", "960 rounds", "acc", "loss", "MB", "no ε"):
            assert word in shown.getvalue()

    @pytest.mark.parametrize("name", ["run [bold]", "run[/x]", "[red]run", "a b"])
    def test_a_folder_is_printed_as_it_is(
        self, name: str, vertizo: Callable[..., Any], tiny: tuple[str, ...], here: Path
    ) -> None:
        result = vertizo("train", *tiny, "--out", name)
        assert result.code == 0
        assert f"run folder: {name}\n" in result.out
        assert (here / name / "summary.json").is_file()

    def test_a_model_file_beside_the_configuration(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...], here: Path
    ) -> None:
        """Found from another folder, and again by the run's own configuration."""
        (here / "mine").mkdir()
        (here / "mine" / "rules.py").write_text("def apply(w, x):\n    return x[:, 0, 0, :2] * w\n")
        (here / "mine" / "run.yaml").write_text(
            "client: {model: {name: function, path: 'rules.py:apply', num_parameters: 2}}\n"
        )
        first = vertizo("train", "mine/run.yaml", *tiny, "--out", "run", "--json")
        assert (first.code, first.err) == (0, "")
        again = vertizo("train", "run/config.yaml", "--json")
        assert (again.code, again.err) == (0, "")
        assert timeless(json.loads(again.out)) == timeless(json.loads(first.out))

    @pytest.mark.parametrize("resume", [True, False])
    def test_a_run_does_not_depend_on_where_it_is_continued(
        self,
        resume: bool,
        vertizo: Callable[..., Any],
        tiny: tuple[str, ...],
        here: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Files that were named by relative paths are found from another folder, too."""
        (here / "files").mkdir()
        (here / "rules.py").write_text("def apply(w, x):\n    return x[:, 0, 0, :2] * w\n")
        (here / "run.yaml").write_text(
            "data: {root: files}\n"
            "client: {model: {name: function, path: 'rules.py:apply', num_parameters: 2}}\n"
        )
        first = vertizo("train", "run.yaml", *tiny, "--out", "run", "--json")
        assert first.code == 0
        (here / "run" / "summary.json").unlink()
        (here / "elsewhere").mkdir()
        monkeypatch.chdir(here / "elsewhere")
        again = vertizo(
            "train", *(["--resume", "../run"] if resume else ["../run/config.yaml"]), "--json"
        )
        assert (again.code, again.err) == (0, "")
        assert timeless(json.loads(again.out)) == timeless(json.loads(first.out))


class TestControls:
    def test_both_controls_stand_beside_the_run(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...], here: Path
    ) -> None:
        result = vertizo("train", *tiny, "--controls", "--out", "run")
        assert (result.code, result.err) == (0, "")
        assert "frozen clients" in result.out
        assert "random clients" in result.out
        for control in ("frozen", "random"):
            folder = RunFolder(here / "run" / "controls" / control)
            summary = folder.summary()
            assert summary is not None
            assert summary["control"] == folder.config().control == control
            assert summary["rounds"] == 48
        assert (RunFolder(here / "run").summary() or {})["control"] == "none"

    def test_json_is_that_of_the_run(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...]
    ) -> None:
        result = vertizo("train", *tiny, "--controls", "--json", "--out", "run")
        assert result.out.count("\n") == 1
        assert json.loads(result.out)["control"] == "none"

    def test_they_can_be_added_to_a_finished_run(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...], here: Path
    ) -> None:
        vertizo("train", *tiny, "--out", "run")
        before = (here / "run" / "summary.json").read_bytes()
        assert vertizo("train", "--resume", "run", "--controls").code == 0
        assert (here / "run" / "summary.json").read_bytes() == before
        assert (here / "run" / "controls" / "frozen" / "summary.json").is_file()
        assert (here / "run" / "controls" / "random" / "summary.json").is_file()


class TestResumeFinished:
    def test_a_finished_run_is_shown_again(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...], here: Path
    ) -> None:
        first = vertizo("train", *tiny, "--out", "run", "--json")
        before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
        again = vertizo("train", "--resume", "run", "--json")
        assert (again.code, again.err) == (0, "")
        assert json.loads(again.out) == json.loads(first.out)
        assert {path: path.read_bytes() for path in before} == before

    def test_an_unfinished_one_begins_where_it_stopped(
        self, vertizo: Callable[..., Any], tiny: tuple[str, ...], here: Path
    ) -> None:
        whole = vertizo("train", *tiny, "--out", "whole", "--json")
        vertizo("train", *tiny, "--out", "run")
        (here / "run" / "summary.json").unlink()
        with (here / "run" / "metrics.jsonl").open("a") as file:
            file.write('{"round": 99, "lo')
        again = vertizo("train", "--resume", "run", "--json")
        assert timeless(json.loads(again.out)) == timeless(json.loads(whole.out))
        rows = (here / "run" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(row)["round"] for row in rows] == [0, 24, 48]


LONG = """
seed: 0
epochs: {epochs}
batch_size: 9
evaluate_every: 40
checkpoint_seconds: 0.02
data: {{limit: 60}}
"""
CONFIGS = {
    "dpzv": LONG.format(epochs=170)
    + """
method: {name: dpzv}
client: {optimizer: {learning_rate: 0.005, momentum: 0.9}}
privacy: {mechanism: gaussian, clip: 0.5, noise_std: 0.3}
simulation: {drop: 0.1, timeout: 2}
""",
    "vafl": LONG.format(epochs=170) + "\nmethod: {name: vafl}\n",
}


@dataclass
class Whole:
    """A run that nobody interrupted."""

    config: Path
    folder: Path

    @property
    def evaluations(self) -> int:
        return len(RunFolder(self.folder).metrics())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """The uninterrupted runs, each made once."""
    made: dict[str, Whole] = {}

    def run(name: str) -> Whole:
        if name not in made:
            place = tmp_path_factory.mktemp(name)
            (place / "config.yaml").write_text(CONFIGS[name])
            Experiment.from_yaml(place / "config.yaml").run(place / "run")
            made[name] = Whole(place / "config.yaml", place / "run")
        return made[name]

    return run


def started(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vertizo", "train", *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
    )


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> bool:
    """Whether it happened before the process ended."""
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.001)
    return False


def evaluations(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def assert_same(one: Path, two: Path) -> None:
    """Summaries, metrics and last checkpoints are identical but for the clock."""
    summaries = [RunFolder(folder).summary() for folder in (one, two)]
    assert summaries[0] is not None
    assert timeless(summaries[0]) == timeless(summaries[1] or {})
    rows = [[timeless(row) for row in RunFolder(folder).metrics()] for folder in (one, two)]
    assert rows[0] == rows[1]
    states = [RunFolder(folder).load("last") for folder in (one, two)]
    for state in states:
        state.pop("standing")
    assert flat(states[0]) == flat(states[1])
    best = [RunFolder(folder).load("best") for folder in (one, two)]
    assert flat(best[0]) == flat(best[1])


def flat(state: Any, path: str = "") -> dict[str, Any]:
    """Every value by its place, tensors as their bytes."""
    if isinstance(state, Tensor):
        return {path: (state.dtype, tuple(state.shape), state.numpy().tobytes())}
    if isinstance(state, dict | list):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {k: v for key, item in items for k, v in flat(item, f"{path}/{key}").items()}
    return {path: state}


class TestKilled:
    @pytest.mark.parametrize("name", CONFIGS)
    @pytest.mark.processes
    def test_killed_again_and_again_it_ends_with_the_same_numbers(
        self, name: str, whole: Callable[[str], Whole], here: Path, vertizo: Callable[..., Any]
    ) -> None:
        reference, folder = whole(name), here / "run"
        rng = random.Random(f"kills of {name}")
        total = reference.evaluations
        moments = [0, 1] + [round(total * (part + rng.random()) / 6) for part in (1, 2, 3)]
        kills = 0
        for moment in moments:
            again = ("--resume", folder) if folder.exists() else (reference.config, "--out", folder)
            process = started(*again)
            with process:
                if wait_for(process, lambda m=moment: self.reached(folder, m)):
                    time.sleep(rng.random() * 0.02)
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    kills += process.returncode == -signal.SIGKILL
                said = process.communicate()
            assert said == ("", ""), "nothing is said before the end"
            assert not (folder / "summary.json").exists()
        assert kills == len(moments)
        assert vertizo("train", "--resume", folder).code == 0
        assert_same(folder, reference.folder)

    @staticmethod
    def reached(folder: Path, moment: int) -> bool:
        """Moment 0: there is a folder, and hardly more; later: so many evaluations were made."""
        return (folder / "config.yaml").exists() and evaluations(folder) >= moment


class TestInterrupted:
    @pytest.mark.processes
    def test_ctrl_c_keeps_what_was_done_and_says_how_to_go_on(
        self, whole: Callable[[str], Whole], here: Path, vertizo: Callable[..., Any]
    ) -> None:
        reference = whole("dpzv")
        process = started(reference.config, "--out", "my run", "--json")
        with process:
            folder = here / "my run"
            assert wait_for(process, lambda: evaluations(folder) >= reference.evaluations // 3)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert out == ""
        assert err.count("\n") == 1
        for word in ("stopped in round", "--resume", "my run"):
            assert word in err
        assert RunFolder(folder).summary() is None
        stopped = RunFolder(folder).load("last")["server"]["round"]
        assert f"round {stopped}" in err
        again = vertizo("train", "--resume", "my run", "--json")
        assert again.code == 0
        assert_same(folder, reference.folder)

    @pytest.fixture
    def stopping(self, here: Path) -> tuple[str, ...]:
        """Options of a run whose client model presses Ctrl-C after so many calls as STOP says."""
        (here / "stopping.py").write_text(
            "import os, signal\n"
            "def apply(w, x):\n"
            "    left = int(os.environ.get('STOP', -1))\n"
            "    os.environ['STOP'] = str(left - 1)\n"
            "    if left == 0:\n"
            "        signal.raise_signal(signal.SIGINT)\n"
            "    return x[:, 0, 0, :2] * w\n"
        )
        model = "client.model={name: function, path: 'stopping.py:apply', num_parameters: 2}"
        return ("--set", model)

    @pytest.mark.parametrize("name", ["run", "my run", "it's"])
    def test_what_it_says_can_be_pasted(
        self,
        name: str,
        stopping: tuple[str, ...],
        tiny: tuple[str, ...],
        vertizo: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("STOP", "1000000")
        whole = vertizo("train", *tiny, *stopping, "--out", "whole", "--json")
        monkeypatch.setenv("STOP", str((10**6 - int(os.environ["STOP"])) * 3 // 4))
        stopped = vertizo("train", *tiny, *stopping, "--out", name)
        assert stopped.code == 130
        again = vertizo("train", *self.hint(stopped.line), "--json")
        assert timeless(json.loads(again.out)) == timeless(json.loads(whole.out))

    def test_within_a_control(
        self,
        stopping: tuple[str, ...],
        tiny: tuple[str, ...],
        here: Path,
        vertizo: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """What it says completes the run and both of its controls."""
        calls = 10**6
        monkeypatch.setenv("STOP", str(calls))
        vertizo("train", *tiny, *stopping, "--out", "whole")
        monkeypatch.setenv("STOP", str((calls - int(os.environ["STOP"])) * 7 // 4))
        stopped = vertizo("train", *tiny, *stopping, "--controls", "--out", "run")
        assert stopped.code == 130
        assert (here / "run" / "summary.json").is_file()
        assert not (here / "run" / "controls" / "frozen" / "summary.json").exists()
        assert vertizo("train", *self.hint(stopped.line)).code == 0
        for control in ("frozen", "random"):
            assert (here / "run" / "controls" / control / "summary.json").is_file()

    def test_before_the_first_round(
        self,
        stopping: tuple[str, ...],
        tiny: tuple[str, ...],
        vertizo: Callable[..., Any],
        files: Callable[[], set[str]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        before = files()
        monkeypatch.setenv("STOP", "0")
        stopped = vertizo("train", *tiny, *stopping, "--out", "run")
        assert stopped.code == 130
        assert stopped.line
        assert files() == before

    def test_at_any_moment_the_run_can_be_resumed(
        self,
        stopping: tuple[str, ...],
        tiny: tuple[str, ...],
        vertizo: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """At the first evaluation, in training, at an evaluation, at the closing test."""
        monkeypatch.setenv("STOP", "1000000")
        whole = vertizo("train", *tiny, *stopping, "--out", "whole", "--json")
        calls = 10**6 - int(os.environ["STOP"])
        moments = [calls * part // 16 for part in (8, 9, 12)]  # models are tried before the run
        for number, moment in enumerate([*moments, calls - 10, calls - 1]):
            monkeypatch.setenv("STOP", str(moment))
            stopped = vertizo("train", *tiny, *stopping, "--out", f"run{number}")
            assert stopped.code == 130, moment
            again = vertizo("train", *self.hint(stopped.line), "--json")
            assert timeless(json.loads(again.out)) == timeless(json.loads(whole.out)), moment

    @staticmethod
    def hint(line: str) -> list[str]:
        """The arguments that a stopped run says to go on with."""
        _, found, command = line.partition("continue with ")
        assert found, line
        return shlex.split(command)


def test_the_helper_notices_differences() -> None:
    assert flat({"a": [tensor([0.0])]}) == flat({"a": [tensor([0.0])]})
    assert flat({"a": [tensor([0.0])]}) != flat({"a": [tensor([-0.0])]})
    assert flat({"a": [1, 2]}) != flat({"a": [1]})
