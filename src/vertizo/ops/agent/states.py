"""The states of a job, and which may follow which.

Both parties have the same table; a job stands for itself at each of them.
"""

from __future__ import annotations

from typing import Literal, get_args

State = Literal[
    "submitted",
    "offered",
    "approved",
    "running",
    "finished",
    "failed",
    "refused",
    "cancelled",
    "expired",
]
ENDS: tuple[State, ...] = ("finished", "failed", "refused", "cancelled", "expired")
AFTER: dict[State, tuple[State, ...]] = {
    "submitted": ("offered", "failed", "refused", "cancelled", "expired"),
    "offered": ("approved", "failed", "refused", "cancelled", "expired"),
    "approved": ("running", "failed", "refused", "cancelled", "expired"),
    "running": ENDS,
    **dict.fromkeys(ENDS, ()),
}
"""State → what may follow. An end is followed by nothing."""
MEANING: dict[State, str] = {
    "submitted": "known here, and not looked at yet",
    "offered": "waits for approval, by all members or by a person here",
    "approved": "wanted by all, or by this party; waits for its turn",
    "running": "a process of each party works on it",
    "finished": "all parties' processes ended well",
    "failed": "a party's process ended with a mistake that starting again does not mend",
    "refused": "a member's policy, or a person there, does not want it",
    "cancelled": "the label holder took it back",
    "expired": "a member did not answer, or was silent, for too long",
}

assert AFTER.keys() == MEANING.keys() == set(get_args(State))


def is_over(state: str) -> bool:
    """Whether nothing can follow."""
    return state in ENDS


def before(state: State) -> tuple[State, ...]:
    """The states that it may follow."""
    return tuple(each for each, after in AFTER.items() if state in after)
