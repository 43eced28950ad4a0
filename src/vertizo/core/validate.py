"""Small named checks, used at construction and on receipt.

Each raises the error type of its caller's choice with the name, the value and the bound.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vertizo.core import kernels
from vertizo.core.deferred import torch
from vertizo.core.errors import ConfigError, NonFiniteError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor


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


def shape(name: str, array: Tensor, expected: tuple[int, ...]) -> Tensor:
    """``array`` if it has exactly the ``expected`` shape, else ShapeError."""
    if array.shape != expected:
        raise ShapeError(f"{name} has shape {tuple(array.shape)}; agreed was {expected}")
    return array


def bounded(name: str, array: Tensor, bound: float) -> Tensor:
    """``array`` if all its values are finite and at most ``bound``, else NonFiniteError."""
    if not is_bounded(array, bound):
        raise NonFiniteError(f"values of {name} are NaN or outside [-{bound:g}, {bound:g}]")
    return array


def mended(array: Tensor, bound: float) -> Tensor:
    """``array``, or where it is not within the bound a copy that is.

    NaN and ±∞ become 0, everything else is cut off at ±``bound``.

    >>> import torch
    >>> mended(torch.tensor([1.0, float("nan"), float("inf"), -9.0]), 5.0).tolist()
    [1.0, 0.0, 0.0, -5.0]
    """
    if is_bounded(array, bound):
        return array
    return torch.where(array.isfinite(), array, 0.0).clamp_(-bound, bound)


def is_bounded(array: Tensor, bound: float) -> bool:
    """Whether all values are finite and at most ``bound`` in absolute value."""
    most = min(bound, float(np.finfo(np.float32).max))
    return kernels.bounded(np.ascontiguousarray(array.numpy(), np.float32), most)
