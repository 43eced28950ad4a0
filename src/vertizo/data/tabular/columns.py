"""Columns of tables as numbers or codes, with checks for columns that are not what they seem.

Numbers written as text, dates, identifiers and constants are refused, or warned of in a line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError
from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.core.text.suggestions import nearest, similar
from vertizo.data.tabular.category_text import decimal, in_seconds, spelt
from vertizo.data.tabular.dates import WRITTEN, days
from vertizo.data.tabular.frames import Place, row

LARGEST = float(np.finfo(np.float32).max)
SHOWN = 20
"""Most columns that are listed for a name that is like none of them."""
NEARLY = 0.9
"""Share of a column's values of one kind from which on the others count as mistakes."""
FEW = 5
"""Least number of values of which new categories are warned of."""
NOTHING = ("none", "nat", "nil", "missing", "unknown", "na", "n.a.", "-", "--", ".", "undefined")
"""Texts, in lower case, that people and programs write for a missing value."""
MANY = 0.2
"""Share of a column's values from which on new categories are warned of."""
FEWEST = 20
"""Rows from which on constants and identifiers are warned of."""
ROWS_SHOWN = 5
"""Most rows that are listed."""
FROM_PANDAS = re.compile(r"Unnamed: \d+|__index_level_\d+__|level_\d+")
"""Names that pandas gives to an index that was written with the table."""
ROW_NAMES = re.compile(
    r"(?:id|ids|index|idx|key|nr|no|number|num|row|record|line|pk|rn|seq|serial|uid)"
    r"|(?:row|record|line|case|serial|obs|seq)[ _.-]*(?:id|index|idx|key|nr|no|number|num)\.?"
    r"|.*[ _.-](?:id|uid|pk|key)|(?:id|uid|pk)[ _.-].*|#|\u2116"
)
"""Names, in lower case, of columns that say which record a row is."""
NAMED = 0.1
"""Least share of different values in a column of such a name if it names rows."""
UNLIKELY = 7.0
"""Pairs of equal numbers expected by chance at which none occurs one time in 1,000."""
LONG = 1e7
"""Least size of whole numbers that, all with as many digits, count as accounts or telephones."""
_READABLE = r"(?:\d+|\d{1,3}(?:[ ,.'\u2019_]\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})(?:[.,]\d+)?"
ORNATE = rf"^['(\p{{Sc}} +-]{{0,5}}{_READABLE}[-\p{{Sc}}%\u2030) ]{{0,5}}$"
"""A number that a person can read, in form NFKC: ``1.234,50``, ``-$5``, ``12 %``, ``(5)``."""
WITH_UNIT = (
    rf"^(?P<before>(?:[\p{{L}}.]{{0,5}}[\p{{Sc}}. ] ?)?)[+-]?{_READABLE}"
    r"(?P<after>(?: ?[^\d\s.,][^\d]{0,15}[23]?)?)$"
)
"""A readable number with a currency or unit beside it: ``CHF 5``, ``5.50 EUR``, ``7 km``."""
DATE = (
    r"^(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2}))"
    r"(?:[T ]\d{1,2}:\d{2}.*)?$"
)


class Advice(NamedTuple):
    """Words of an error line on what to do about a column that is not what it seems."""

    categorical: str
    without: str


FEATURE = Advice(
    "name it in data.categorical", "leave it out (of data.columns, or else by data.drop)"
)
LABEL = Advice("set data.task to classification", "name another column in data.label")


def rows_in_words(rows: Sequence[int], place: Place) -> str:
    """List the first few rows in words, as people find them.

    >>> rows_in_words([1, 4], lambda index: f"line {index + 2}")
    'line 3 and line 6'
    """
    *first, last = [place(index) for index in rows[:ROWS_SHOWN]]
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"{listed} (and {len(rows) - ROWS_SHOWN} more)" if len(rows) > ROWS_SHOWN else listed


def check_text(source: Source, column: str, numeric: bool, advice: Advice = FEATURE) -> None:
    """Refuse a column of text if nearly all of it is numbers, or numbers only people can read.

    With ``numeric`` any text is refused. DataError names the first value that is no number, its
    place, and what to do.
    """
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
    """Raise DataError for a label of dates; it names one, and what to do."""
    values = source.frame[column]
    if is_dates(values):
        index = int(values.is_not_null().arg_max() or 0)
        raise DataError(
            f"{source.name}: column {column!r} holds dates, such as {str(values[index])!r} in "
            f"{source.place(index)}; make numbers of them, as years or days, {advice.categorical}, "
            f"or {advice.without}"
        )


def is_dates(values: pl.Series) -> bool:
    """Whether nearly all values that are not missing are dates."""
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
    """Warnings about a training table's features that are valid but probably not meant.

    ``categories`` are the columns of categories, ``named`` those that the user declared so;
    ``id_`` is the column of identifiers.
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
    """Columns that tell nothing of new records, with the reason: constants, and names of rows."""
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
    """Warnings, by column, about new records that tell a model less than those of training.

    They are of columns with many categories that are not ``known``, columns of ``dates`` that hold
    something else, and empty ``columns``.
    """
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
                    f"{', '.join(map(repr, names[:ROWS_SHOWN]))}; all of them count as missing"
                )
    return said


def _nearly_numbers(source: Source, column: str) -> str | None:
    """A warning for a column of categories that are mostly numbers, or numbers with a unit."""
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
    names = ", ".join(map(repr, columns[:ROWS_SHOWN]))
    if len(columns) > ROWS_SHOWN:
        names += f" and {len(columns) - ROWS_SHOWN} more"
    return f"column {names} has" if len(columns) == 1 else f"columns {names} have"


def names_rows(column: str, values: pl.Series) -> bool:
    """Whether a column of whole numbers only names rows, in any order.

    It does if its name says so and values repeat little; if all differ, though so many numbers
    from so small a range would repeat by chance (the birthday problem); or if all differ and are
    long numbers with as many digits.
    """
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
    """A warning about identifiers that occur more than once, if there are any."""
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


@dataclass(frozen=True)
class Source:
    """A frame, with names for it and its rows in error lines."""

    name: str
    frame: pl.DataFrame
    place: Place = row

    def reordered(self, rows: Sequence[int]) -> Source:
        """Select rows, in that order; error lines still name their old places."""
        return Source(self.name, self.frame[rows], lambda index: self.place(rows[index]))

    def check_has(self, column: str, first: str | None = None) -> None:
        """Raise DataError if there is no such column; ``first`` is a table that has it."""
        if column not in self.frame.columns:
            whose = "" if first is None else f" of {first}"
            raise DataError(
                f"{self.name} does not have the column {column!r}{whose}"
                f"{unlike(column, self.frame.columns)}"
            )


def unlike(column: str, known: Sequence[str]) -> str:
    """The end of an error line about a missing column: one like it, or those there are.

    >>> unlike("zzz", ["age", "income"])
    '; it has age, income'
    """
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return nearest(column, known) or f"; it has {', '.join(known[:SHOWN])}{more}"


def check_known(source: Source, wanted: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Refuse names of columns that the table does not have.

    ``wanted`` pairs a key of the section ``data``, with its verb, and the columns that it names.
    ConfigError lists the first such name, those like it, and the others.
    """
    known = source.frame.columns
    unknown = [(key, each) for key, columns in wanted for each in columns if each not in known]
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
    """Columns of every frame as numbers, float64 [rows, columns], and the categories of codes.

    The first frame decides which columns hold text. ``categorical`` ones are categories even where
    they hold numbers; ``numeric`` ones must hold numbers, and ``dates`` become days. DataError
    names the frame and a column that does not fit.
    """
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
    """Columns of a training table that hold dates and are not ``categorical``."""
    return [c for c in columns if c not in categorical and is_dates(source.frame[c])]


def as_days(source: Source, column: str) -> tuple[NDArray[np.float64], list[int]]:
    """A column of dates as days since 1970, NaN where missing, and the rows with other values."""
    values = source.frame[column]
    present = values if values.dtype in (pl.Date, pl.Datetime) else texts(source, column)
    found = days(present)
    odd = np.flatnonzero((found.is_null() & present.is_not_null()).to_numpy()).tolist()
    return found.fill_null(float("nan")).to_numpy(), odd


def all_days(source: Source, column: str) -> NDArray[np.float64]:
    """A training table's column of dates as days since 1970; DataError for other values."""
    found, odd = as_days(source, column)
    if odd:
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        raise DataError(
            f"{source.name}: column {column!r} holds {source.frame[column][odd[0]]!r} in "
            f"{source.place(odd[0])}{more}; {WRITTEN}, {FEATURE.categorical}, or {FEATURE.without}"
        )
    return found


def moments(source: Source, column: str | None) -> Tensor | None:
    """Time of each row, float64 [rows], in days or in a column's own unit; None without a column.

    DataError names the line of a value that is missing, or neither a date nor a number.
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
    """A column of every frame as numbers, NaN where missing; None if the first holds text."""
    first, text = numbers(sources[0], column, advice)
    if text is not None:
        return None
    there = sources[0].name
    return [first, *(only_numbers(each, column, there, advice) for each in sources[1:])]


def only_numbers(
    source: Source, column: str, there: str, advice: Advice = FEATURE
) -> NDArray[np.float64]:
    """A column as numbers, NaN where missing; DataError for text, as there was none ``there``."""
    found, text = numbers(source, column, advice)
    if text is not None:
        raise DataError(
            f"{source.name}: column {column!r} holds {source.frame[column][text]!r} in "
            f"{source.place(text)}, but only numbers in {there}"
        )
    return found


def numbers(
    source: Source, column: str, advice: Advice = FEATURE
) -> tuple[NDArray[np.float64], int | None]:
    """A column as numbers, NaN where missing, and the first row that holds text, if any.

    DataError where it holds neither, or a number that float32 cannot hold.
    """
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
    """Sort texts in the order of codes: numbers by size, then all others by name."""

    def place(text: str) -> tuple[int, float, str]:  # which depends on no other text
        try:
            number = float(text)
        except ValueError:
            return 1, 0.0, text
        return (0, number, text) if number == number else (1, 0.0, text)

    return sorted(names, key=place)


def codes(found: pl.Series, names: Sequence[str]) -> NDArray[np.float64]:
    """Each text's place among ``names``; NaN where it is missing or unknown."""
    if not names:
        return np.full(len(found), np.nan)
    places = found.cast(pl.Enum(names), strict=False).to_physical().cast(pl.Float64)
    return places.fill_null(float("nan")).to_numpy()
