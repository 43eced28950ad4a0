"""``vertizo privacy plan``: the noise for a budget, before there is a run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from vertizo.cli.console import say
from vertizo.cli.options import AsJson
from vertizo.core.errors import ConfigError

if TYPE_CHECKING:
    from vertizo.privacy.budget import Budget, Federation

Server = Literal["none", "private-sgd", "private-zeroth-order", "secret-sgd"]


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
            "secret-sgd.",
        ),
    ] = "secret-sgd",
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
    secret = server == "secret-sgd"
    if not secret and (steps is not None or sampling is not None):
        raise ConfigError(f"--steps and --sampling are for --server secret-sgd, not {server!r}")
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
    from vertizo.privacy.accounting import epsilon_of

    console = Console()
    releases, published, views = found.releases, found.published, found.views
    reply, step, secret = releases.reply, releases.step, releases.secret
    noise = Table(title="noise", title_style="bold", title_justify="left", show_header=False)
    noise.add_column()
    noise.add_column(justify="right")
    noise.add_row("σ on the sum of a reply", f"{reply.noise_std:.6g}")
    noise.add_row("  as a multiple of its clip C", f"{reply.noise_std / reply.clip_norm:.6g}")
    noise.add_row("  on the mean over a batch", f"{reply.noise_std / federation.batch:.6g}")
    if step is not None:
        noise.add_row("σ on the sum of a server's update", f"{step.noise_std:.6g}")
    if secret is not None:
        noise.add_row("secret steps of the server", f"{secret.count:,}")
        noise.add_row("  sampling rate q", f"{secret.sampling:.6g}")
        noise.add_row("  noise multiplier z", f"{secret.noise_multiplier:.6g}")
    noise.add_row("replies that may name one record", f"{releases.clients * releases.queries:,}")
    console.print(noise)

    learn = Table(title=f"ε at δ = {found.delta:g}", title_style="bold", title_justify="left")
    learn.add_column("who, from what")
    learn.add_column("this plan", justify="right")
    learn.add_column("published noise", justify="right")
    everything = _figure(views.all_clients)
    replies = _figure(epsilon_of(releases.replies_alone_mu, found.delta))
    own, published_own = _figure(views.own_replies), _figure(published.own_replies)
    learn.add_row("all clients together, whatever they do", everything, "no bound")
    learn.add_row("  from the replies alone", replies, _figure(published.all_replies))
    learn.add_row("a single client, from its own replies alone", own, published_own)
    learn.add_row("  with what the others' models carry", everything, "no bound")
    learn.add_row("an outsider who is given the models", f"at most {everything}", "no bound")
    learn.add_row("an outsider on an encrypted line", "sizes, times", "sizes, times")
    console.print(learn)
    factor = math.sqrt(federation.records / federation.batch)
    say(
        [
            f"The published formula would have set σ = {published.noise_std:.6g} on the sum and "
            f"called it ε = {wanted:g}. Its replies alone give "
            f"ε = {_figure(published.all_replies)}: its μ is √(D/B) = {factor:.4g} times too "
            "small, because clients know their batches. Its server trains on raw labels, for "
            "which no bound holds at all.",
            "Protected: one training record against its replacement; its label where classes and "
            "the scale of labels are public, features where `vertizo privacy explain` says so. "
            "Tuning is not counted.",
        ]
    )


def _figure(epsilon: float) -> str:
    return f"{epsilon:.4g}"
