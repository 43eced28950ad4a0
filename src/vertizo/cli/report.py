"""``vertizo report``: one HTML page about runs, comparisons and attacks."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from vertizo.run.summary_figures import size_text
from vertizo.studies.report import page, read, write


def report(
    paths: Sequence[Path], out: Path | None, title: str | None, *, open_it: bool = False
) -> None:
    """Write the page, and say where.

    Without ``out`` the page of one folder is in that folder, and that of several here.

    Raises:
        UserError: one line that says what is wrong.
    """
    material = read(paths)
    place = out
    if place is None:
        place = (paths[0] if len(paths) == 1 else Path()) / page.NAME
    write(material, place, title)
    made = f"{place} ({size_text(place.stat().st_size)})"
    Console().print(made, soft_wrap=True, highlight=False, markup=False)
    if open_it:
        webbrowser.open(place.resolve().as_uri())
