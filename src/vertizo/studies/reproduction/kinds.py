"""What each kind of study does."""

from __future__ import annotations

from vertizo.studies.reproduction import attack, grid, intrinsic, memory, scaling
from vertizo.studies.reproduction.outcome import Outcome
from vertizo.studies.reproduction.runs import Order
from vertizo.studies.reproduction.study import (
    AnyStudy,
    AttackConfig,
    GridConfig,
    IntrinsicConfig,
    ScalingConfig,
)


def run(study: AnyStudy, order: Order) -> Outcome:
    """Make what is not made yet, and sum up.

    Raises:
        UserError: what cannot be run; one line.
        Interrupted: stopped; what is finished is kept.
    """
    if isinstance(study, GridConfig):
        return grid.run(study, order)
    if isinstance(study, ScalingConfig):
        return scaling.run(study, order)
    if isinstance(study, AttackConfig):
        return attack.run(study, order)
    if isinstance(study, IntrinsicConfig):
        return intrinsic.run(study, order)
    return memory.run(study, order)
