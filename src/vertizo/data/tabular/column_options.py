"""Checks that every table's configuration must pass, a member's and the label holder's."""

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
"""Key → keys that may not name the same column."""


def _as_days(value: Any) -> Any:
    """Convert a date to days since 1970, as columns of dates are; other values stay."""
    with suppress(ValueError):
        if isinstance(value, str):
            return float((date.fromisoformat(value) - date(1970, 1, 1)).days)
    return value


Bound = Annotated[float, BeforeValidator(_as_days, json_schema_input_type=float | str)]


def check_bounds(key: str, pair: Sequence[float]) -> None:
    """Raise ValueError unless ``pair`` is [low, high] with low below high."""
    if len(pair) != 2 or not pair[0] < pair[1]:
        raise ValueError(f"{key} is {pair}; it must be [low, high] with low below high")


def check_categories(categories: Mapping[str, Sequence[object]]) -> None:
    """Raise ValueError for a column without categories, or with one twice."""
    for column, names in categories.items():
        if not names:
            raise ValueError(f"data.categories.{column} is empty; name its categories")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"data.categories.{column} has {twice!r} twice")


def check_uses(uses: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError for a column that two keys name, if these exclude each other."""
    for one, others in _CLASHES.items():
        for other in others:
            named = uses.get(other, ())
            both = next((column for column in uses.get(one, ()) if column in named), None)
            if both is not None:
                raise ValueError(f"data.{one} and data.{other} both name {both!r}; keep one")
