"""Shared by all tests of studies: the command line, and small runs that are made once."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Refuses, Vertizo, program, run
from tests.once import Once

from vertizo.config import schema
from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import CONTROLS
from vertizo.lab import comparison as comparisons
from vertizo.lab import made_by
from vertizo.lab.engines import Processes, Run
from vertizo.lab.processes import Inline
from vertizo.run.experiment import Experiment

TINY = ("data.limit=60", "batch_size=9", "epochs=3")
EXACT = ("privacy={mechanism: gaussian, clip: 0.5, epsilon: 3}", "server.update=none")


def settings(*overrides: str) -> ExperimentConfig:
    """A configuration of nothing but these."""
    return schema.load(None, overrides)


def ran(out: Path, *overrides: str) -> Path:
    """A small run in a folder."""
    Experiment(settings(*TINY, *overrides)).run(out)
    return out


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Vertizo:
    """The program, in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return program(capfd)


@pytest.fixture
def refuses(call: Vertizo, tmp_path: Path) -> Refuses:
    return Refuses(call, tmp_path)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a command are made in this process."""
    monkeypatch.setattr("vertizo.lab.engines.processes", lambda *_, **__: nullcontext(Inline()))


@dataclass(frozen=True)
class Compared:
    """A comparison that came to its end."""

    folder: Path
    runs: list[Run]
    summaries: dict[Run, dict[str, Any]]
    standings: list[comparisons.Standing]
    rows: list[comparisons.Row]


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Two methods, two seeds each, with their controls; one client is slow."""
    folder = tmp_path_factory.mktemp("studies") / "compared"
    own = (*TINY, "simulation.stragglers={1: 6}")
    configs = comparisons.configurations(None, own, ["vafl", "dpzv"])  # not as in the alphabet
    runs = comparisons.plan(configs, 2, folder, controls=CONTROLS)
    comparisons.check(runs)
    standings: list[comparisons.Standing] = []
    summaries = comparisons.execute(runs, Processes(2, reused=True), standings.append)
    rows = comparisons.rows(runs, summaries, [0.0001, 1.0], "validation")
    methods = {row.label: row.as_dict() for row in rows}
    content = {"command": "vertizo compare --methods vafl,dpzv", "methods": methods}
    made_by.keep(folder / "comparison.json", content)
    return Compared(folder, runs, summaries, standings, rows)


@pytest.fixture(scope="session")
def private(once: Once) -> Path:
    """A run under seeded noise."""
    return once("private", lambda folder: ran(folder, *EXACT))


@pytest.fixture(scope="session")
def comparison(compared: Compared) -> Path:
    """Two methods, two seeds each, with their controls."""
    return compared.folder


@pytest.fixture(scope="session")
def attacks(once: Once) -> Path:
    """Figures of an attack, made by the command."""

    def make(folder: Path) -> None:
        command = ["attack", "direct-client", "--seeds", "2", "--set", "data.limit=60"]
        assert run(*command, "--out", folder) == 0

    return once("attacked", make)
