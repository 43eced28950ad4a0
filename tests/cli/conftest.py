"""The command line, called in this process and watched from outside."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.command_line import Refuses, Vertizo, program


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
def vertizo(capfd: pytest.CaptureFixture[str]) -> Vertizo:
    return program(capfd)


@pytest.fixture
def refuses(vertizo: Vertizo, here: Path) -> Refuses:
    return Refuses(vertizo, here)
