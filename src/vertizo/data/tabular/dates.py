"""Dates: recognised and converted to days since 1 January 1970.

A date is written with the year first: 2020-01-31, 2020/1/31, also with a time, 2020-01-31T08:30.
Times are taken as they are written; their zone is ignored, so that days stay those of the file.
"""

from __future__ import annotations

from vertizo.core.plugins.lazy_import import polars as pl

_DAY = r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})"
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d+)?))?"
DATE = rf"^{_DAY}(?:[T ]{_TIME} ?(?:Z|[+-]\d{{2}}(?::?\d{{2}})?)?)?$"
"""Pattern of the dates that are recognised."""
PLAIN = r"^(?P<year>\d{4})(?:-(?P<month>\d{2})|(?P<both>\d{4}))$"
"""Pattern of 20200131 and 2020-01 (its first day), for columns declared as dates."""
WRITTEN = "write dates as 2020-01-31, or 2020-01-31T08:30"


def days(values: pl.Series) -> pl.Series:
    """Days since 1970 of dates or texts; null where missing or no date, as 2021-02-30."""
    if values.dtype == pl.Date:
        return values.cast(pl.Int32).cast(pl.Float64)
    if values.dtype == pl.Datetime:
        return values.dt.replace_time_zone(None).dt.timestamp("us") / 86_400e6
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
