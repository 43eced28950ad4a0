"""Small named checks of numbers, used at construction."""

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
