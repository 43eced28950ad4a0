"""Charging a run: to a ledger of its own, or to a file that outlives it and counts many runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.randomness import Stream
from vertizo.data.prepare import prepare
from vertizo.data.vertical import VerticalData
from vertizo.privacy.accounting import guarantee
from vertizo.privacy.accounting.events import LedgerBudget, Releases
from vertizo.privacy.labels import label_file
from vertizo.privacy.ledger.base import Ledger, LedgerView
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.ledger.register import FURTHER, Register
from vertizo.privacy.options import ON_LABELS
from vertizo.privacy.statement import Statement
from vertizo.run.build.data_defaults import complete
from vertizo.run.build.labels import PrivateLabels
from vertizo.run.build.privacy import Charge, choice_of
from vertizo.run.build.record_identity import names_of, records_name
from vertizo.run.loop.federation import build


def can_go_on(config: ExperimentConfig, *, begun: bool) -> bool:
    """Whether an interrupted run can be resumed without releasing anything twice.

    Secure noise cannot be repeated, so a run with it cannot. Private labels are made once: the
    checkpoint of a run that has ``begun``, or their file, keeps them.
    """
    privacy = config.privacy
    if privacy.noise != "secure" or privacy.mechanism not in ON_LABELS:
        return privacy.noise != "secure"
    return begun or (privacy.ledger is not None and privacy.ledger.is_file())


@contextmanager
def charging(config: ExperimentConfig, data: VerticalData, run: str) -> Iterator[Charge | None]:
    """Yield the charge of a run to ``privacy.ledger``, which is closed after; None without one.

    Raises:
        RunError: the ledger cannot be used, or has too little left.
        ConfigError: it is for other records, or the run has no exact guarantee.
    """
    path = config.privacy.ledger
    if path is None or config.privacy.mechanism in ON_LABELS:  # whose file keeps them
        if path is not None and not path.exists():
            check_records_free(config, data)  # now, before there is a run folder
        yield None
        return
    _releases_of(config, data)
    with charged_to(path, config, data, run, replays=config.privacy.noise == "seeded") as charge:
        yield charge


@contextmanager
def charged_to(
    path: Path, config: ExperimentConfig, data: VerticalData, run: str, *, replays: bool
) -> Iterator[Charge]:
    """Yield the charge of a run to the ledger ``path``; opening it raises as `charging` does.

    ``replays`` says whether a resumed run repeats its releases byte for byte.
    """
    stack = ExitStack()

    def open_ledger(releases: Releases) -> Ledger:
        ledger = DurableLedger.open(
            path,
            run,
            share=releases.share,
            secret=releases.secret,
            replays=replays,
            check=partial(check_is_for, path, config=config, data=data),
            names=names_of(data),
        )
        stack.enter_context(ledger)
        seats = data.seats or range(ledger.budget.clients)
        _check_left(ledger, releases, seats)
        return LedgerView(ledger, seats) if data.seats else ledger

    with stack:
        yield Charge(run, open_ledger)


def check_is_for(
    path: Path, budget: LedgerBudget, config: ExperimentConfig, data: VerticalData
) -> None:
    """Raise ConfigError unless the ledger is for these records and clients, at the run's δ.

    An ε at one δ bounds nothing at another.
    """
    name, clients = records_name(config, data), data.seated or len(data.parties)
    if (name, data.records, clients) != (budget.name, budget.records, budget.clients):
        raise ConfigError(
            f"privacy.ledger {path} is for {budget.records} records of {budget.name} and "
            f"{budget.clients} clients; this run has {data.records} of {name} and {clients}"
        )
    if config.privacy.delta != budget.delta:
        raise ConfigError(
            f"privacy.delta is {config.privacy.delta:g} but privacy.ledger {path} counts at "
            f"δ = {budget.delta:g}; set privacy.delta to that"
        )


NEARLY = 1e-3
"""Share of a budget by which secure and seeded noise for one ε may differ."""


def _check_left(ledger: DurableLedger, releases: Releases, seats: Sequence[int]) -> None:
    """Raise RunError for a new run of those clients that the ledger cannot pay to its end."""
    if any(ledger.answered(client) is not None for client in range(ledger.budget.clients)):
        return  # it goes on, and what it needs was found to be there when it began
    left, needed = ledger.tally.left_of(seats), releases.queries
    if left >= releases.share:
        return
    words = (
        f"the ledger pays for {left // releases.cost} more replies of this run's kind to some "
        f"client about some record, and the run needs {needed}; it was not begun"
    )
    if left >= releases.share * (1 - NEARLY):
        raise RunError(
            f"{words}: each of its replies costs {releases.cost} units, where the ledger has "
            f"{left / needed:.0f}. Its noise is slightly smaller than the noise that the ledger "
            "was made for, as seeded noise is smaller than secure noise. Set privacy.noise to "
            "what the ledger was made with, or make a ledger with this run's configuration"
        )
    raise RunError(f"{words}. Another ledger states an ε beside it, {FURTHER}")


def check_pays(config: ExperimentConfig, data: VerticalData, runs: int) -> None:
    """Raise RunError if ``privacy.ledger`` cannot pay for so many new runs, before the first."""
    path = config.privacy.ledger
    assert path is not None, "a run without a ledger is charged to none"
    share, left = _releases_of(config, data).share, DurableLedger.inspect(path).left
    if left < runs * share * (1 - NEARLY):
        raise RunError(
            f"the ledger {path} pays for {left // share} more runs of this kind, and {runs} are to "
            "be made, controls included; none was begun. Make one for more (`vertizo privacy "
            f"ledger create FILE CONFIG --runs {runs}`), or leave the controls out"
        )


def charged_data(config: ExperimentConfig) -> VerticalData:
    """The records of runs that are charged to a ledger, whose IDs no seed changes."""
    return prepare(config.data, choice_of(0))


def check_records_free(config: ExperimentConfig, data: VerticalData) -> None:
    """Raise RunError if a file that counts what people are charged is for any of these records."""
    names, register = names_of(data), Register()
    if names is not None:
        with register.locked():
            register.forget_unused()
            on_labels = config.privacy.mechanism in ON_LABELS
            register.check_free(names, "labels" if on_labels else "replies")


def create(
    path: Path,
    config: ExperimentConfig,
    data: VerticalData,
    budget: Callable[[], LedgerBudget],
    *,
    further: bool = False,
) -> None:
    """Make a ledger with that budget; for private labels an empty file, which the first run fills.

    ``further`` admits records that another file is for already, whose ε then adds to this one's.
    ConfigError or RunError if it cannot be made.
    """
    if config.privacy.mechanism in ON_LABELS:
        whole, secrets = complete(config, data), Stream.from_seed(config.seed)
        PrivateLabels(whole, data, secrets, os.urandom, path).set_apart(further=further)
    else:
        DurableLedger.create(path, budget(), names=names_of(data), further=further)


def file_of(folder: Path, config: ExperimentConfig) -> Path | None:
    """The file that a finished run was charged to, a ledger or labels; None if there is none."""
    own = folder / ("labels" if config.privacy.mechanism in ON_LABELS else "ledger.sqlite")
    file = config.privacy.ledger or own
    return file if file.is_file() else None


def charged_beside(path: Path) -> list[str]:
    """Describe other files that some records of ``path`` are charged to, a line each.

    Of files that this user's state folder knows, as of now. RunError if ``path`` cannot be read.
    """
    if label_file.has_labels(path):
        identity = label_file.read(path)[0].identity
    else:
        identity = DurableLedger.inspect(path).identity
    return [
        f"some of these records are charged to {other.ledger} as well: {other.states} more"
        for other in Register().beside(identity)
    ]


def check_exact(config: ExperimentConfig, statement: Statement) -> None:
    """Raise ConfigError for a run whose replies have no exact ε, which a ledger counts."""
    if config.is_label_free:
        raise ConfigError("clients that use no label release nothing; leave the ledger out")
    if config.privacy.mechanism in ON_LABELS:
        raise ConfigError(
            f"privacy.mechanism is {config.privacy.mechanism!r}, whose labels are paid for once "
            "and need no ledger of replies"
        )
    if not statement.is_bounded:
        raise ConfigError(
            "a ledger needs a configuration with an exact guarantee; this one has "
            f"{statement.guarantee!r}: {statement.words}"
        )


def _releases_of(config: ExperimentConfig, data: VerticalData) -> Releases:
    """The releases of a run with a ledger of its own; ConfigError if it has no exact ε."""
    privacy = config.privacy.model_copy(update={"ledger": None})
    federation = build(config.model_copy(update={"privacy": privacy, "control": "none"}), data)
    check_exact(config, federation.statement())
    assert federation.releases is not None, "what is exact has noise"
    return federation.releases


def budget_for(config: ExperimentConfig, data: VerticalData, runs: int) -> LedgerBudget:
    """The budget that so many runs of one configuration need; ConfigError without exact ε."""
    return budget_of(_releases_of(config, data), config, data, runs)


def budget_of(
    releases: Releases, config: ExperimentConfig, data: VerticalData, runs: int
) -> LedgerBudget:
    """The budget of a ledger for so many runs, each of which makes all these releases."""
    secret = releases.secret and replace(releases.secret, count=releases.secret.count * runs)
    grid = releases.grid and releases.grid.times(runs)
    whole = replace(releases, queries=releases.queries * runs, secret=secret, grid=grid)
    delta, name, clients = config.privacy.delta, records_name(config, data), len(data.parties)
    epsilon = guarantee.epsilon(whole, delta)
    return LedgerBudget(name, data.records, clients, whole.share, epsilon, delta, secret)
