"""How a broken contract is told: an `AssertionError` of one line, with or without pytest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def path_of(what: Any) -> str:
    """A name or import path as it is; of a class or function, its path ``module:name``."""
    return what if isinstance(what, str) else f"{what.__module__}:{what.__qualname__}"


def demand(held: object, words: str) -> None:
    """AssertionError with these words unless it holds; ``python -O`` does not skip it."""
    if not held:
        raise AssertionError(words)


def demand_refused(
    error: type[Exception], call: Callable[..., object], *arguments: Any, words: str
) -> None:
    """AssertionError unless the call raises ``error``."""
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{words}: no {error.__name__}")


def same(found: Any, expected: Any, words: str) -> None:
    """AssertionError unless both are equal."""
    demand(found == expected, f"{words}: {found}, not {expected}")
