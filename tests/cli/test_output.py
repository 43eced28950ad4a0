"""Standard output that is closed or full, folders that may not be entered: a code and a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from tests.command_line import Refuses, Vertizo

PLAN = ["privacy", "plan", "--records", "100", "--clients", "2", "--epsilon", "1", "--delta", "0.1"]


def ran(command: list[str], out: IO[bytes]) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-m", "vertizo", *command]
    return subprocess.run(words, stdout=out, stderr=subprocess.PIPE, check=False)


@pytest.mark.full
def test_a_reader_that_is_gone_and_a_full_disk() -> None:
    for command in ([*PLAN, "--json"], ["schema"]):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as closed:
            ended = ran(command, closed)
        assert (ended.returncode, ended.stderr) == (141, b""), command
        with Path("/dev/full").open("wb") as full:
            ended = ran(command, full)
        line = b"vertizo: standard output cannot be used: No space left on device\n"
        assert (ended.returncode, ended.stderr) == (2, line), command


def test_a_name_that_is_too_long_and_a_folder_that_is_locked(
    refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * 300
    for command in (["predict", long], ["report", long], ["train", "--out", long], ["init", long]):
        refuses.row(command[0], ["File name too long"], *command)
    real = Path.is_dir

    def locked(path: Path) -> bool:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "is_dir", locked)
    refuses.row("locked", ["locked cannot be used: Permission denied"], "predict", "locked")


def test_an_empty_word_is_no_folder(refuses: Refuses) -> None:
    for option in (["--out", ""], ["--out="], ["--set", "seed=", "--out", ""]):
        refuses.row(str(option), ["what follows --out is empty"], "train", *option)
    refuses.row("a run", ["what follows predict is empty"], "predict", "")


def test_settings_of_the_environment_are_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from vertizo.cli.console import command_line

    monkeypatch.setenv("VERTIZO_SET__EPOCHS", "1")
    given = ["vertizo", "compare", "a.yaml", "--out", "x", "--set", "seed=2", "--seeds", "3"]
    monkeypatch.setattr(sys, "argv", given)
    found = "vertizo compare a.yaml --set=epochs=1 --set seed=2 --seeds 3"
    assert command_line() == found
    monkeypatch.setattr(sys, "argv", ["vertizo", "compare", "a.yaml"])
    assert command_line() == "vertizo compare a.yaml --set=epochs=1"


@pytest.mark.full
def test_a_run_predicts_as_it_was_trained(
    refuses: Refuses, vertizo: Vertizo, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--set", "data.limit=60", "--set", "epochs=1"]
    assert vertizo("train", *small, "--out", "run").code == 0
    refuses.row("set", ["--set epochs=3 is for a party's"], "predict", "run", "--set", "epochs=3")
    monkeypatch.setenv("VERTIZO_SET__EPOCHS", "3")
    assert vertizo("predict", "run").code == 0
    refuses.row("compare", ["run"], "compare", "--methods", "dpzv", "--out", "run/config.yaml")
