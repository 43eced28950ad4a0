"""Columns of frames as numbers, or as codes for what they hold."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.suggestions import nearest, similar
from vertizo.data.spelling import decimal, in_seconds, spelt
from vertizo.data.tabular.column_checks import (
    FEATURE,
    Advice,
    check_text,
    is_dates,
    rows_in_words,
)
from vertizo.data.tabular.dates import WRITTEN, days
from vertizo.data.tabular.frames import Place, row

if TYPE_CHECKING:
    import polars as pl

LARGEST = float(np.finfo(np.float32).max)
SHOWN = 20
"""So many columns are listed for a name that is like none of them."""


@dataclass(frozen=True)
class Source:
    """A frame, and what to call it and its rows in a complaint."""

    name: str
    frame: pl.DataFrame
    place: Place = row

    def reordered(self, rows: Sequence[int]) -> Source:
        """With those rows, which are still found where they were."""
        return Source(self.name, self.frame[rows], lambda index: self.place(rows[index]))

    def check_has(self, column: str, first: str | None = None) -> None:
        """DataError if there is no such column; ``first`` is a table that has it."""
        if column not in self.frame.columns:
            whose = "" if first is None else f" of {first}"
            raise DataError(
                f"{self.name} does not have the column {column!r}{whose}"
                f"{unlike(column, self.frame.columns)}"
            )


def unlike(column: str, known: Sequence[str]) -> str:
    """The end of a complaint about a column that is not there: what is like it, or what there is.

    >>> unlike("zzz", ["age", "income"])
    '; it has age, income'
    """
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return nearest(column, known) or f"; it has {', '.join(known[:SHOWN])}{more}"


def check_known(source: Source, wanted: Sequence[tuple[str, str]]) -> None:
    """Refuse names of columns that are not there.

    ``wanted`` has the key of the section ``data`` that has a name, with a verb, and the name.

    Raises:
        ConfigError: names the first, what may have been meant, and the others.
    """
    known = source.frame.columns
    unknown = [(key, column) for key, column in wanted if column not in known]
    if not unknown:
        return
    key, column = unknown[0]
    hint = unlike(column, known)
    if any(name[:1].isdigit() for name in known):
        hint += "; does the first line name the columns?"
    others = []
    for other in dict.fromkeys(each for _, each in unknown[1:] if each != column):
        near = similar(other, known)[:1]
        others.append(f"{other!r} ({near[0]!r}?)" if near else repr(other))
    more = f"; nor has it {', '.join(others)}" if others else ""
    raise ConfigError(
        f"data.{key} the column {column!r}, which {source.name} does not have{hint}{more}"
    )


def matrices(
    sources: Sequence[Source],
    columns: Sequence[str],
    categorical: Container[str],
    numeric: Container[str] = (),
    dates: Container[str] = (),
) -> tuple[list[Tensor], dict[str, tuple[str, ...]]]:
    """Columns of every frame as numbers, float64 [rows, columns], and what codes stand for.

    The first frame decides which columns hold text. ``categorical`` ones are categories even where
    they hold numbers; ``numeric`` ones must hold numbers, and ``dates`` become days.

    Raises:
        DataError: names the frame and the column.
    """
    import polars as pl

    for source in sources:
        for column in columns:
            source.check_has(column, None if source is sources[0] else sources[0].name)
    levels: dict[str, tuple[str, ...]] = {}
    found = [np.empty((source.frame.height, len(columns))) for source in sources]
    for place, column in enumerate(columns):
        coded: list[NDArray[np.float64]] | None = None
        if column in dates:
            coded = [all_days(sources[0], column), *(as_days(s, column)[0] for s in sources[1:])]
        elif column not in categorical:
            coded = all_numbers(sources, column)
        if coded is None:
            if column not in categorical:
                check_text(sources[0], column, column in numeric)
            found_texts = [texts(source, column) for source in sources]
            names = in_order(pl.concat(found_texts).drop_nulls().unique().to_list())
            levels[column], coded = tuple(names), [codes(each, names) for each in found_texts]
        for matrix, values in zip(found, coded, strict=True):
            matrix[:, place] = values
    return [torch.from_numpy(matrix) for matrix in found], levels


def dates_of(source: Source, columns: Sequence[str], categorical: Container[str]) -> list[str]:
    """Columns of a training table that hold dates, and that nobody takes for categories."""
    return [c for c in columns if c not in categorical and is_dates(source.frame[c])]


def as_days(source: Source, column: str) -> tuple[NDArray[np.float64], list[int]]:
    """A column of dates as days since 1970, NaN where missing, and the rows that hold none."""
    import polars as pl

    values = source.frame[column]
    present = values if values.dtype in (pl.Date, pl.Datetime) else texts(source, column)
    found = days(present)
    odd = np.flatnonzero((found.is_null() & present.is_not_null()).to_numpy()).tolist()
    return found.fill_null(float("nan")).to_numpy(), odd


def all_days(source: Source, column: str) -> NDArray[np.float64]:
    """The same of a training table; DataError for a value that is there and no date."""
    found, odd = as_days(source, column)
    if odd:
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        raise DataError(
            f"{source.name}: column {column!r} holds {source.frame[column][odd[0]]!r} in "
            f"{source.place(odd[0])}{more}; {WRITTEN}, {FEATURE.categorical}, or {FEATURE.without}"
        )
    return found


def moments(source: Source, column: str | None) -> Tensor | None:
    """When each row was, float64 [rows], as days or in numbers of any unit; None without a column.

    Raises:
        DataError: a value is missing, or neither a date nor a number; names its line.
    """
    if column is None:
        return None
    source.check_has(column)
    found, odd = as_days(source, column)
    wrong = odd[0] if odd else None
    if wrong is not None:
        of_dates, (found, text) = found, numbers(source, column)
        neither = (
            np.isnan(of_dates) & np.isnan(found) & texts(source, column).is_not_null().to_numpy()
        )
        wrong = None if text is None else int(neither.argmax()) if neither.any() else wrong
    if wrong is not None:
        raise DataError(
            f"{source.name}: data.time is {column!r}, which holds "
            f"{texts(source, column)[wrong]!r} in {source.place(wrong)}; {WRITTEN}, or numbers"
        )
    missing = np.flatnonzero(np.isnan(found)).tolist()
    if missing:
        raise DataError(
            f"{source.name}: data.time is {column!r}, which is missing in {len(missing)} of "
            f"{len(found)} rows: {rows_in_words(missing, source.place)}; leave those rows out"
        )
    return torch.tensor(found)


def all_numbers(
    sources: Sequence[Source], column: str, advice: Advice = FEATURE
) -> list[NDArray[np.float64]] | None:
    """A column of every frame as numbers, NaN where missing; None if the first has text there."""
    result: list[NDArray[np.float64]] = []
    for source in sources:
        array, text = numbers(source, column, advice)
        if text is not None and not result:
            return None
        if text is not None:
            raise DataError(
                f"{source.name}: column {column!r} holds {source.frame[column][text]!r} in "
                f"{source.place(text)}, but only numbers in {sources[0].name}"
            )
        result.append(array)
    return result


def numbers(
    source: Source, column: str, advice: Advice = FEATURE
) -> tuple[NDArray[np.float64], int | None]:
    """A column as numbers, NaN where missing, and the first row that has text in it.

    Raises:
        DataError: the column holds neither, or a number that float32 cannot hold.
    """
    import polars as pl

    values = in_seconds(source.frame[column])
    if values.dtype == pl.Null:
        values = values.cast(pl.Float64)
    text = None
    if values.dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum):
        words = values.cast(pl.String).str.strip_chars()
        found = decimal(words)
        wrong = np.flatnonzero((found.is_null() & (words != "").fill_null(False)).to_numpy())
        text = int(wrong[0]) if len(wrong) else None
    elif values.dtype.is_numeric():
        found = values.cast(pl.Float64)
    else:
        raise DataError(
            f"{source.name}: column {column!r} holds {values.dtype}, neither numbers nor text; "
            f"{advice.without}"
        )
    array = found.fill_null(float("nan")).to_numpy()
    huge = np.flatnonzero(np.abs(array) > LARGEST)
    if text is None and len(huge):
        first = int(huge[0])
        raise DataError(
            f"{source.name}: column {column!r} holds {array[first]:g} in {source.place(first)}, "
            "which is too large a number; leave it empty where nothing is known"
        )
    return array, text


def texts(source: Source, column: str, advice: Advice = FEATURE) -> pl.Series:
    """A column of categories as text, null where missing, as `spelt`."""
    import polars as pl

    values = in_seconds(source.frame[column])
    if values.dtype.is_integer():
        return values.cast(pl.String)
    if values.dtype.is_decimal():
        values = values.cast(pl.Float64)
    if values.dtype.is_float():
        values = values.fill_nan(None)
        # Each value for itself, whatever the others are, and as a table of integers has it.
        whole = pl.col(column) == pl.col(column).cast(pl.Int64, strict=False)
        integer = pl.col(column).cast(pl.Int64, strict=False).cast(pl.String)
        text = pl.when(whole).then(integer).otherwise(pl.col(column).cast(pl.String))
        return values.to_frame(column).select(text.alias(column)).to_series()
    if values.dtype.is_nested() or values.dtype == pl.Binary:
        raise DataError(
            f"{source.name}: column {column!r} holds {values.dtype}, not categories; "
            f"{advice.without}"
        )
    return spelt(values.cast(pl.String))


def in_order(names: Sequence[str]) -> list[str]:
    """Texts in the order that codes follow: numbers by size, then all else by name."""

    def place(text: str) -> tuple[int, float, str]:  # which depends on no other text
        try:
            number = float(text)
        except ValueError:
            return 1, 0.0, text
        return (0, number, text) if number == number else (1, 0.0, text)

    return sorted(names, key=place)


def codes(found: pl.Series, names: Sequence[str]) -> NDArray[np.float64]:
    """Each text's place among the names; NaN where it is missing, or none of them."""
    import polars as pl

    if not names:
        return np.full(len(found), np.nan)
    places = found.cast(pl.Enum(names), strict=False).to_physical().cast(pl.Float64)
    return places.fill_null(float("nan")).to_numpy()
