"""``vertizo report``: one HTML page about runs, comparisons and attacks."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from vertizo.cli.console import say
from vertizo.cli.options import complete_runs
from vertizo.core.errors import Interrupted


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…",
            help="Folders of train, compare, serve or attack --out.",
            autocompletion=complete_runs,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page. Default: report.html in the one RUN, or here for several.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write one HTML page about runs: curves, tables, clients, privacy, attacks."""
    try:
        from vertizo.run.summary_figures import size_text
        from vertizo.studies.report import page, read, write

        material = read(runs)
        place = out or (runs[0] if len(runs) == 1 else Path()) / page.NAME
        write(material, place, title)
    except KeyboardInterrupt:
        raise Interrupted("stopped; nothing was written") from None
    say(f"{place} ({size_text(place.stat().st_size)})")
    if open_:
        webbrowser.open(place.resolve().as_uri())
