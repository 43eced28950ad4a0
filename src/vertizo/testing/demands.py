"""Assertions of the checks: an `AssertionError` of one line, with or without pytest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def path_of(what: Any) -> str:
    """The path ``module:name`` of a class or function; a name or import path as it is."""
    return what if isinstance(what, str) else f"{what.__module__}:{what.__qualname__}"


def demand(held: object, words: str) -> None:
    """Raise AssertionError with these words unless ``held``; ``python -O`` does not skip it."""
    if not held:
        raise AssertionError(words)


def demand_refused(
    error: type[Exception], call: Callable[..., object], *arguments: Any, words: str
) -> None:
    """Raise AssertionError unless the call raises ``error``."""
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{words}: no {error.__name__}")


def same(found: Any, expected: Any, words: str) -> None:
    """Raise AssertionError unless both are equal."""
    demand(found == expected, f"{words}: {found}, not {expected}")
