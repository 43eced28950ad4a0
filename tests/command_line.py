"""The program, called in this process and watched from outside."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.words import says

from vertizo.cli.main import main


class Outcome(NamedTuple):
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

    def refused(self, *words: str, case: object = "") -> None:
        """Exit code 2, and one line with all these words."""
        assert self.code == 2, f"{case}: {self}"
        assert self.line.startswith("vertizo: "), case
        says(self.line, *words, case=case)

    def well(self) -> str:
        """Standard output of a command that ended well."""
        assert self.code == 0, self
        return self.out

    def quietly(self) -> str:
        """Standard output of a command that ended well, with nothing on standard error."""
        assert (self.code, self.err) == (0, "")
        return self.out


Vertizo = Callable[..., Outcome]


def run(*arguments: str | Path) -> int:
    """``vertizo`` with these arguments; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["vertizo", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    return end.value.code or 0


def program(capfd: pytest.CaptureFixture[str]) -> Vertizo:
    """The same, and what is said."""

    def call(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        return Outcome(run(*arguments), *capfd.readouterr())

    return call


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
        self._vertizo(*arguments).refused(*words, case=row)
        assert set(self._here.rglob("*")) == before, row


def sets(*settings: str) -> list[str]:
    """Options for these settings."""
    return [part for setting in settings for part in ("--set", setting)]


TINY = sets("data.limit=60", "batch_size=9", "epochs=2")
"""Options of a run that takes an instant: 48 rounds."""
