"""Attacks that a guarantee is held against: label and feature inference, membership.

Each reads a `Transcript` of frames, or a released model, through an adversary type that says what
it may know (`vertizo.lab.attacks.adversaries`). `ATTACKS` has them by name.

>>> from vertizo.lab.attacks import ATTACKS, Laboratory, setting
>>> attack = ATTACKS["direct-client"]()
>>> trials = Laboratory().trials(attack, lambda seed: setting("sum", "vafl", seed=seed), [0])
>>> trials.figures["accuracy"].mean
1.0
"""

from vertizo.lab.attacks.base import Attack
from vertizo.lab.attacks.choice import ATTACKS
from vertizo.lab.attacks.runner import Entry, Laboratory, Trials, table
from vertizo.lab.attacks.scores import Figure, Guesses, Measurement
from vertizo.lab.attacks.settings import SETTINGS, setting
from vertizo.lab.attacks.transcript import Exchange, Reader, Transcript

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
