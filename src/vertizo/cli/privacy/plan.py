"""``vertizo privacy plan``: the noise for a budget, before there is a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from vertizo.cli.console import grid, say
from vertizo.cli.options import AsJson
from vertizo.core.errors import ConfigError

if TYPE_CHECKING:
    from vertizo.privacy.budget import Budget, Federation

Server = Literal["none", "private-sgd", "private-zeroth-order", "poisson-dp-sgd"]


def plan(
    records: Annotated[int, typer.Option(help="D, the number of training records.")],
    clients: Annotated[int, typer.Option(help="M, the number of clients.")],
    epochs: Annotated[int, typer.Option(help="E, queries of each client about each record.")],
    batch: Annotated[int, typer.Option(help="B, records in a query.")],
    epsilon: Annotated[float, typer.Option(help="The ε to reach.")],
    delta: Annotated[float, typer.Option(help="The δ that belongs to it.")],
    clip: Annotated[float, typer.Option(help="C, the clip of replies.")] = 1.0,
    releases: Annotated[
        int, typer.Option(help="Numbers in a reply, each with its own clip and noise.")
    ] = 1,
    server: Annotated[
        Server,
        typer.Option(
            metavar="HOW",
            help="Training of the server model: none, private-sgd, private-zeroth-order or "
            "poisson-dp-sgd.",
        ),
    ] = "poisson-dp-sgd",
    server_share: Annotated[
        float, typer.Option(help="Share of the budget (of μ²) for the server's updates.")
    ] = 0.5,
    server_clip: Annotated[float, typer.Option(help="C, the clip of the server's updates.")] = 1.0,
    steps: Annotated[
        int | None,
        typer.Option(help="Server's steps on secret samples. Default: one each round."),
    ] = None,
    sampling: Annotated[
        float | None, typer.Option(help="q, the sampling rate of secret samples. Default: B/D.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the noise for an ε, and the ε of the published formula's noise."""
    secret = server == "poisson-dp-sgd"
    if not secret and (steps is not None or sampling is not None):
        raise ConfigError(f"--steps and --sampling are for --server poisson-dp-sgd, not {server!r}")
    from vertizo.privacy import budget

    federation = budget.Federation(records, clients, epochs, batch, clip, releases)
    found = budget.plan(
        federation,
        epsilon,
        delta,
        server_share=0.0 if server == "none" else server_share,
        same_batch=server in ("private-sgd", "private-zeroth-order"),
        secret_steps=(steps or federation.rounds) if secret else 0,
        sampling=(min(0.5, batch / records) if sampling is None else sampling) if secret else None,
        server_clip=server_clip,
    )
    if as_json:
        typer.echo(json.dumps({"epsilon": found.epsilon, **asdict(found)}))
    else:
        _show(federation, found, epsilon)


def _show(federation: Federation, found: Budget, wanted: float) -> None:
    from vertizo.privacy.budget import epsilons, noises, notes

    for title, (headings, *rows) in (
        ("noise", [["", ""], *noises(federation, found)]),
        (f"ε at δ = {found.delta:g}", epsilons(found)),
    ):
        table = grid(headings, rows, title)
        table.title_justify, table.show_header = "left", any(headings)
        Console().print(table)
    say(notes(federation, found, wanted))
