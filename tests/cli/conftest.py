"""The command line, called in this process and watched from outside."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from vertizo.cli.main import main

TINY = ("--set", "data.limit=60", "--set", "batch_size=9", "--set", "epochs=2")


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line that was said on standard error, and nothing on standard output."""
        assert self.out == ""
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.rstrip("\n")


Vertizo = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own to run in."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return place


@pytest.fixture
def vertizo(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Vertizo:
    """``vertizo`` with these arguments."""

    def call(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["vertizo", *map(str, arguments)])
        capfd.readouterr()
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        else:
            code = 0
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture
def tiny() -> tuple[str, ...]:
    """Options of a run that takes an instant: 48 rounds."""
    return TINY


class Refuses:
    """Checks mistakes: one line with these words, code 2, nothing left."""

    def __init__(self, vertizo: Vertizo, here: Path) -> None:
        self._vertizo, self._here = vertizo, here

    def __call__(self, table: str, *command: str) -> None:
        """Rows of ``arguments | words | words``; an indented line continues its row."""
        for row in re.sub(r"\n +", " ", table).splitlines():
            arguments, *words = row.split(" | ")
            self.row(row, words, *command, *shlex.split(arguments))

    def row(self, row: str, words: Sequence[str], *arguments: str | Path) -> None:
        before = set(self._here.rglob("*"))
        ended = self._vertizo(*arguments)
        assert ended.code == 2, f"{row}: {ended}"
        assert ended.line.startswith("vertizo: "), row
        missing = [word for word in words if word not in ended.line]
        assert not missing, f"{row}: {missing} not in {ended.line!r}"
        assert set(self._here.rglob("*")) == before, row


@pytest.fixture
def refuses(vertizo: Vertizo, here: Path) -> Refuses:
    return Refuses(vertizo, here)


def sets(*settings: str) -> list[str]:
    """Options for these settings."""
    return [part for setting in settings for part in ("--set", setting)]
