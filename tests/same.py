"""Whether two states are the same in every bit, and figures but for the clock."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

CLOCK = {"seconds", "finished", "rounds_per_second", "peak_memory_mib"}
"""Figures that no two runs share."""


def timeless(figures: dict[str, Any] | None) -> dict[str, Any]:
    """Figures without those that differ from one run to the next."""
    return {key: value for key, value in (figures or {}).items() if key not in CLOCK}


def same(one: Any, two: Any) -> bool:
    """Equal in every bit, with the same types."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        one, two = one.detach(), two.detach()
        alike = one.dtype == two.dtype and one.shape == two.shape
        return alike and one.numpy().tobytes() == two.numpy().tobytes()
    if type(one) is not type(two):
        return False
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float):
        return one == two or (math.isnan(one) and math.isnan(two))
    return bool(one == two)
