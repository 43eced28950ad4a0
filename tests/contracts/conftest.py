"""Shared by the tests of this folder."""

from __future__ import annotations

from types import ModuleType

import pytest
from tests import federations as builders


@pytest.fixture(scope="session")
def federations() -> ModuleType:
    """The builders of ``tests/federations.py``."""
    return builders
