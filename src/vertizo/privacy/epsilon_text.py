"""How bounds are written for people, and which guarantees state an ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

BOUNDED = ("exact", "simulated")
"""Guarantees that state an ε: of the run itself, or of the run that it simulates."""


def is_bounded(privacy: Mapping[str, Any]) -> bool:
    """Whether the section ``privacy`` of a summary states an ε."""
    return privacy.get("guarantee") in BOUNDED


def bound_text(epsilon: float, digits: int = 4) -> str:
    """An ε or another bound as people read it, rounded up: a smaller one would not hold.

    >>> bound_text(2.87720001), bound_text(2.9999999), bound_text(12345.6, 3)
    ('2.878', '3', '1.24e+04')
    """
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) + 1 - digits)
    return f"{math.ceil(epsilon / unit - 1e-6) * unit:.{digits}g}"
