"""The two stages of ``make check``: what starts processes runs second, a few tests at a time."""

from __future__ import annotations

import re
from pathlib import Path

STARTS = re.compile(
    r"^(import (subprocess|multiprocessing)|from (subprocess|multiprocessing|tests\.processes) "
    r"import|from nbclient import)|playwright\.sync_api",
    re.M,
)


def test_what_starts_processes_is_marked() -> None:
    """By what a module imports; one such test in it at least has the marker."""
    here = Path(__file__)
    for path in sorted(here.parent.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if path != here and STARTS.search(text):
            assert "pytest.mark.processes" in text, f"{path}: mark what starts processes"
