"""Columns that are not what they seem: numbers written as text, dates, identifiers, constants."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
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
NOTHING = ("none", "nat", "nil", "missing", "unknown", "na", "n.a.", "-", "--", ".", "undefined")
"""Texts, in lower case, that people and programs write where they know nothing."""
MANY = 0.2
"""The share of a column's values from which on new categories are many."""
FEWEST = 20
"""Rows from which on a column of nothing but different texts is an identifier."""
SHOWN = 5
"""So many rows are listed."""
FROM_PANDAS = re.compile(r"Unnamed: \d+|__index_level_\d+__|level_\d+")
"""Columns that pandas makes of an index that was written with the table."""
ROW_NAMES = re.compile(
    r"(?:id|ids|index|idx|key|nr|no|number|num|row|record|line|pk|rn|seq|serial|uid)"
    r"|(?:row|record|line|case|serial|obs|seq)[ _.-]*(?:id|index|idx|key|nr|no|number|num)\.?"
    r"|.*[ _.-](?:id|uid|pk|key)|(?:id|uid|pk)[ _.-].*|#|\u2116"
)
"""Names, in lower case, of columns that say which record a row is."""
NAMED = 0.1
"""So many of the values of a column of such a name are different where it names rows."""
UNLIKELY = 7.0
"""Pairs of equal numbers that are expected by chance where none is there: one time in 1,000."""
LONG = 1e7
"""Whole numbers from here on, of as many digits each, are accounts and telephones."""
_READABLE = r"(?:\d+|\d{1,3}(?:[ ,.'\u2019_]\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})(?:[.,]\d+)?"
ORNATE = rf"^['(\p{{Sc}} +-]{{0,5}}{_READABLE}[-\p{{Sc}}%\u2030) ]{{0,5}}$"
"""A number that a person can read, in form NFKC: ``1.234,50``, ``-$5``, ``12 %``, ``(5)``."""
WITH_UNIT = (
    rf"^(?P<before>(?:[\p{{L}}.]{{0,5}}[\p{{Sc}}. ] ?)?)[+-]?{_READABLE}"
    r"(?P<after>(?: ?[^\d\s.,][^\d]{0,15}[23]?)?)$"
)
"""The same with words of a currency or unit beside it: ``CHF 5``, ``5.50 EUR``, ``7 km``."""
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
    readable = values.str.normalize("NFKC").str.strip_chars().str.contains(ORNATE)
    ornate = no_number & readable.fill_null(False)
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
    # Categories of it would make one of what is missing.
    missing = values.gather(wrong).str.strip_chars().str.to_lowercase().is_in(NOTHING).all()
    raise DataError(
        f"{line}{others}, {whole}; correct it, or leave it empty if nothing is known"
        + ("" if numeric or missing else f", or {advice.categorical} if it holds categories")
    )


def check_dates(source: Source, column: str, advice: Advice) -> None:
    """Refuse a label of dates: DataError names one, and what to do."""
    values = source.frame[column]
    if is_dates(values):
        index = int(values.is_not_null().arg_max() or 0)
        raise DataError(
            f"{source.name}: column {column!r} holds dates, such as {str(values[index])!r} in "
            f"{source.place(index)}; make numbers of them, as years or days, {advice.categorical}, "
            f"or {advice.without}"
        )


def is_dates(values: pl.Series) -> bool:
    """Whether nearly all values that are there are dates."""
    import polars as pl

    if values.dtype in (pl.Date, pl.Datetime):
        return True
    present = values.drop_nulls()
    if values.dtype != pl.String or not len(present):
        return False
    return int(present.str.contains(DATE).sum()) >= NEARLY * len(present)


def notes(
    source: Source,
    columns: Sequence[str],
    categories: Collection[str],
    id_: str | None = None,
    named: Container[str] = (),
) -> list[str]:
    """What is allowed and probably not meant in a training table's features, a line each.

    ``categories`` are those of the columns that hold some, of which somebody ``named`` some;
    ``id_`` says which record a row is.
    """
    said = [] if id_ is None else _repeated(source, id_)
    unnamed = [column for column in columns if column in categories and column not in named]
    numbers = {c: line for c in unnamed if (line := _nearly_numbers(source, c)) is not None}
    said += numbers.values()
    others = [column for column in columns if column not in numbers]
    for useless, words in useless_columns(source, others, categories):
        said.append(f"{source.name}: {_listed(useless)} {words}")
    return said


def useless_columns(
    source: Source, columns: Sequence[str], categories: Collection[str]
) -> list[tuple[list[str], str]]:
    """Columns that tell nothing of new records, and why: constants, and what only names rows."""
    height = source.frame.height
    if height < FEWEST:
        return []
    different = {column: source.frame[column].drop_nulls().n_unique() for column in columns}
    constant = [column for column in columns if different[column] <= 1]
    identifiers = [
        column
        for column in columns
        if (different[column] >= NEARLY * height and column in categories)
        or (column not in categories and names_rows(column, source.frame[column]))
    ]
    return [
        (useless, words)
        for useless, words in (
            (constant, "the same value in every row, which tells nothing; leave it out"),
            (
                identifiers,
                "values that only name rows, as row numbers and identifiers do: they tell nothing "
                "of new records, and give the label away where rows were sorted by it; name it in "
                f"data.id, or {FEATURE.without}",
            ),
        )
        if useless
    ]


def unknown(
    source: Source,
    known: Mapping[str, Collection[str]],
    columns: Iterable[str] = (),
    dates: Iterable[str] = (),
) -> dict[str, str]:
    """A line for each column of new records that tells a model less than in training.

    Many values of categories are none that are ``known``, one of ``dates`` holds something else, or
    one of ``columns`` is empty.
    """
    from vertizo.data.tabular.columns import as_days, texts

    height, said = source.frame.height, dict[str, str]()
    for column in dates:
        _, odd = as_days(source, column)
        if odd:
            said[column] = (
                f"{source.name}: {len(odd):,} of {height:,} values of {column!r}, such as "
                f"{str(source.frame[column][odd[0]])!r}, are no dates as 2020-01-31; all of them "
                "count as missing"
            )
    if height < FEW:
        return said
    for column in dict.fromkeys([*known, *columns]):
        values = source.frame[column]
        if column in known:
            values = texts(source, column)
        elif values.dtype.is_float():
            values = values.fill_nan(None)
        present, names = values.drop_nulls(), known.get(column)
        if not len(present):
            said[column] = (
                f"{source.name}: column {column!r} is empty in all {height:,} rows; all of them "
                "count as missing"
            )
        elif names is not None:
            names = list(names)
            strange = present.filter(~present.is_in(names))
            if len(present) >= FEW and len(strange) >= MANY * len(present):
                said[column] = (
                    f"{source.name}: {len(strange):,} of {len(present):,} values of {column!r}, "
                    f"such as {strange[0]!r}, are no category of the training records, which have "
                    f"{', '.join(map(repr, names[:SHOWN]))}; all of them count as missing"
                )
    return said


def _nearly_numbers(source: Source, column: str) -> str | None:
    """A line on a column of categories most of which are numbers, or all numbers with a unit."""
    import polars as pl

    values = source.frame[column].cast(pl.String)
    if values.n_unique() <= FEW:
        return None
    plain = decimal(values).is_not_null()
    around = values.str.normalize("NFKC").str.strip_chars().str.extract_groups(WITH_UNIT)
    units = around.struct.unnest().select(pl.all().str.strip_chars()).filter(~plain)
    unit = units.drop_nulls().group_by(pl.all()).len()["len"].max() or 0
    total, numbers = int(values.is_not_null().sum()), int(plain.sum())
    if isinstance(unit, int) and numbers + unit >= NEARLY * total:
        whole = ""
    elif 2 * numbers >= total:
        whole = f", where {numbers:,} of {total:,} values are numbers"
    else:
        return None
    first = int((values.is_not_null() & ~plain).arg_max() or 0)
    return (
        f"{source.name}: column {column!r} holds {values[first]!r} in {source.place(first)}{whole}"
        ", and is taken for categories; if these are numbers, write them with a decimal point and "
        "nothing else, as 1234.5, and leave empty what is not known"
    )


def _listed(columns: Sequence[str]) -> str:
    names = ", ".join(map(repr, columns[:SHOWN]))
    if len(columns) > SHOWN:
        names += f" and {len(columns) - SHOWN} more"
    return f"column {names} has" if len(columns) == 1 else f"columns {names} have"


def names_rows(column: str, values: pl.Series) -> bool:
    """Whether whole numbers look chosen to name rows, in whatever order.

    By their name, unless they repeat much; because so many of so few whole numbers are hardly all
    different by chance (as birthdays are not); or as long numbers of as many digits each.
    """
    import polars as pl

    texts = values.dtype == pl.String
    if values.dtype in (pl.Date, pl.Datetime):
        return False
    present = (decimal(values) if texts else values.cast(pl.Float64, strict=False)).drop_nulls()
    count, different = len(present), present.n_unique()
    if 2 * count < len(values) or bool((present != present.floor()).any()):
        return False
    if FROM_PANDAS.fullmatch(column):
        return True
    if ROW_NAMES.fullmatch(column.strip().casefold()) and different >= NAMED * count:
        return True
    least, most = float(present.min()), float(present.max())  # type: ignore[arg-type]
    if different < count:
        return False
    alike = least >= LONG and len(f"{least:.0f}") == len(f"{most:.0f}")
    return alike or count**2 >= 2 * UNLIKELY * (most - least + 1)


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
