"""What a run's spending is charged to: a ledger of its own, or one that outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.data.prepare import prepare
from vertizo.data.vertical import VerticalData
from vertizo.privacy import guarantee
from vertizo.privacy.durable_ledger import DurableLedger
from vertizo.privacy.events import LedgerBudget, Releases, SecretSteps
from vertizo.privacy.ledger import Ledger
from vertizo.privacy.ledger_witness import FURTHER, Names
from vertizo.privacy.statement import Statement
from vertizo.run.build_privacy import Charge, choice_of
from vertizo.run.federation import build


@contextmanager
def charging(config: ExperimentConfig, data: VerticalData, run: str) -> Iterator[Charge | None]:
    """How a run is charged to a ledger, which is closed at the end; None where it is to none.

    Args:
        config: of the run.
        data: its records.
        run: its name in the ledger.

    Raises:
        RunError: the ledger cannot be used, or has too little left.
        ConfigError: it is one of other records, or the run has no exact guarantee: a ledger says
            what holds for all runs together.
    """
    path = config.privacy.ledger
    if path is None:
        yield None
        return
    check_exact(build(_without_ledger(config), data).statement())
    with charged_to(path, config, data, run, replays=config.privacy.noise == "seeded") as charge:
        yield charge


@contextmanager
def charged_to(
    path: Path, config: ExperimentConfig, data: VerticalData, run: str, *, replays: bool
) -> Iterator[Charge]:
    """How a run is charged to the ledger of that file, which is closed at the end.

    Args:
        path: of the file.
        config: of the run.
        data: its records.
        run: its name in the ledger.
        replays: whether the run, going on from a checkpoint, repeats its releases byte for byte.

    Raises:
        RunError, ConfigError: as of `charging`, once the ledger is opened.
    """
    opened: list[DurableLedger] = []

    def open_ledger(releases: Releases) -> Ledger:
        ledger = DurableLedger.open(path, run, secret=releases.secret, replays=replays)
        opened.append(ledger)
        ours = records_name(config, data), data.records, len(data.parties)
        theirs = ledger.budget.name, ledger.budget.records, ledger.budget.clients
        if ours != theirs:
            raise ConfigError(
                f"privacy.ledger {path} is for {theirs[1]} records of {theirs[0]} and {theirs[2]} "
                f"clients; this run has {ours[1]} of {ours[0]} and {ours[2]}"
            )
        if (names := names_of(data)) is not None:
            ledger.claim(names)
        _check_left(ledger, releases)
        return ledger

    try:
        yield Charge(run, open_ledger)
    finally:
        for ledger in opened:
            ledger.close()


def names_of(data: VerticalData) -> Names | None:
    """What tells the records apart; None where nothing does."""
    if data.keys is None:
        return None
    return Names(data.keys(), () if data.contents is None else data.contents())


NEARLY = 1e-3
"""Share of a budget by which secure and seeded noise for one ε may differ."""


def _check_left(ledger: DurableLedger, releases: Releases) -> None:
    """Refuse a new run that the ledger could not pay for to its end."""
    if any(ledger.answered(client) is not None for client in range(ledger.budget.clients)):
        return  # it goes on, and what it needs was found to be there when it began
    left, needed = ledger.tally.left, releases.queries
    if left >= releases.share:
        return
    words = (
        f"the ledger has {left // releases.cost} whole replies of this run's kind left for some "
        f"record and client; the run needs {needed} and is not covered"
    )
    if left >= releases.share * (1 - NEARLY):
        raise RunError(
            f"{words}: each of its replies costs {releases.cost} units, where the ledger has "
            f"{left / needed:.0f}. Its noise is slightly smaller than the noise that the ledger "
            "was made for, as seeded noise is smaller than secure noise. Set privacy.noise to "
            "what the ledger was made with, or make a ledger with this run's configuration"
        )
    raise RunError(f"{words}; state an ε beside it, {FURTHER}")


def records_name(config: ExperimentConfig, data: VerticalData) -> str:
    """What the records of a run are called in a ledger: their data set, and how they were chosen.

    Runs of one name give the same IDs to the same records.
    """
    apart = {"root", "parties", "split", "columns", "label_holder"}  # who holds what of them
    chosen = config.data.model_dump_json(exclude=apart).encode()
    return f"{data.name} {blake2b(chosen, digest_size=6).hexdigest()}"


def charged_data(config: ExperimentConfig) -> VerticalData:
    """The records of runs that are charged to a ledger, whose IDs no seed changes.

    Raises:
        ConfigError, DataError: as of `vertizo.data.prepare.prepare`.
    """
    return prepare(config.data, choice_of(0))


def _without_ledger(config: ExperimentConfig) -> ExperimentConfig:
    privacy = config.privacy.model_copy(update={"ledger": None})
    return config.model_copy(update={"privacy": privacy})


def check_exact(statement: Statement) -> None:
    """Refuse a run that a ledger could say nothing about.

    A simulated one is charged as the run with secret noise would be that it stands for.

    Raises:
        ConfigError: it has neither an exact guarantee nor a simulated one.
    """
    if not statement.is_bounded:
        raise ConfigError(
            "a ledger needs a configuration with an exact guarantee; this one has "
            f"{statement.guarantee!r}: {statement.words}"
        )


def budget_for(config: ExperimentConfig, data: VerticalData, runs: int) -> LedgerBudget:
    """The budget that so many runs of one configuration need.

    Raises:
        ConfigError: the configuration puts no noise on replies, or its server no noise on itself.
    """
    federation = build(_without_ledger(config), data)
    check_exact(federation.statement())
    assert federation.releases is not None, "what is exact has noise"
    return budget_of(federation.releases, config, data, runs)


def budget_of(
    releases: Releases, config: ExperimentConfig, data: VerticalData, runs: int
) -> LedgerBudget:
    """The budget that so many runs need, each with all these releases."""
    secret = releases.secret
    if secret is not None:
        secret = SecretSteps(secret.count * runs, secret.sampling, secret.noise_multiplier)
    whole = Releases(
        clients=releases.clients,
        queries=releases.queries * runs,
        reply=releases.reply,
        per_query=releases.per_query,
        step=releases.step,
        steps_per_query=releases.steps_per_query,
        secret=secret,
        grid=releases.grid and releases.grid.times(runs),
    )
    delta = config.privacy.delta
    return LedgerBudget(
        name=records_name(config, data),
        records=data.records,
        clients=len(data.parties),
        share=whole.share,
        epsilon=guarantee.epsilon(whole, delta),
        delta=delta,
        secret=secret,
    )
