"""Attacks that test privacy guarantees: label inference, feature inversion, membership inference.

Each reads a `Transcript` of frames, or a released model, through an adversary type that says what
it may know (`adversaries.py`). `ATTACKS` has them by name. `kinds/` holds a file for each attack,
`base.py` their interface, `arena.py` trains the attacked federation, `scores.py` scores guesses.

Attacks and shipped settings may be added. What never changes: an attack is a function of its
adversary alone; the truth is used for scoring only; every figure has a control, which shows what
an attacker reaches without what the attack exploits; and the names of figures stay.

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
from vertizo.lab.attacks.transcript import Exchange, Transcript, exchanges

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
    "Transcript",
    "Trials",
    "exchanges",
    "setting",
    "table",
]
