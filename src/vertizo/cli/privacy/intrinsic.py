"""``vertizo privacy intrinsic``: VFL-CZOFO's "intrinsic" figures of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vertizo.cli.options import AsJson, complete_runs


def intrinsic(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run folder of VFL-CZOFO.", autocompletion=complete_runs
        ),
    ],
    repeats: Annotated[int, typer.Option(min=2, help="Estimates on each frozen model.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Measure the "intrinsic" privacy figures of VFL-CZOFO, which guarantee nothing."""
    from vertizo.run.folder import RunFolder
    from vertizo.studies.intrinsic import intrinsic as measured

    found = measured(RunFolder(run), repeats=repeats)
    typer.echo(json.dumps(found.as_dict()) if as_json else found.words())
