"""How the package is laid out, what it gives to those who import it, and what its tests start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from tests import mutants
from tests.conftest import COLLECTED

import vertizo

ROOT = Path(vertizo.__file__).parent
HEAVY = {"torch", "pydantic", "sklearn", "scipy", "numpy", "yaml", "rich"}
EXPORTED = [
    "Experiment",
    "ExperimentConfig",
    "Findings",
    "Privacy",
    "Result",
    "VerticalClassifier",
    "VerticalRegressor",
    "VertizoError",
    "__version__",
    "compare",
    "plan",
    "worth",
]
"""All of the public names at the top; everything else is imported from its room."""


def test_every_module_is_short_and_says_in_a_line_what_it_is() -> None:
    modules = sorted(ROOT.rglob("*.py"))
    assert len(modules) > 40
    for path in modules:
        text = path.read_text(encoding="utf-8")
        name = str(path.relative_to(ROOT))
        assert len(text.splitlines()) <= 800, f"{name} is longer than 800 lines"
        words = ast.get_docstring(ast.parse(text)) or ""
        assert words.strip().splitlines()[:1], f"{name} has no docstring"
        assert words.splitlines()[0].strip(), f"{name} says nothing in its first line"


def test_the_top_level_is_a_few_rooms() -> None:
    names = {path.name for path in ROOT.iterdir()} - {"__pycache__"}
    assert len(names) <= 18, sorted(names)


def lines(*rooms: str) -> int:
    """Of the modules below some folders."""
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def test_who_has_to_trust_the_program_is_told_how_much_there_is_to_read() -> None:
    said = (ROOT.parent.parent / "SECURITY.md").read_text(encoding="utf-8")
    core = lines("") - lines("lab", "ops")
    inner = lines("protocol", "privacy", "methods", "party", "network")
    for size, words in ((core, "lines of Python"), (inner, "of them")):
        found = re.search(rf"([\d,]+) {words}", said)
        assert found is not None, words
        assert abs(int(found[1].replace(",", "")) - size) <= 1000, (words, size)


ELSEWHERE = {"core.arrays.fused", "methods.base.ClientSide.shared"}
"""Needs Triton; is an object's."""


@pytest.mark.full
def test_every_name_of_a_module_leads_somewhere() -> None:
    """In code, tests and pages: a name that was left behind by a move is found by nobody else."""
    top = ROOT.parent.parent
    rooms = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "_"]
    dotted = re.compile(rf"(?<![\w./-])vertizo\.((?:{'|'.join(rooms)})(?:\.[A-Za-z_]\w*)*)")
    quoted = re.compile(rf"`((?:{'|'.join(rooms)})/[\w/]+(?:\.py|/))")
    wrong = []
    for folder in ("src", "tests", "docs", "benchmarks", "experiments", "examples"):
        for file in [*(top / folder).rglob("*.py"), *(top / folder).rglob("*.md")]:
            if file.name in ("former_imports.py", "test_wings.py"):
                continue
            text = file.read_text(encoding="utf-8")
            names = {name for name in dotted.findall(text) if not resolves(f"vertizo.{name}")}
            paths = {path for path in quoted.findall(text) if not (ROOT / path).exists()}
            wrong += [f"{file.name}: {name}" for name in (names - ELSEWHERE) | paths]
    assert not wrong


@cache
def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        with suppress(ImportError):
            found = import_module(".".join(parts[:length]))
            for part in parts[length:]:
                found = getattr(found, part, None)
            return found is not None
    return False


def test_what_is_exported() -> None:
    assert vertizo.__all__ == EXPORTED
    assert dir(vertizo) == sorted(EXPORTED)
    for name in EXPORTED:
        assert getattr(vertizo, name) is not None, name


@pytest.mark.processes
@pytest.mark.full
def test_importing_the_package_costs_little_and_a_name_brings_what_it_needs() -> None:
    text = f"""
import sys, vertizo
assert not {HEAVY!r} & set(sys.modules), sorted({HEAVY!r} & set(sys.modules))
vertizo.Experiment
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", text], check=True)


HEAVY_FOR_TESTS = {
    *("fastapi", "mlflow", "nbclient", "nvflare", "optuna", "pandas", "playwright", "ray"),
    *("scipy.stats", "sklearn", "tensorboard", "transformers", "uvicorn"),
}


def test_collecting_imports_nothing_heavy(request: pytest.FixtureRequest) -> None:
    """Every worker would pay at its start: tests import such packages where they use them.

    The full tier reads FLARE's tests, which bring FLARE; the gate does not (their conftest.py).
    """
    gate = "not full" in request.config.option.markexpr
    brought = set() if gate else {"nvflare"}
    assert sorted((HEAVY_FOR_TESTS - brought) & request.config.stash[COLLECTED]) == []


def test_a_test_of_the_gate_starts_no_process() -> None:
    with pytest.raises(RuntimeError, match="a test of the gate starts a process"):
        subprocess.run([sys.executable, "-c", ""], check=True)


BROKEN = {
    "msgspec": (0, 19),  # damages frames
    "typer": (0, 26),  # words its mistakes otherwise; before 0.26 it breaks with the click of now
    "polars": (1, 35, 2),  # takes the header for a record below a blank line
}


def test_no_version_that_is_known_to_fail_is_allowed() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    dependencies = project["project"]["dependencies"]
    for name, broken in BROKEN.items():
        (each,) = (each for each in dependencies if each.startswith(name))
        bound = re.fullmatch(rf"{name}>=([\d.]+)", each)
        assert tuple(map(int, bound[1].split("."))) > broken


def test_every_mutant_is_of_a_line_that_is_there() -> None:
    """Once in its file; else `tests/mutants.py` judges nothing."""
    assert mutants.unfit(ROOT.parents[1], mutants.MUTANTS) == []
