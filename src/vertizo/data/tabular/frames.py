"""Reading of CSV, Excel and Parquet files as frames; a faulty file gives an error of one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from vertizo.core import digests
from vertizo.core.errors import DataError
from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.core.text.suggestions import nearest_file
from vertizo.data.tabular import csv_lines, excel
from vertizo.data.tabular.csv_lines import CsvFormat

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "null", "NULL", "?")
"""Texts that stand for a missing value in a CSV file."""

UTF8 = CsvFormat()

Place = Callable[[int], str]
"""Maps a row, counted from 0, to words by which a person finds it: ``line 7``."""


def row(index: int) -> str:
    """The place of a row in a frame that has no file with lines.

    >>> row(0)
    'row 1'
    """
    return f"row {index + 1}"


def read(path: Path, form: CsvFormat = UTF8) -> pl.DataFrame:
    """Read a CSV file (may be compressed) or workbook as text, or a Parquet file as it is.

    The name tells the format: ``.xlsx`` is a workbook, ``.parquet`` a Parquet file.

    Raises:
        DataError: it is missing, empty, damaged or not of that format.
        ConfigError: it is a workbook, and openpyxl is not installed.
        RunError: it differs from the digest that its folder has of it.
    """
    return read_as_written(path, form)[0]


def read_as_written(
    path: Path, form: CsvFormat = UTF8, *, may_be_empty: bool = False
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`read` a file, and give the same rows also with their texts exactly as in the file.

    A table that ``may_be_empty`` has columns, and perhaps no rows.
    """
    if not path.is_file():
        if path.is_dir():
            raise DataError(f"{path} is a folder, not a file")
        raise DataError(f"{path} is missing{nearest_file(path)}")
    try:
        if digests.is_listed(path):  # as an agent's aligned table is
            digests.check(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if excel.is_workbook(path):
        return _cleaned(_sheet(path), path, may_be_empty)
    if not is_parquet(path):
        return _cleaned(_csv(path, form), path, may_be_empty)
    try:
        # Not memory-mapped, and not a pattern: the name may have brackets in it.
        frame = pl.read_parquet(path, glob=False, hive_partitioning=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {first_line(error)}") from None
    return (found := _filled(frame, path, may_be_empty)), found


def is_parquet(path: Path) -> bool:
    """Whether a file's name ends in .parquet."""
    return path.suffix.lower() == ".parquet"


def csv_text(
    path: Path, form: CsvFormat = UTF8, *, names: Sequence[str] | None = None, skip: int = 0
) -> pl.DataFrame:
    """Read a CSV file with every value as text, without spaces around it.

    Columns of numbers are found later, for a training and a test file alike. The file may be
    compressed by gzip. ``names`` are for a file without a header; ``skip`` lines come before the
    header or the first record. DataError where it is missing, empty, ragged or not of that
    encoding.
    """
    return _cleaned(_csv(path, form, names=names, skip=skip), path)[0]


def _csv(
    path: Path, form: CsvFormat, *, names: Sequence[str] | None = None, skip: int = 0
) -> pl.DataFrame:
    own = csv_lines.header(path, form) if names is None else None
    if csv_lines.check_records(path, form, skip, None if names is None else len(names)):
        frame = _by_python(path, form, skip, names)
    else:
        try:
            frame = pl.read_csv(
                path if form.encoding == "utf-8" else _recoded(path, form),
                separator=form.delimiter,
                has_header=names is None,
                new_columns=names,
                schema=None if names is None else dict.fromkeys(names, pl.String),
                skip_lines=skip,
                infer_schema=False,
                glob=False,
            )
        except pl.exceptions.NoDataError:
            raise DataError(f"{path} is empty") from None
        except (pl.exceptions.PolarsError, OSError) as error:
            frame = _by_python(path, form, skip, names, error)
    if own is not None and len(own) == frame.width:
        frame.columns = own
    return frame


def _cleaned(
    written: pl.DataFrame, path: Path, may_be_empty: bool = False
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Strip texts, null where missing, and give them also as written; blank rows are dropped."""
    stripped = pl.all().str.strip_chars()
    frame = written.select(
        pl.when(stripped.is_in(MISSING)).then(None).otherwise(stripped).name.keep()
    )
    # Blank lines, as at the end of the files of the Adult data set, are no records.
    there = frame.select(~pl.all_horizontal(pl.all().is_null())).to_series()
    return _filled(frame.filter(there), path, may_be_empty), written.filter(there)


def _sheet(path: Path) -> pl.DataFrame:
    (number, names), *rows = excel.records(path)
    names = [name.strip() for name in names]
    csv_lines.check_names(path, f"row {number}", names)
    values = [row for _, row in rows]
    return pl.DataFrame(values, dict.fromkeys(names, pl.String), orient="row")


def _recoded(path: Path, form: CsvFormat) -> bytes:
    """A whole file in UTF-8, the only encoding that Polars reads."""
    with csv_lines.text_of(path, form) as file:
        return file.read().encode()


def _by_python(
    path: Path,
    form: CsvFormat,
    skip: int,
    names: Sequence[str] | None,
    error: Exception | None = None,
) -> pl.DataFrame:
    """Read a file by Python, slowly, which Polars cannot read or misreads (quotes in values).

    ``error`` is that of Polars, if it was tried.
    """
    try:
        rows = [values for _, values in csv_lines.records(path, form, skip)]
    except (OSError, EOFError, ValueError) as own:
        raise DataError(f"{path} is not a readable CSV file: {first_line(error or own)}") from None
    columns, rows = (rows[0], rows[1:]) if names is None else (names, rows)
    return pl.DataFrame(rows, dict.fromkeys(columns, pl.String), orient="row")


def place_in(path: Path, form: CsvFormat) -> Place:
    """Words for a row of `read`, counted from 0: its line or its row in the sheet, if known."""

    def line(index: int) -> str:
        found = 0 if is_parquet(path) else line_of(path, form, index)
        word = "row" if excel.is_workbook(path) else "line"
        return f"{word} {found}" if found else row(index)

    return line


def line_of(path: Path, form: CsvFormat, index: int) -> int:
    """The line of a CSV file, or row of a workbook, at which row ``index`` of `read` begins.

    The index counts from 0; the result is 0 if it is unknown.
    """
    try:
        lines = excel.records(path) if excel.is_workbook(path) else csv_lines.records(path, form)
        below = islice(lines, 1, None)
        kept = (line for line, values in below if not {v.strip() for v in values} <= {*MISSING})
        return next(islice(kept, index, None), 0)
    except (OSError, EOFError, ValueError):
        return 0


def _filled(frame: pl.DataFrame, path: Path, may_be_empty: bool) -> pl.DataFrame:
    if not frame.width:
        raise DataError(f"{path} has no columns")
    if not frame.height and not may_be_empty:
        raise DataError(f"{path} has no rows, only the columns {', '.join(frame.columns[:20])}")
    return frame


def first_line(error: Exception) -> str:
    """The first line of an error's message, or else its class."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__
