"""How the package is laid out."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vertizo

ROOT = Path(vertizo.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
HEAVY = {"torch", "pydantic", "sklearn", "scipy", "numpy", "yaml", "rich"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_modules() -> None:
    assert len(MODULES) > 40


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_module_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_every_module_says_in_a_line_what_it_is(path: Path) -> None:
    words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert words
    assert words.splitlines()[0].strip()


@pytest.mark.processes
def test_importing_the_package_costs_little() -> None:
    text = f"import sys, vertizo; print(sorted({HEAVY!r} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"


@pytest.mark.processes
def test_a_name_of_the_package_brings_what_it_needs() -> None:
    text = "import sys, vertizo; vertizo.Experiment; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "True\n"


def test_every_promised_name_can_be_had() -> None:
    for promised in vertizo.__all__:
        assert getattr(vertizo, promised) is not None
