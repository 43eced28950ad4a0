"""``vertizo privacy plan``: what an ε costs in noise, and whether anything is learned under it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

from vertizo.cli.console import grid, room, say, show
from vertizo.cli.log import errors
from vertizo.cli.options import AsJson, option
from vertizo.core import strict_json
from vertizo.core.errors import ConfigError
from vertizo.core.validate import between, fraction, positive

if TYPE_CHECKING:
    from vertizo.privacy import choosing

Server = Literal["none", "private-sgd", "private-zeroth-order", "poisson-dp-sgd"]
Cover = Literal["labels", "features"]
SLOW = 10**6
"""Secret steps that are composed within a quarter of a minute; the time grows faster than they."""


def plan(
    records: Annotated[int, option("D, the number of training records.")],
    clients: Annotated[int, option("M, the number of clients.")],
    epsilon: Annotated[float, option("The ε to reach.")],
    delta: Annotated[float, option("The δ at which ε is stated.")],
    epochs: Annotated[int | None, option("E, queries of each client about each record.")] = None,
    batch: Annotated[int | None, option("B, records in a query.")] = None,
    classes: Annotated[int, option("k, the number of classes.", min=2)] = 2,
    width: Annotated[
        int | None,
        option("d_h, numbers of an embedding. Default: 1 for the comparison, else 64.", min=1),
    ] = None,
    positives: Annotated[
        float | None,
        option("Share of the rarer of two classes, where it is public, for the forecast."),
    ] = None,
    cover: Annotated[
        Cover, option("What must be covered, for the comparison: labels or features.", "WHAT")
    ] = "labels",
    clip: Annotated[float, option("C, the clip of replies.")] = 1.0,
    releases: Annotated[
        int, option("Numbers in a reply, each with its own clip and noise.", min=1)
    ] = 1,
    server: Annotated[
        Server,
        option(
            "Training of the server model: none, private-sgd, private-zeroth-order or "
            "poisson-dp-sgd.",
            "HOW",
        ),
    ] = "poisson-dp-sgd",
    server_share: Annotated[float, option("Share of the budget (of μ²) for the server.")] = 0.5,
    server_clip: Annotated[float, option("C, the clip of the server's updates.")] = 1.0,
    records_per_person: Annotated[
        int, option("k, records of one person at most: ε is stated for such a person as well.")
    ] = 1,
    steps: Annotated[
        int | None, option("Server steps on secret samples. Default: one for each round.", min=1)
    ] = None,
    sampling: Annotated[float | None, option("q, rate of secret samples. Default: B/D.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare mechanisms for an ε; with --epochs and --batch, the noise of replies."""
    from vertizo.privacy import choosing, forecast
    from vertizo.privacy.options import DELTAS, EPSILONS, MAGNITUDES, RATES, SHARES

    between("--epsilon", positive("--epsilon", epsilon), EPSILONS)
    between("--delta", fraction("--delta", delta), DELTAS)
    if epochs is None or batch is None:
        if (epochs, batch) != (None, None):
            missing, given = ("--batch", "--epochs") if batch is None else ("--epochs", "--batch")
            raise ConfigError(f"{missing} is missing; {given} is for the noise of replies with it")
        for flag, (value, default) in {
            "--clip": (clip, 1.0),
            "--releases": (releases, 1),
            "--server": (server, "poisson-dp-sgd"),
            "--server-share": (server_share, 0.5),
            "--server-clip": (server_clip, 1.0),
            "--records-per-person": (records_per_person, 1),
            "--steps": (steps, None),
            "--sampling": (sampling, None),
        }.items():
            if value != default:
                raise ConfigError(f"{flag} is for --epochs and --batch, which are missing")
        case = choosing.Case(records, clients, classes, width or 1, positives)
        _compare(case, epsilon, delta, cover, as_json=as_json)
        return
    positive("--records-per-person", records_per_person)
    between("--clip", positive("--clip", clip), MAGNITUDES)
    between("--server-clip", positive("--server-clip", server_clip), MAGNITUDES)
    if sampling is not None:
        between("--sampling", fraction("--sampling", sampling), RATES)
    if server != "none":
        between("--server-share", fraction("--server-share", server_share), SHARES)
    secret = server == "poisson-dp-sgd"
    if not secret and (steps is not None or sampling is not None):
        raise ConfigError(f"--steps and --sampling are for --server poisson-dp-sgd, not {server!r}")
    from vertizo.privacy import budget

    composed = (steps or 0) if secret else 0
    if composed > SLOW:
        say(f"composing {composed:,} secret steps exactly, which takes minutes", errors())
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
    left = forecast.rarity(positives)
    reply = found.releases.reply
    noise = reply.noise_std / reply.clip_norm / batch
    about = forecast.REPLY * left, noise, epochs * records / batch, releases
    parameters = classes * (clients * (width or 64) + 1)
    person = None
    if records_per_person > 1:
        from vertizo.privacy.persons import epsilon_of_releases

        person = epsilon_of_releases(found.releases, delta, records_per_person)
    ratios = {
        "replies": forecast.of_queries(*about),
        "server": forecast.of_server(found.releases, records, batch, parameters, positives),
    }
    if as_json:
        told = {} if person is None else {"epsilon_per_person": person}
        about_all = {"epsilon": found.epsilon, "signal_to_noise": ratios}
        print(strict_json.line({**about_all, **told, **asdict(found)}))
        return
    from vertizo.privacy.budget import epsilons, noises, notes

    for title, (headings, *rows) in (
        ("noise", [["", ""], *noises(federation, found)]),
        ("signal to noise, a forecast", [["", ""], *forecast.lines(ratios)]),
        (f"ε at δ = {found.delta:g}", epsilons(found, person, records_per_person)),
    ):
        table = grid(headings, rows, title, room())
        table.title_justify, table.show_header = "left", any(headings)
        show(table)
    say(notes(federation, found, epsilon))
    case = choosing.Case(records, clients, classes, 1, positives)
    say(_better(ratios, case, epsilon, delta))


def _better(
    ratios: Mapping[str, float | None], case: choosing.Case, epsilon: float, delta: float
) -> Iterator[str]:
    """What would do better where noise is all that is to be seen."""
    from vertizo.privacy import choosing, forecast
    from vertizo.run.data_defaults import tangents

    least = min(ratio for ratio in ratios.values() if ratio is not None)
    if least >= forecast.LITTLE:
        return
    found = choosing.ways(case, epsilon, delta, tangents(epsilon, delta, case.records))
    best = max(found, key=lambda way: way.signal or 0.0)
    yield (
        f"Warning: signal to noise is {forecast.text(least)}; below 1 little is learned. At the "
        f"same ε, {best.settings!r} with narrow messages has {forecast.text(best.signal)}; more "
        "records or a larger ε help as well, and method one-shot costs nothing."
    )


def _compare(
    case: choosing.Case, epsilon: float, delta: float, cover: Cover, *, as_json: bool
) -> None:
    from vertizo.privacy import choosing
    from vertizo.run.data_defaults import tangents

    found = choosing.ways(case, epsilon, delta, tangents(epsilon, delta, case.records))
    way, why = choosing.chosen(found, case, epsilon, cover)
    if as_json:
        print(
            strict_json.line(
                {
                    "chosen": way.name,
                    "why": why,
                    "three_ways": choosing.three_ways(found, way, epsilon),
                    "ways": [asdict(w) for w in found],
                }
            )
        )
        return
    headings, *rows = choosing.table(found)
    show(grid(headings, rows, f"ways to spend ε = {epsilon:g} at δ = {delta:g}", room()))
    three = choosing.three_ways(found, way, epsilon)
    say([f"Take {way.name} ({way.settings}): {why}.", *three, choosing.READING])
