"""``vertizo report``: one HTML page about runs, comparisons and attacks."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from vertizo.cli.console import say
from vertizo.cli.options import argument, complete_runs, option
from vertizo.core.errors import Interrupted


def report(
    runs: Annotated[
        list[Path],
        argument(
            "Folders that train, compare, worth, tune, serve or attack wrote.",
            "RUN…",
            complete=complete_runs,
        ),
    ],
    out: Annotated[
        Path | None,
        option("The page. Default: report.html in the one RUN, or here for several.", "FILE"),
    ] = None,
    title: Annotated[str | None, option("Title of the page.")] = None,
    open_: Annotated[bool, option("Open the page in the browser.", None, "--open")] = False,
) -> None:
    """Write one HTML page about runs: curves, tables, clients, privacy, attacks."""
    try:
        from vertizo.lab.report import page, read, write
        from vertizo.run.results.summary_figures import size_text

        material = read(runs)
        place = out or (runs[0] if len(runs) == 1 else Path()) / page.NAME
        write(material, place, title)
    except KeyboardInterrupt:
        raise Interrupted("stopped; nothing was written") from None
    say(f"{place} ({size_text(place.stat().st_size)})")
    if open_:
        webbrowser.open(place.resolve().as_uri())
