"""A first look at a user's table: guesses its key, its features, and each party's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from csv import reader
from dataclasses import dataclass

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.core.text.suggestions import nearest
from vertizo.data.alignment import keys_of
from vertizo.data.labels import labels_of
from vertizo.data.tabular.category_text import decimal
from vertizo.data.tabular.columns import (
    ROW_NAMES,
    Source,
    dates_of,
    is_dates,
    matrices,
    names_rows,
    unlike,
    useless_columns,
)

MANY = 6
"""Features from which on the guess has three parties, not two."""


@dataclass(frozen=True)
class Look:
    """The findings about a table, from which a configuration is written."""

    key: str | None
    """The column that identifies records."""
    classes: tuple[str, ...] | None
    """Classes of the label; None for a regression."""
    parties: Mapping[str, Sequence[str]]
    """Party → its columns."""
    holder: str | None
    """The party that has the labels; None where it has no columns."""
    dropped: Mapping[str, str]
    """Columns that tell a model nothing → the reason, in words."""
    unnamed: Sequence[str]
    """Usable columns that no party has."""


def look(
    source: Source,
    label: str,
    key: str | None = None,
    parties: Mapping[str, Sequence[str]] | None = None,
    holder: str | None = None,
) -> Look:
    """Look at a table; without ``parties`` its columns are cut into runs, as a guess.

    ConfigError or DataError names the option or the column, and what would be right.
    """
    there = source.frame.columns
    for option, column in (("label", label), ("id", key)):
        if column is not None and column not in there:
            raise ConfigError(
                f"--{option} is {column!r}, no column of {source.name}{unlike(column, there)}"
            )
    if key == label:
        raise ConfigError(f"--id and --label are both {label!r}; name two columns")
    _, _, classes = labels_of([source], label, None, None)
    if key is not None:
        keys_of(source.frame, key, source.name, source.place)
    else:
        key = _key(source, [column for column in there if column != label])
    _check(source, label, key, parties)
    dropped: dict[str, str] = {}
    for column in there:
        why = None if column in (label, key) else _useless(source, column)
        if why is not None:
            dropped[column] = why
    usable = [column for column in there if column not in (label, key, *dropped)]
    if not usable:
        raise DataError(
            f"{source.name} has no column that a model can use beside {label!r}"
            + "".join(f": {why}" for why in list(dropped.values())[:1])
        )
    held = parties or _cut(usable)
    held = {party: [c for c in own if c not in dropped] for party, own in held.items()}
    bare = next((party for party, own in held.items() if not own), None)
    if bare is not None:
        one = (parties or {})[bare][0]
        raise ConfigError(f"--party {bare!r} has no column of use: {dropped[one]}")
    if holder is None:
        holder = next(iter(held)) if len(held) > 1 else None
    elif holder not in held or len(held) == 1:
        hint = nearest(holder, [*held]) or f"; they are {', '.join(map(repr, held))}"
        raise ConfigError(f"--holder is {holder!r}, which is none of several parties{hint}")
    named = {column for own in held.values() for column in own}
    unnamed = [column for column in usable if column not in named]
    return Look(key, classes, held, holder, dropped, unnamed)


def parties_of(given: Sequence[str]) -> dict[str, list[str]]:
    """Parse ``bank=income,balance`` to party → columns; quote a name with a comma in it.

    ConfigError for another form, a party twice, or one party alone.

    >>> parties_of(["bank=income, balance", 'shop="visits, monthly"'])
    {'bank': ['income', 'balance'], 'shop': ['visits, monthly']}
    """
    found: dict[str, list[str]] = {}
    for text in given:
        party, _, columns = (part.strip() for part in text.partition("="))
        named = [name.strip() for name in next(reader([columns], skipinitialspace=True), [])]
        if not party or not named or "" in named:
            raise ConfigError(f"--party is {text!r}; write NAME=COLUMN,COLUMN")
        if party in found:
            raise ConfigError(f"--party names {party!r} twice; give all of its columns at once")
        found[party] = named
    if len(found) == 1:
        raise ConfigError(f"--party names {party!r} alone; name two parties at least")
    return found


def _check(
    source: Source, label: str, key: str | None, parties: Mapping[str, Sequence[str]] | None
) -> None:
    """Refuse columns of parties that are missing, named twice, or the label or the key."""
    whose: dict[str, str] = {}
    for party, own in (parties or {}).items():
        for column in own:
            gives = f"--party gives {party!r} the column {column!r}, which"
            if column not in source.frame.columns:
                hint = unlike(column, source.frame.columns)
                raise ConfigError(f"{gives} {source.name} does not have{hint}")
            if column == label:
                raise ConfigError(f"{gives} is the label; leave it out")
            if column == key:
                raise ConfigError(
                    f"{gives} tells records apart; leave it out, or name another column by --id"
                )
            if column in whose:
                other = "it has twice" if whose[column] == party else f"{whose[column]!r} has too"
                raise ConfigError(f"{gives} {other}; keep one")
            whose[column] = party


def _key(source: Source, columns: Sequence[str]) -> str | None:
    """Guess the column of keys: by its name, or because its values only name rows."""
    found: dict[str, int] = {}
    for place, column in enumerate(columns):
        if is_dates(source.frame[column]):
            continue
        try:
            keys = keys_of(source.frame, column, source.name)
        except DataError:  # missing, there twice, or no identifiers
            continue
        called = ROW_NAMES.fullmatch(column.strip().casefold()) is not None
        values = source.frame[column]
        texts = values.dtype == pl.String and bool(decimal(values).is_null().any())
        words = texts and any(character.isspace() for each in keys for character in each)
        if called or (texts and not words) or (not texts and names_rows(column, values)):
            found[column] = (0 if called else len(columns)) + place
    return min(found, key=found.__getitem__, default=None)


def _useless(source: Source, column: str) -> str | None:
    """The reason, in words, why a column is useless to a model; None for a useful one."""
    try:
        dates = dates_of(source, [column], ())
        _, levels = matrices([source], [column], (), (), dates)
    except DataError as error:
        return str(error).removeprefix(f"{source.name}: ")
    found = useless_columns(source, [column], levels)
    return f"column {column!r} has {found[0][1].partition(',')[0]}" if found else None


def _cut(columns: Sequence[str]) -> dict[str, list[str]]:
    """Cut columns into runs, one for each party: neighbours are often of one source."""
    count = min(len(columns), 3 if len(columns) >= MANY else 2)
    ends = [round(len(columns) * party / count) for party in range(count + 1)]
    return {
        f"party{party}": list(columns[ends[party - 1] : ends[party]])
        for party in range(1, count + 1)
    }
