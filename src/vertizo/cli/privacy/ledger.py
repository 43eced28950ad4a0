"""``vertizo privacy ledger``: create, read and vouch for the ledger of a set of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vertizo.cli.options import Settings

Ledger = Annotated[Path, typer.Argument(metavar="LEDGER", help="The ledger's file.")]


def create(
    ledger: Ledger,
    config: Annotated[
        Path,
        typer.Argument(help="YAML configuration of the runs to come; may be a label holder's."),
    ],
    settings: Settings = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs that the budget pays for.")] = 1,
    further: Annotated[
        bool,
        typer.Option(
            "--further",
            help="Allow records that another ledger is for; their ε of all ledgers add up.",
        ),
    ] = False,
) -> None:
    """Create a ledger with a fixed budget for several runs of a configuration."""
    from vertizo.config import schema
    from vertizo.config.error_lines import read_yaml

    if "federation" in read_yaml(config):
        from vertizo.network.options import load_serve

        job = load_serve(config, settings or [])
        from vertizo.network.job import budget_for_jobs

        budget, data = budget_for_jobs(job, runs)
    else:
        chosen = schema.load(config, settings or [])
        from vertizo.run.ledger_session import budget_for, charged_data

        data = charged_data(chosen)
        budget = budget_for(chosen, data, runs)
    from vertizo.privacy.durable_ledger import DurableLedger
    from vertizo.run.ledger_session import names_of

    DurableLedger.create(ledger, budget, names=names_of(data), further=further)
    typer.echo(DurableLedger.inspect(ledger))
    typer.echo(f"use it with --set privacy.ledger={ledger}")


def show(ledger: Ledger) -> None:
    """Print how much of the budget is spent and left."""
    from vertizo.privacy.durable_ledger import DurableLedger
    from vertizo.privacy.ledger_witness import Register

    summary = DurableLedger.inspect(ledger)
    typer.echo(summary)
    for other in Register().beside(summary.identity):
        typer.echo(
            f"some of these records are charged to {other.ledger} as well: {other.states} more"
        )


def accept(ledger: Ledger) -> None:
    """Confirm that a moved ledger is the newest copy and the only one in use."""
    from vertizo.privacy.durable_ledger import DurableLedger

    typer.echo(DurableLedger.accept(ledger))
