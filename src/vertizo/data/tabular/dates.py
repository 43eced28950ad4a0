"""Dates: what is one, and days since 1 January 1970 for each.

A date is written with the year first: 2020-01-31, 2020/1/31, also with a time, 2020-01-31T08:30.
Times are taken as they are written; their zone is ignored, so that days stay those of the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.data.tabular.column_checks import rows_in_words
from vertizo.data.tabular.columns import Source, numbers, texts

if TYPE_CHECKING:
    import polars as pl

_DAY = r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})"
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d+)?))?"
DATE = rf"^{_DAY}(?:[T ]{_TIME} ?(?:Z|[+-]\d{{2}}(?::?\d{{2}})?)?)?$"
"""What is recognised."""
PLAIN = r"^(?P<year>\d{4})(?:-(?P<month>\d{2})|(?P<both>\d{4}))$"
"""20200131 and 2020-01 (its first day), where somebody has said that they are dates."""
WRITTEN = "write dates as 2020-01-31, or 2020-01-31T08:30"


def moments(source: Source, column: str | None) -> Tensor | None:
    """When each row was, float64 [rows], as days or in numbers of any unit; None without a column.

    Raises:
        DataError: a value is missing, or neither a date nor a number; names its line.
    """
    if column is None:
        return None
    source.check_has(column)
    found, wrong = _days(source, column)
    if wrong is not None:
        as_days, (found, text) = found, numbers(source, column)
        neither = (
            np.isnan(as_days) & np.isnan(found) & texts(source, column).is_not_null().to_numpy()
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


def _days(source: Source, column: str) -> tuple[NDArray[np.float64], int | None]:
    """Days, NaN where missing, and the first row that holds no date."""
    import polars as pl

    values = source.frame[column]
    if values.dtype == pl.Date:
        found = values.cast(pl.Int32).cast(pl.Float64)
    elif values.dtype == pl.Datetime:
        found = values.dt.replace_time_zone(None).dt.timestamp("us") / 86_400e6
    else:
        found = _parsed(texts(source, column))
    wrong = np.flatnonzero((found.is_null() & values.is_not_null()).to_numpy())
    if values.dtype.is_float():
        wrong = wrong[~values.is_nan().fill_null(False).to_numpy()[wrong]]
    array = found.fill_null(float("nan")).to_numpy()
    return array, int(wrong[0]) if len(wrong) else None


def _parsed(values: pl.Series) -> pl.Series:
    """Days of texts; null for what is no date, as 2021-02-30."""
    import polars as pl

    whole = pl.col("text").str.extract_groups
    both = whole(PLAIN).struct.field
    parts = (
        values.alias("text")
        .to_frame()
        .select(
            *(whole(DATE).struct.field(name) for name in ("hour", "minute", "second")),
            year=pl.coalesce(whole(DATE).struct.field("year"), both("year")),
            month=pl.coalesce(
                whole(DATE).struct.field("month"), both("month"), both("both").str.slice(0, 2)
            ),
            day=pl.coalesce(
                whole(DATE).struct.field("day"),
                both("both").str.slice(2),
                pl.when(both("month").is_not_null()).then(pl.lit("01")),
            ),
        )
    )
    hour, minute, second = (
        pl.col(name).cast(pl.Float64).fill_null(0.0) for name in ("hour", "minute", "second")
    )
    padded = (pl.col("year"), *(pl.col(name).str.zfill(2) for name in ("month", "day")))
    day = pl.concat_str(padded, separator="-").str.to_date("%Y-%m-%d", strict=False)
    is_time = (hour < 24) & (minute < 60) & (second < 61)
    fraction = pl.when(is_time).then((hour + (minute + second / 60) / 60) / 24)
    return parts.select(days=day.cast(pl.Int32).cast(pl.Float64) + fraction).to_series()
