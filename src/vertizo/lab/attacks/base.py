"""What an attack is: who the adversary is, what it is measured by, and one trial of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from vertizo.config.schema import ExperimentConfig
from vertizo.core.options import Options
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks.scores import Measurement
from vertizo.models.losses import Classification, MultiLabel


class Attack(Options):
    """An attack's options, and how it is tried once.

    A subclass holds the attack proper as functions of an adversary
    (`vertizo.lab.attacks.adversaries`); `trial` trains a federation, makes the adversary of what
    it may know, and scores what it says.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    """Where it comes from, in one line."""
    adversary: ClassVar[str]
    """Who attacks, in a few words."""
    figures: ClassVar[Mapping[str, str]]
    """Every figure's key → what it is, and which way is a success of the attack."""
    setting: ClassVar[str]
    """The shipped setting it is tried in unless another is given; see `settings`."""

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Why the attack cannot be tried on such a run; None if it can."""
        return None

    @abstractmethod
    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train one federation and attack it; RunError if training diverges."""

    def stream(self, config: ExperimentConfig) -> Stream:
        """The attacker's own randomness, apart from everybody's in the federation."""
        return Stream.from_seed(config.seed).child("attack", self.name)

    def describe(self) -> dict[str, Any]:
        """Its options, for JSON."""
        return self.model_dump(mode="json")


def why_several(data: VerticalData) -> str | None:
    """Why there is no one label of a record; None if there is."""
    if isinstance(data.task, MultiLabel):
        return "data.label is a list; attacks are on one label: name one of them"
    return None


def why_no_classes(data: VerticalData) -> str | None:
    """Why there is no class to guess, or to train on; None if there is."""
    if isinstance(data.task, Classification):
        return None
    return f"{data.name} is a regression; the attack is for classes"
