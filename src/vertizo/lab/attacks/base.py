"""The interface of an attack: its adversary, its figures, and one trial of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from vertizo.config.schema import ExperimentConfig
from vertizo.core.options import Options
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks.scores import Measurement
from vertizo.models.losses import Classification, MultiLabel


class Attack(Options):
    """An attack: its options, and the method `trial` that runs it once.

    The module of a subclass holds the attack itself as functions of an adversary
    (`vertizo.lab.attacks.adversaries`); `trial` trains a federation, builds the adversary from what
    it may know, and scores its guesses.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    """The attack's source, in one line."""
    adversary: ClassVar[str]
    """Who attacks, in a few words."""
    figures: ClassVar[Mapping[str, str]]
    """Every figure's key → what it is, and which way is a success of the attack."""
    setting: ClassVar[str]
    """The shipped setting it is tried in unless another is given; see `settings`."""

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Say why the attack does not fit such a run; None if it fits."""
        return None

    @abstractmethod
    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train one federation and attack it; return each figure's measurement by its key."""

    def stream(self, config: ExperimentConfig) -> Stream:
        """Return the attacker's random stream, apart from those of the federation."""
        return Stream.from_seed(config.seed).child("attack", self.name)


def why_several(data: VerticalData) -> str | None:
    """Say why a record has several labels, on which no attack works; None if it has one."""
    if isinstance(data.task, MultiLabel):
        return "data.label is a list; attacks are on one label: name one of them"
    return None


def why_no_classes(data: VerticalData) -> str | None:
    """Say why an attack on classes does not fit the data; None if it is a classification."""
    if isinstance(data.task, Classification):
        return None
    return f"{data.name} is a regression; the attack is for classes"
