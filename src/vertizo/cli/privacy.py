"""``vertizo privacy``: plan a budget, explain a run, play the distinguishing game."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from vertizo.cli import ledger
from vertizo.core.errors import ConfigError, Interrupted

app = typer.Typer(
    name="privacy",
    help="What is protected: before a run, of a run, and measured.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(ledger.app)


class Server(StrEnum):
    """How the server model is trained."""

    NONE = "none"
    PRIVATE_SGD = "private-sgd"
    PRIVATE_ZEROTH_ORDER = "private-zeroth-order"
    POISSON_DP_SGD = "poisson-dp-sgd"


@app.command()
def plan(
    records: Annotated[int, typer.Option(help="D, training records.")],
    clients: Annotated[int, typer.Option(help="M.")],
    epochs: Annotated[int, typer.Option(help="E, how often a client asks about each record.")],
    batch: Annotated[int, typer.Option(help="B, records of a query.")],
    epsilon: Annotated[float, typer.Option(help="The ε that is wanted.")],
    delta: Annotated[float, typer.Option(help="The δ that goes with it.")],
    clip: Annotated[float, typer.Option(help="C of replies.")] = 1.0,
    releases: Annotated[
        int, typer.Option(help="Numbers of a reply that are clipped each on its own.")
    ] = 1,
    server: Annotated[
        Server,
        typer.Option(
            metavar="HOW",
            help="How the server model is trained: none, private-sgd, private-zeroth-order or "
            "poisson-dp-sgd.",
        ),
    ] = Server.POISSON_DP_SGD,
    server_share: Annotated[
        float, typer.Option(help="Share of the budget (of μ²) for the server's updates.")
    ] = 0.5,
    server_clip: Annotated[float, typer.Option(help="C of the server's updates.")] = 1.0,
    steps: Annotated[
        int | None, typer.Option(help="Steps on secret samples; without it, one each round.")
    ] = None,
    sampling: Annotated[
        float | None, typer.Option(help="q of secret samples; without it, B/D.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Find the noise for an ε, and print what it and the published formula really give."""
    from vertizo.privacy import budget

    federation = budget.Federation(records, clients, epochs, batch, clip, releases)
    secret = server is Server.POISSON_DP_SGD
    if not secret and (steps is not None or sampling is not None):
        raise ConfigError(
            f"--steps and --sampling are for --server poisson-dp-sgd, not {server.value!r}"
        )
    if sampling is None:
        sampling = min(0.5, batch / records)
    found = budget.plan(
        federation,
        epsilon,
        delta,
        server_share=0.0 if server is Server.NONE else server_share,
        same_batch=server in (Server.PRIVATE_SGD, Server.PRIVATE_ZEROTH_ORDER),
        secret_steps=(steps or federation.rounds) if secret else 0,
        sampling=sampling if secret else None,
        server_clip=server_clip,
    )
    if as_json:
        typer.echo(json.dumps({"epsilon": found.epsilon, **asdict(found)}))
        return
    _show_plan(federation, found, epsilon)


def _show_plan(federation: Any, found: Any, wanted: float) -> None:
    from rich.console import Console
    from rich.table import Table

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

    delta = f"δ = {found.delta:g}"
    learn = Table(title=f"ε at {delta}", title_style="bold", title_justify="left")
    learn.add_column("who, from what")
    learn.add_column("this plan", justify="right")
    learn.add_column("published noise", justify="right")
    published_epsilon = _figure(published.all_replies)
    learn.add_row("all clients together, whatever they do", _figure(views.all_clients), "no bound")
    learn.add_row("  from the replies alone", _figure(_replies(found)), published_epsilon)
    learn.add_row(
        "a single client, from its own replies alone",
        _figure(views.own_replies),
        _figure(published.own_replies),
    )
    learn.add_row("  with what the others' models carry", _figure(views.all_clients), "no bound")
    learn.add_row(
        "an outsider who is given the models", f"at most {_figure(views.all_clients)}", "no bound"
    )
    learn.add_row("an outsider on an encrypted line", "sizes, times", "sizes, times")
    console.print(learn)
    factor = math.sqrt(federation.records / federation.batch)
    for line in (
        f"The published formula would have set σ = {published.noise_std:.6g} on the sum and called "
        f"it ε = {wanted:g}. Its replies alone give ε = {_figure(published.all_replies)}: its μ is "
        f"√(D/B) = {factor:.4g} times too small, because clients know their batches. Its server "
        "trains on raw labels, for which no bound holds at all.",
        "Protected: one training record against its replacement; its label where classes and "
        "the scale of labels are public, features where `vertizo privacy explain` says so. Tuning "
        "is not counted.",
    ):
        console.print(line, soft_wrap=True, highlight=False)


def _replies(found: Any) -> float:
    from vertizo.privacy.accounting import epsilon_of

    return epsilon_of(found.releases.replies_alone_mu, found.delta)


def _figure(epsilon: float) -> str:
    return f"{epsilon:.4g}"


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or a configuration.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say in plain words what is and is not protected in a run."""
    from vertizo.cli.explain import explain as show

    try:
        show(run, as_json=as_json)
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None


@app.command()
def intrinsic(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run of VFL-CZOFO.")],
    repeats: Annotated[int, typer.Option(min=2, help="Estimates on each frozen model.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Measure the "intrinsic" figures of VFL-CZOFO on a run; they are no guarantee."""
    from vertizo.run.folder import RunFolder
    from vertizo.studies.intrinsic import intrinsic as measured

    found = measured(RunFolder(run), repeats=repeats)
    typer.echo(json.dumps(found.as_dict()) if as_json else found.words())


@app.command()
def audit(
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML configuration; without one, a small federation, several ways."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key."),
    ] = None,
    trials: Annotated[int, typer.Option(min=20, help="Of either label.")] = 1000,
    honest_trials: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The same with clients that follow the protocol, which are slow; without it, "
            "200, or none where a configuration is given.",
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="Of each lower bound.")
    ] = 0.95,
    probes: Annotated[
        int, typer.Option(min=1, help="Queries about other records that measure the server.")
    ] = 12,
    record: Annotated[int, typer.Option(min=0, help="Whose label is told apart.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Play the distinguishing game: what clients were seen to learn, beside what bounds them."""
    from vertizo.cli.audit import audit as play

    if honest_trials is None:
        honest_trials = 200 if config is None else 0
    try:
        play(
            config,
            settings or [],
            trials=trials,
            honest_trials=honest_trials,
            confidence=confidence,
            probes=probes,
            record=record,
            as_json=as_json,
        )
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None
