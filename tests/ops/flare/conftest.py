"""FLARE's tests are of the full tier."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The gate leaves them out unread: they bring FLARE, which takes a second to import."""
    return True if "not full" in config.option.markexpr else None
