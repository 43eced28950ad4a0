"""Columns that are not what they seem: numbers written as text, dates, identifiers, constants."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vertizo.core.errors import DataError
from vertizo.data.spelling import decimal
from vertizo.data.tabular.frames import Place

if TYPE_CHECKING:
    import polars as pl

    from vertizo.data.tabular.columns import Source

NEARLY = 0.9
"""The share of a column's values from which on the others are mistakes."""
FEW = 5
"""Fewer values than that may all be new categories."""
FEWEST = 20
"""Rows from which on a column of nothing but different texts is an identifier."""
SHOWN = 5
"""So many rows are listed."""
ORNATE = r"^[$€£¥]? ?[+-]?\d{1,3}(?:[ ,.'\u00a0\u202f]?\d{3})*(?:[.,]\d+)? ?[%$€£¥]?$"
"""A number that a person can read: ``1.234,50``, ``1,234.50 €``, ``12 %``."""
DATE = (
    r"^(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2}))"
    r"(?:[T ]\d{1,2}:\d{2}.*)?$"
)


class Advice(NamedTuple):
    """What people may do about a column that is not what it seems."""

    categorical: str
    without: str


FEATURE = Advice(
    "name it in data.categorical", "leave it out (of data.columns, or else by data.drop)"
)
SEVERAL = "name them in data.categorical, or leave them out (of data.columns, or else by data.drop)"
LABEL = Advice("set data.task to classification", "name another column in data.label")


def rows_in_words(rows: Sequence[int], place: Place) -> str:
    """The first few rows as people find them.

    >>> rows_in_words([1, 4], lambda index: f"line {index + 2}")
    'line 3 and line 6'
    """
    *first, last = [place(index) for index in rows[:SHOWN]]
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"{listed} (and {len(rows) - SHOWN} more)" if len(rows) > SHOWN else listed


def check_text(source: Source, column: str, numeric: bool, advice: Advice = FEATURE) -> None:
    """Refuse a column of text that is nearly all numbers, or numbers that only people can read.

    Or one with any text, if it must be ``numeric``.

    Raises:
        DataError: names the first value that is no number, its line, and what to do.
    """
    import polars as pl

    values = source.frame[column].cast(pl.String)
    present = values.is_not_null()
    no_number = present & decimal(values).is_null()
    ornate = no_number & values.str.contains(ORNATE).fill_null(False)
    wrong = np.flatnonzero(no_number.to_numpy()).tolist()
    total = int(present.sum())
    plain = total - len(wrong)
    if not wrong or (plain + int(ornate.sum()) < NEARLY * total and not numeric):
        return
    first = values[wrong[0]]
    line = f"{source.name}: column {column!r} holds {first!r} in {source.place(wrong[0])}"
    if ornate[wrong[0]]:
        raise DataError(
            f"{line}; write numbers with a decimal point and nothing else, as 1234.5, or "
            f"{advice.categorical} if its values are categories"
        )
    others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    whole = f"where {plain} of {total} values are numbers"
    if numeric:
        whole = "but data.ranges is for numbers"
    raise DataError(
        f"{line}{others}, {whole}; correct it, or leave it empty if nothing is known"
        + ("" if numeric else f", or {advice.categorical} if it holds categories")
    )


def check_dates(source: Source, columns: Sequence[str], advice: Advice = FEATURE) -> None:
    """Refuse columns of dates, all at once: DataError names them, one date, and what to do."""
    found = [column for column in columns if _is_dates(source.frame[column])]
    if not found:
        return
    values = source.frame[found[0]]
    index = int(values.is_not_null().arg_max() or 0)
    several = "columns " + ", ".join(map(repr, found)) if len(found) > 1 else f"column {found[0]!r}"
    raise DataError(
        f"{source.name}: {several} {'hold' if len(found) > 1 else 'holds'} dates, such as "
        f"{str(values[index])!r} in {source.place(index)}; make numbers of them, as years or days, "
        + (f"{advice.categorical}, or {advice.without}" if len(found) == 1 else SEVERAL)
    )


def _is_dates(values: pl.Series) -> bool:
    import polars as pl

    if values.dtype in (pl.Date, pl.Datetime):
        return True
    present = values.drop_nulls()
    if values.dtype != pl.String or not len(present):
        return False
    return int(present.str.contains(DATE).sum()) >= NEARLY * len(present)


def notes(
    source: Source, columns: Sequence[str], categories: Collection[str], id_: str | None = None
) -> list[str]:
    """What is allowed and probably not meant in a training table's features, a line each.

    ``categories`` are those of the columns that hold some, ``id_`` says which record a row is.
    """
    said = [] if id_ is None else _repeated(source, id_)
    height = source.frame.height
    if height < FEWEST:
        return said
    different = {column: source.frame[column].drop_nulls().n_unique() for column in columns}
    constant = [column for column in columns if different[column] <= 1]
    identifiers = [
        column
        for column in columns
        if different[column] >= NEARLY * height
        and (column in categories or _counts_up(source.frame[column]))
    ]
    for unlikely, words in (
        (constant, "the same value in every row, which tells nothing; leave it out"),
        (
            identifiers,
            "another value in nearly every row, as identifiers have, which tells nothing of new "
            "records; name it in data.id, or leave it out",
        ),
    ):
        if unlikely:
            said.append(f"{source.name}: {_listed(unlikely)} {words}")
    return said


def unknown(source: Source, known: Mapping[str, Collection[str]]) -> list[str]:
    """A line for each column of categories of which most values are none that are ``known``."""
    from vertizo.data.tabular.columns import texts

    said = []
    for column, names in known.items():
        present = texts(source, column).drop_nulls()
        strange = present.filter(~present.is_in(list(names)))
        if len(present) >= FEW and 2 * len(strange) > len(present):
            said.append(
                f"{source.name}: {len(strange):,} of {len(present):,} values of {column!r}, such "
                f"as {strange[0]!r}, are no category of the training records, which have "
                f"{', '.join(map(repr, list(names)[:SHOWN]))}; all of them count as missing"
            )
    return said


def _listed(columns: Sequence[str]) -> str:
    names = ", ".join(map(repr, columns[:SHOWN]))
    if len(columns) > SHOWN:
        names += f" and {len(columns) - SHOWN} more"
    return f"column {names} has" if len(columns) == 1 else f"columns {names} have"


def _counts_up(values: pl.Series) -> bool:
    """Whether numbers rise by one from row to row."""
    import polars as pl

    steps = values.cast(pl.Float64, strict=False).diff().drop_nulls()
    return len(steps) == len(values) - 1 and bool((steps == 1).all())


def _repeated(source: Source, column: str) -> list[str]:
    """A line on identifiers that occur more than once."""
    values = source.frame[column]
    twice = values.is_duplicated() & values.is_not_null()
    if not bool(twice.any()):
        return []
    first = values.filter(twice)[0]
    rows = np.flatnonzero((values == first).fill_null(False).to_numpy()).tolist()
    return [
        f"{source.name}: {column!r} is {first!r} in {rows_in_words(rows, source.place)}, and "
        f"{int(twice.sum())} rows share theirs with another; each row is a record of its own"
    ]
