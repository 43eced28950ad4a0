"""Shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def federations() -> SimpleNamespace:
    """The builders of ``tests/federations.py``."""
    return SimpleNamespace(**run_path(str(Path(__file__).parents[1] / "federations.py")))
