"""The privacy of a search: what its trials may release, and what that costs, also in words.

What every trial may release is fixed before the first one. The search proposes values that follow
from earlier trials, and so from the records. Under an exact guarantee it may choose freely what
changes nothing that a trial releases: rates, smoothing, the clip in units of which noise is given.
Whatever does change it is drawn beforehand, at random, so that what all trials release together is
a fixed list, to which exact composition applies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from vertizo.config.schema import ExperimentConfig
from vertizo.config.tree import Tree
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.tuning.composition import are_alike, together
from vertizo.lab.tuning.space import Space, configured
from vertizo.privacy.accounting.events import Releases
from vertizo.privacy.accounting.guarantee import LARGEST_EPSILON
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.options import ON_LABELS
from vertizo.privacy.statement import Guarantee, Statement
from vertizo.run.loop.federation import Federation, build
from vertizo.run.loop.ledger_session import check_is_for

FREE = ("learning_rate", "momentum", "decay", "smoothing", "directions")
"""Last parts of keys that do not change what a trial releases."""
VALIDATION = (
    "Validation records chose the trial, and the model within it, without noise: they are not "
    "covered."
)


class Planned(NamedTuple):
    """A run's privacy statement, with the releases that it may make."""

    statement: Statement
    releases: Releases | None


@dataclass(frozen=True)
class Plan:
    """The parts of all trials of a search that are fixed beforehand."""

    base: Tree
    data: VerticalData
    space: Space
    seed: int

    @cached_property
    def config(self) -> ExperimentConfig:
        """The configuration to search around, which is trial 0."""
        return configured(self.base, {})

    @property
    def on_labels(self) -> bool:
        """Whether all trials read the same private labels, so that they release nothing more."""
        return self.config.privacy.mechanism in ON_LABELS

    @cached_property
    def first(self) -> Planned:
        """The statement and the releases of trial 0."""
        return planned(self.config, self.data)

    @cached_property
    def beforehand(self) -> tuple[str, ...]:
        """Keys whose values are drawn before the first trial; none without a guarantee."""
        if not self.first.statement.is_bounded:
            return ()
        return tuple(key for key in self.space if not self._is_free(key))

    def _is_free(self, key: str) -> bool:
        privacy = self.config.privacy
        if self.on_labels:
            return key.split(".")[0] not in ("privacy", "data")
        if key in ("privacy.clip", "server.clip"):
            return privacy.epsilon is not None and privacy.noise != "secure"
        if key == "batch_size":
            return self.config.server.update != "poisson-dp-sgd"
        section, _, last = key.rpartition(".")
        return last in FREE and section.split(".")[0] in ("client", "server", "method")

    def drawn(self, number: int) -> dict[str, str]:
        """Draw one trial's values of the keys `beforehand`; none for trial 0."""
        if number == 0:
            return {}
        generator = Stream.from_seed(self.seed).child("tune", "beforehand").generator(number)
        return {key: self.space[key].draw(generator) for key in self.beforehand}

    def settings(self, number: int, values: Mapping[str, str]) -> ExperimentConfig:
        """Build a trial's configuration with these values; ConfigError if they do not fit."""
        return configured(self.base, values, f"trial {number}")

    def planned(self, number: int) -> Planned:
        """Plan a trial's releases; raise a `ConfigError` if its drawn values do not fit."""
        drawn = self.drawn(number)
        return planned(self.settings(number, drawn), self.data) if drawn else self.first

    def all_planned(self, trials: int) -> list[Planned]:
        """Plan all trials' releases; later trials whose drawn values do not fit are left out."""
        found = [self.first]
        for number in range(1, trials):
            with suppress(ConfigError):
                found.append(self.planned(number))
        return found

    def check(self, number: int, config: ExperimentConfig) -> None:
        """Raise a `RunError` if a trial would release something else than what was planned."""
        if self.on_labels or not self.first.statement.is_bounded:
            return
        wanted, found = self.planned(number), planned(config, self.data)
        ours, theirs = wanted.statement, found.statement
        if (
            (ours.guarantee, ours.covers) != (theirs.guarantee, theirs.covers)
            or wanted.releases is None
            or found.releases is None
            or not are_alike(wanted.releases, found.releases)
        ):
            raise RunError(
                f"trial {number} would release something else than what was planned before the "
                "first trial, and no bound would hold for all of them; search fewer keys"
            )


def planned(config: ExperimentConfig, data: VerticalData) -> Planned:
    """Plan one run: its privacy statement and its releases."""
    federation = unledgered(config, data)
    return Planned(federation.statement(), federation.releases)


def unledgered(config: ExperimentConfig, data: VerticalData) -> Federation:
    """Build the parties of a run for inspection, without opening its ledger."""
    privacy = config.privacy.model_copy(update={"ledger": None})
    return build(config.model_copy(update={"privacy": privacy}), data)


@dataclass(frozen=True)
class Cost:
    """The guarantee of a search and its ε; None where there is none."""

    guarantee: Guarantee
    trials: int
    """Number of trials that are counted, each whole: all that were planned."""
    words: tuple[str, ...]
    delta: float | None = None
    epsilon_of_chosen: float | None = None
    """ε of the chosen trial, as if it alone had been made."""
    epsilon_together: float | None = None
    """ε of all trials together, at the same δ; or of all runs that a ledger is for."""
    covers: tuple[str, ...] = ()
    ledger: str | None = None


def cost_of(plan: Plan, trials: int, chosen: int) -> Cost:
    """Compute the privacy cost of a search of ``trials`` planned trials; ``chosen`` is the best."""
    ledger, delta = plan.config.privacy.ledger, plan.config.privacy.delta
    planned = plan.all_planned(trials)
    statements = [each.statement for each in planned]
    for statement in statements:
        if not statement.is_bounded:
            others = (
                " One trial without a guarantee leaves none for the search."
                if statements[0].is_bounded
                else " That goes for every trial, and for the search."
            )
            return Cost(statement.guarantee, trials, (statement.words + others,))
    covers = tuple(
        thing for thing in statements[0].covers if all(thing in s.covers for s in statements)
    )
    alone = plan.planned(chosen).statement.epsilon
    assert alone is not None, "every trial has one"
    held = statements[0].guarantee
    simulated = (
        "Simulated, as if the noise were secret, which seeded noise is not: "
        if held == "simulated"
        else ""
    )
    one = (
        f"{simulated}Trial {chosen} by itself: ε = {bound_text(alone)} at δ = {delta:g} for each "
        "training record, as if it alone had been made. It was not: it was chosen by what all "
        "trials showed. Covered: "
        f"{', '.join(covers)}. Noise: {statements[0].noise_source}.{beside(statements)}"
    )
    if plan.on_labels:
        one, total = statements[0].words, alone
        words = (
            f"Every trial read the private labels in {ledger}, which are made once: all of them "
            "together, and all further runs on that file, cost no more than one."
        )
    elif ledger is not None:
        total = DurableLedger.inspect(ledger).budget.epsilon
        words = (
            f"Every trial drew on the ledger {ledger}. For each training record, all runs that "
            f"draw on it together have {DurableLedger.stated(ledger)}, however they were chosen, "
            "stopped and compared."
        )
    else:
        total = together([each.releases for each in planned if each.releases is not None], delta)
        bound = f"ε = {bound_text(total)} at δ = {delta:g}"
        if math.isinf(total):
            bound = f"no ε up to {LARGEST_EPSILON:g} can be shown"
        words = (
            f"All {trials} trials together: {bound} for each training record, by exact composition "
            "over the whole of every planned trial, those stopped early included, each with noise "
            "of its own. That is what holds where every trial's replies reach the clients. Where "
            "nothing but the chosen model ever leaves, the choice still depends on every trial, "
            "and no less is claimed: the smaller bounds known for the best of several private runs "
            "(Liu and Talwar 2019; Papernot and Steinke 2022) are for a random number of "
            "independent ones, which these are not."
        )
    return Cost(
        guarantee=held,
        trials=trials,
        words=(one, simulated + words, VALIDATION),
        delta=delta,
        epsilon_of_chosen=alone,
        epsilon_together=None if math.isinf(total) else total,
        covers=covers,
        ledger=None if ledger is None else str(ledger),
    )


def beside(statements: Sequence[Statement]) -> str:
    """Write the caveats of several runs: their assumptions, and people with several records."""
    parts = []
    if (most := max(each.records_per_person or 1 for each in statements)) > 1:
        parts.append(f" A person with {most:,} records has more; each run's statement says it.")
    if assumed := dict.fromkeys(one for each in statements for one in each.assumptions):
        parts.append(f" Assumed, tried but not proved: {'; '.join(assumed)}.")
    return "".join(parts)


def check_ledger(plan: Plan, begun: Sequence[int], trials: int) -> None:
    """Check that a search's ledger can pay for all trials to come, beside those in ``begun``.

    Raises:
        ConfigError: labels are private, and no ledger keeps them for all trials.
        RunError: the ledger cannot pay for all trials to come.
    """
    path = plan.config.privacy.ledger
    if path is None and plan.on_labels:
        raise ConfigError(
            f"privacy.mechanism {plan.config.privacy.mechanism!r} would make labels anew in every "
            "trial; set privacy.ledger to a file, which keeps those of the first"
        )
    if path is None:
        return
    left = [number for number in range(trials) if number not in begun]
    affordable = affordable_trials(path, plan, left)
    if affordable < len(left):
        others = f" beside the {len(begun)} that were begun" if begun else ""
        raise RunError(
            f"the ledger {path} can pay for {affordable} more trials{others}, not for {len(left)}; "
            f"use --trials {len(begun) + affordable}, or a ledger for more runs"
            if affordable
            else f"the ledger {path} can pay for no trial{others}; use a ledger for more runs"
        )


def affordable_trials(path: Path, plan: Plan, numbers: Sequence[int]) -> int:
    """Count how many of these trials, in their order, the ledger can still pay for."""
    if plan.on_labels:  # which were paid for once
        return len(numbers)
    summary = DurableLedger.inspect(path)
    check_is_for(path, summary.budget, plan.config, plan.data)
    units, steps = summary.left, summary.steps_left
    for count, number in enumerate(numbers):
        try:
            releases = plan.planned(number).releases
        except ConfigError:
            continue
        if releases is not None:
            units -= releases.share
            steps -= releases.secret.count if releases.secret is not None else 0
        if units < 0 or steps < 0:
            return count
    return len(numbers)
