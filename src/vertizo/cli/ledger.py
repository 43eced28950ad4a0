"""``vertizo privacy ledger``: make, read and vouch for the ledger of a set of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="ledger",
    help="The ledger that all runs on a set of records are charged to.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Ledger = Annotated[Path, typer.Argument(metavar="LEDGER", help="The ledger's file.")]


@app.command()
def create(
    ledger: Ledger,
    config: Annotated[Path, typer.Argument(help="YAML configuration of the runs to come.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="How many such runs it is to pay for.")] = 1,
    further: Annotated[
        bool,
        typer.Option(
            "--further", help="Even if ledgers are for some of these records; every ε adds up."
        ),
    ] = False,
) -> None:
    """Make a ledger whose budget pays for so many runs of a configuration; fixed from then on.

    Records that another ledger is for are refused. The configuration may be a label holder's.
    """
    from vertizo.config.error_lines import read_yaml
    from vertizo.privacy.durable_ledger import DurableLedger
    from vertizo.run.ledger_session import names_of

    if "federation" in read_yaml(config):
        from vertizo.network.budgets import budget_for_jobs
        from vertizo.network.options import load_serve

        budget, data = budget_for_jobs(load_serve(config, settings or []), runs)
    else:
        from vertizo.config import schema as configuration
        from vertizo.run.ledger_session import budget_for, charged_data

        chosen = configuration.load(config, settings or [])
        data = charged_data(chosen)
        budget = budget_for(chosen, data, runs)
    DurableLedger.create(ledger, budget, names=names_of(data), further=further)
    typer.echo(DurableLedger.inspect(ledger))
    typer.echo(f"use it with --set privacy.ledger={ledger}")


@app.command()
def show(ledger: Ledger) -> None:
    """Print what was spent and what is left."""
    from vertizo.privacy.durable_ledger import DurableLedger
    from vertizo.privacy.ledger_witness import Register

    summary = DurableLedger.inspect(ledger)
    typer.echo(summary)
    for other in Register().beside(summary.identity):
        typer.echo(
            f"some of these records are charged to {other.ledger} as well: {other.states} more"
        )


@app.command()
def accept(ledger: Ledger) -> None:
    """Vouch that this copy of a ledger, moved here, is the newest and no other is in use."""
    from vertizo.privacy.durable_ledger import DurableLedger

    typer.echo(DurableLedger.accept(ledger))
