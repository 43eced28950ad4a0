"""Whether two states are the same in every bit."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor


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
