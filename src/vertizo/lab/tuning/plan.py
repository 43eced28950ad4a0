"""The privacy plan of a search: what every trial may release, fixed before the first one.

The search proposes values that follow from earlier trials, and so from the records. Under an exact
guarantee it may choose freely what changes nothing that a trial releases: rates, smoothing, the
clip in units of which noise is given. Whatever does change it is drawn beforehand, at random, so
that what all trials release together is a fixed list, to which exact composition applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vertizo.config.schema import ExperimentConfig
from vertizo.config.tree import Tree
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.tuning.composition import are_alike
from vertizo.lab.tuning.space import Space, configured
from vertizo.privacy.accounting.events import Releases
from vertizo.privacy.options import ON_LABELS
from vertizo.privacy.statement import Statement
from vertizo.run.loop.federation import Federation, build

FREE = ("learning_rate", "momentum", "decay", "smoothing", "directions")
"""Last parts of keys that do not change what a trial releases."""


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
