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
) -> None:
    """Make a ledger whose budget pays for so many runs of a configuration; fixed from then on."""
    from vertizo import config as configuration
    from vertizo.charging import budget_for
    from vertizo.experiment import Experiment
    from vertizo.privacy.durable_ledger import DurableLedger

    chosen = configuration.load(config, settings or [])
    DurableLedger.create(ledger, budget_for(chosen, Experiment(chosen).data(), runs))
    typer.echo(DurableLedger.inspect(ledger))
    typer.echo(f"use it with --set privacy.ledger={ledger}")


@app.command()
def show(ledger: Ledger) -> None:
    """Print what was spent and what is left."""
    from vertizo.privacy.durable_ledger import DurableLedger

    typer.echo(DurableLedger.inspect(ledger))


@app.command()
def accept(ledger: Ledger) -> None:
    """Vouch that this copy of a ledger, moved here, is the newest and no other is in use."""
    from vertizo.privacy.durable_ledger import DurableLedger

    typer.echo(DurableLedger.accept(ledger))
