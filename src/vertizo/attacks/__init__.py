"""Attacks that a guarantee is held against: label and feature inference, membership.

Each reads a `Transcript` of frames, or a released model, through an adversary type that says what
it may know (`vertizo.attacks.adversaries`). `ATTACKS` has them by name.

>>> from vertizo.attacks import ATTACKS, Laboratory, setting
>>> attack = ATTACKS["direct-client"]()
>>> trials = Laboratory().trials(attack, lambda seed: setting("sum", "vafl", seed=seed), [0])
>>> trials.figures["accuracy"].mean
1.0
"""

from vertizo.attacks.base import Attack
from vertizo.attacks.choice import ATTACKS
from vertizo.attacks.runner import Entry, Laboratory, Trials, table
from vertizo.attacks.scores import Figure, Guesses, Measurement
from vertizo.attacks.settings import SETTINGS, setting
from vertizo.attacks.transcript import Exchange, Reader, Transcript

__all__ = [
    "ATTACKS",
    "SETTINGS",
    "Attack",
    "Entry",
    "Exchange",
    "Figure",
    "Guesses",
    "Laboratory",
    "Measurement",
    "Reader",
    "Transcript",
    "Trials",
    "setting",
    "table",
]
