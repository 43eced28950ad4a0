"""The states of a job of agents, and which may follow which.

=========  =========  ============================================================================
from       to         when
=========  =========  ============================================================================
submitted  offered    label holder: its agent has seen the job; member: its policy allows it
offered    approved   label holder: all members approve; member: a person or its policy does
approved   running    label holder: earlier jobs are finished, and there is room and a port for it;
                      member: the label holder says so
running    finished   the processes of all parties ended well
any open   failed     a process failed for good, or the label holder does not know the job
any open   refused    a member's policy or a person there refuses it
any open   cancelled  the label holder takes it back
any open   expired    a member does not approve before the deadline, or is silent for too long
waiting    an end     a job that it comes after ended so, before this one ran
=========  =========  ============================================================================

Both kinds of agent have this table (`AFTER`); each keeps the state of a job on its own side, and
members follow the label holder's ends.
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
"""State → the states that may follow; none after an end."""
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


def before(state: State) -> tuple[State, ...]:
    """The states that a state may follow."""
    return tuple(each for each, after in AFTER.items() if state in after)
