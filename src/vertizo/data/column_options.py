"""What every configuration of a table must fulfil, a member's as well as the label holder's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Annotated, Any

from pydantic import BeforeValidator

_NUMERIC = ("categories", "categorical")
_CLASHES = {
    "id": ("weight", "columns", "drop", "ranges", *_NUMERIC),
    "weight": ("person", "columns", "drop", "ranges", *_NUMERIC),
    "person": ("columns", "drop", "ranges", *_NUMERIC),
    "drop": ("columns", "ranges", *_NUMERIC),
    "ranges": _NUMERIC,
}
"""Which keys may not name the same column."""


def _as_days(value: Any) -> Any:
    """A date as days since 1970, which columns of dates become; all else as it is."""
    with suppress(ValueError):
        if isinstance(value, str):
            return float((date.fromisoformat(value) - date(1970, 1, 1)).days)
    return value


Bound = Annotated[float, BeforeValidator(_as_days, json_schema_input_type=float | str)]


def check_bounds(key: str, pair: Sequence[float]) -> None:
    """Raise ValueError unless it is [low, high]."""
    if len(pair) != 2 or not pair[0] < pair[1]:
        raise ValueError(f"{key} is {pair}; it must be [low, high] with low below high")


def check_categories(categories: Mapping[str, Sequence[object]]) -> None:
    """Raise ValueError for a column whose categories are none, or has one twice."""
    for column, names in categories.items():
        if not names:
            raise ValueError(f"data.categories.{column} is empty; name its categories")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"data.categories.{column} has {twice!r} twice")


def check_uses(uses: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError for a column that two keys name which exclude each other."""
    for one, others in _CLASHES.items():
        for other in others:
            named = uses.get(other, ())
            both = next((column for column in uses.get(one, ()) if column in named), None)
            if both is not None:
                raise ValueError(f"data.{one} and data.{other} both name {both!r}; keep one")
