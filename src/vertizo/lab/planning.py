"""Plan an ε before there are data: compare mechanisms, or compute noise and a forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field, PositiveInt, ValidationError

from vertizo.config.error_lines import explain
from vertizo.core.errors import ConfigError
from vertizo.core.options import Options
from vertizo.core.validate import between, fraction, positive
from vertizo.lab.findings import Dot, Findings, Picture, Table
from vertizo.privacy import mechanism_advice as choosing
from vertizo.privacy.accounting import budget, forecast
from vertizo.privacy.accounting.persons import epsilon_of_releases
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.options import DELTAS, EPSILONS, MAGNITUDES, RATES, SHARES
from vertizo.run.build.data_defaults import tangents

Server = Literal["none", "private-sgd", "private-zeroth-order", "poisson-dp-sgd"]
SLOW = 10**6
"""Number of secret steps that are composed within 15 seconds; the time grows superlinearly."""
COVERED = (
    "Each way spends the ε on the label of each training record, against all clients together; "
    "those that cover all, also on each client's features against the others, where public bounds "
    "prepared them. `vertizo privacy explain` says what a run keeps."
)
OF_REPLIES = (
    *("clip", "releases", "server", "server_share", "server_clip", "records_per_person"),
    *("steps", "sampling"),
)
"""Keys that need `Asked.epochs` and `Asked.batch`."""


class Asked(Options):
    """A federation in public figures, and an ε for it."""

    records: PositiveInt
    clients: PositiveInt
    epsilon: float
    delta: float
    epochs: PositiveInt | None = None
    batch: PositiveInt | None = None
    classes: int = Field(default=2, ge=2)
    width: PositiveInt | None = None
    positives: float | None = None
    cover: choosing.Cover = "labels"
    clip: float = 1.0
    releases: PositiveInt = 1
    server: Server = "poisson-dp-sgd"
    server_share: float = 0.5
    server_clip: float = 1.0
    records_per_person: PositiveInt = 1
    steps: PositiveInt | None = None
    sampling: float | None = None


def planned(
    given: Mapping[str, Any],
    called: Callable[[str], str] = str,
    tell: Callable[[str], None] = lambda line: None,
) -> Findings:
    """Compare mechanisms for an ε or, with epochs and batch, compute the noise of replies.

    ``given`` has the keys of `Asked`. ``called`` maps a key to its name in errors; ``tell`` is
    called with a line on work that takes minutes. ConfigError if a value does not fit.
    """
    try:
        asked = Asked.model_validate({k: v for k, v in given.items() if v is not None})
    except ValidationError as problem:
        key = str(problem.errors()[0]["loc"][0])
        raise ConfigError(explain(problem, Asked).replace(key, called(key), 1)) from None
    epsilon, delta = called("epsilon"), called("delta")
    between(epsilon, positive(epsilon, asked.epsilon), EPSILONS)
    between(delta, fraction(delta, asked.delta), DELTAS)
    if asked.epochs is not None and asked.batch is not None:
        return _noise(asked, asked.epochs, asked.batch, called, tell)
    pair = called("epochs"), called("batch")
    if (asked.epochs, asked.batch) != (None, None):
        there, missing = pair if asked.batch is None else reversed(pair)
        raise ConfigError(f"{missing} is missing; {there} is for the noise of replies with it")
    for key in OF_REPLIES:
        if getattr(asked, key) != Asked.model_fields[key].default:
            raise ConfigError(f"{called(key)} is for {' and '.join(pair)}, which are missing")
    return _compared(asked)


def _case(asked: Asked, width: int) -> choosing.Case:
    return choosing.Case(asked.records, asked.clients, asked.classes, width, asked.positives)


def _ways(asked: Asked, case: choosing.Case) -> list[choosing.Way]:
    count = tangents(asked.epsilon, asked.delta, case.records)
    return choosing.ways(case, asked.epsilon, asked.delta, count)


def _compared(asked: Asked) -> Findings:
    case = _case(asked, asked.width or 1)
    found = _ways(asked, case)
    way, why = choosing.chosen(found, case, asked.epsilon, asked.cover)
    headings, *rows = choosing.table(found)
    title = f"ways to spend ε = {asked.epsilon:g} at δ = {asked.delta:g}"
    three, ways = choosing.three_ways(found, way, asked.epsilon), [asdict(each) for each in found]
    return Findings(
        title=title,
        verdict=[f"Take {way.name} ({way.settings}): {why}.", *three],
        privacy=[("", COVERED)],
        tables=[Table(title, headings, rows)],
        notes=[choosing.READING],
        content={"chosen": way.name, "why": why, "three_ways": three, "ways": ways},
        records={"ways": ways},
        picture=Picture(
            "forecast of signal / noise; below 1 little is learned",
            [Dot(each.name, each.signal) for each in found if each.signal is not None],
            line=forecast.LITTLE,
            log=True,
        ),
    )


def _noise(
    asked: Asked, epochs: int, batch: int, called: Callable[[str], str], tell: Callable[[str], None]
) -> Findings:
    records, clients, server, delta = asked.records, asked.clients, asked.server, asked.delta
    for key in ("clip", "server_clip"):
        between(called(key), positive(called(key), getattr(asked, key)), MAGNITUDES)
    if asked.sampling is not None:
        between(called("sampling"), fraction(called("sampling"), asked.sampling), RATES)
    if server != "none":
        share = fraction(called("server_share"), asked.server_share)
        between(called("server_share"), share, SHARES)
    secret = server == "poisson-dp-sgd"
    if not secret and (asked.steps is not None or asked.sampling is not None):
        both = f"{called('steps')} and {called('sampling')}"
        raise ConfigError(f"{both} are for {called('server')} poisson-dp-sgd, not {server!r}")
    if secret and (asked.steps or 0) > SLOW:
        tell(f"composing {asked.steps:,} secret steps exactly, which takes minutes")
    federation = budget.Federation(records, clients, epochs, batch, asked.clip, asked.releases)
    sampling = min(0.5, batch / records) if asked.sampling is None else asked.sampling
    found = budget.plan(
        federation,
        asked.epsilon,
        delta,
        server_share=0.0 if server == "none" else asked.server_share,
        same_batch=server in ("private-sgd", "private-zeroth-order"),
        secret_steps=(asked.steps or federation.rounds) if secret else 0,
        sampling=sampling if secret else None,
        server_clip=asked.server_clip,
    )
    left, reply = forecast.rarity(asked.positives), found.releases.reply
    noise = reply.noise_std / reply.clip_norm / batch
    about = forecast.REPLY * left, noise, epochs * records / batch, asked.releases
    parameters = asked.classes * (clients * (asked.width or 64) + 1)
    ratios = {
        "replies": forecast.of_queries(*about),
        "server": forecast.of_server(found.releases, records, batch, parameters, asked.positives),
    }
    most = asked.records_per_person
    person = epsilon_of_releases(found.releases, delta, most) if most > 1 else None
    told = {} if person is None else {"epsilon_per_person": person}
    content = {"epsilon": found.epsilon, "signal_to_noise": ratios, **told, **asdict(found)}
    at = f"ε at δ = {found.delta:g}"
    headings, *rows = budget.epsilons(found, person, most)
    bound = f"ε = {bound_text(found.epsilon)} at δ = {found.delta:g}"
    notes = budget.notes(federation, found, asked.epsilon)
    return Findings(
        title=f"noise for ε = {asked.epsilon:g} at δ = {delta:g}",
        verdict=[
            f"All clients together are limited to {bound} for each training record.",
            *_better(ratios, asked),
        ],
        privacy=[("", note) for note in notes if note.startswith("Protected:")],
        tables=[
            Table("noise", ["", ""], budget.noises(federation, found)),
            Table("signal to noise, a forecast", ["", ""], forecast.lines(ratios)),
            Table(at, headings, rows),
        ],
        notes=notes,
        content=content,
        records={"plan": [content]},
        picture=Picture(
            at,
            [
                Dot("all clients together, whatever they do", found.epsilon),
                Dot("one client, from its own replies", found.views.own_replies),
                Dot("published noise, all replies alone", found.published.all_replies, colour=1),
                Dot("published noise, one client's replies", found.published.own_replies, colour=1),
            ],
            log=True,
        ),
    )


def _better(ratios: Mapping[str, float | None], asked: Asked) -> Iterator[str]:
    """Yield a warning with a better mechanism if the noise drowns the signal."""
    least = min(ratio for ratio in ratios.values() if ratio is not None)
    if least >= forecast.LITTLE:
        return
    best = max(_ways(asked, _case(asked, 1)), key=lambda way: way.signal or 0.0)
    yield (
        f"Warning: signal to noise is {forecast.text(least)}; below 1 little is learned. At the "
        f"same ε, {best.settings!r} with narrow messages has {forecast.text(best.signal)}; more "
        "records or a larger ε help as well, and method one-shot costs nothing."
    )
