"""Range checks of numbers: each returns its value or raises ConfigError with its name."""

from __future__ import annotations

import math

from vertizo.core.errors import ConfigError


def positive(name: str, value: float) -> float:
    """``value`` if it is finite and above zero.

    >>> positive("clip", 0)
    Traceback (most recent call last):
    ...
    vertizo.core.errors.ConfigError: clip is 0; it must be a finite number above 0
    """
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value}; it must be a finite number above 0")
    return value


def non_negative(name: str, value: float) -> float:
    """``value`` if it is finite and not below zero."""
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{name} is {value}; it must be a finite number, 0 or above")
    return value


def fraction(name: str, value: float) -> float:
    """``value`` if it lies in the open interval (0, 1)."""
    if not 0 < value < 1:
        raise ConfigError(f"{name} is {value}; it must lie strictly between 0 and 1")
    return value


def between(name: str, value: float, bounds: tuple[float, float]) -> float:
    """``value`` if it lies between two bounds, or is one of them.

    >>> between("--clip", 5e-324, (1e-30, 1e30))
    Traceback (most recent call last):
    ...
    vertizo.core.errors.ConfigError: --clip is 5e-324; it must be between 1e-30 and 1e+30
    """
    least, most = bounds
    if not least <= value <= most:
        raise ConfigError(f"{name} is {value}; it must be between {least:g} and {most:g}")
    return value
