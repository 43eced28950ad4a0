"""CSV and Parquet files as frames, and one line for what is wrong with a file."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from vertizo.errors import DataError

if TYPE_CHECKING:
    import polars as pl

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")
"""What stands for a missing value in a CSV file."""


def read(path: Path, delimiter: str = ",") -> pl.DataFrame:
    """A CSV file (may be compressed), as text, or a Parquet file (``.parquet``), as it is.

    Raises:
        DataError: missing, empty, damaged or not of that format.
    """
    if not path.is_file():
        raise DataError(f"{path} is {'a folder, not a file' if path.is_dir() else 'missing'}")
    if path.suffix == ".parquet":
        return _parquet(path)
    return csv_text(path, delimiter)


def _parquet(path: Path) -> pl.DataFrame:
    import polars as pl

    try:
        # Not memory-mapped, and not a pattern: the name may have brackets in it.
        frame = pl.read_parquet(path, glob=False, hive_partitioning=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {_first(error)}") from None
    return _filled(frame, path)


def csv_text(
    path: Path, delimiter: str, *, names: Sequence[str] | None = None, skip: int = 0
) -> pl.DataFrame:
    """A CSV file with every value as text, without spaces around it.

    What is a number is decided later, for a training and a test file alike.

    Args:
        path: may be compressed by gzip or Zstandard.
        delimiter: one character.
        names: of the columns, for a file without a header.
        skip: lines before the header or the first record.

    Raises:
        DataError: missing, empty, ragged or not UTF-8.
    """
    import polars as pl

    if names is None:
        _check_header(path, delimiter)
    try:
        frame = pl.read_csv(
            path,
            separator=delimiter,
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
        if "utf-8" in str(error).lower():
            raise DataError(f"{path} is not UTF-8 text; save it as UTF-8") from None
        _check_lines(path, delimiter, skip, None if names is None else len(names))
        raise DataError(f"{path} is not a readable CSV file: {_first(error)}") from None
    # Polars fills a short line with missing values. Such a line has none in the last column.
    if frame.width > 1 and frame.height and frame.to_series(frame.width - 1).null_count():
        _check_lines(path, delimiter, skip, frame.width)
    stripped = pl.all().str.strip_chars()
    frame = frame.select(
        pl.when(stripped.is_in(MISSING)).then(None).otherwise(stripped).name.keep()
    )
    # Blank lines, as at the end of the files of the Adult data set, are no records.
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    return _filled(frame, path)


def line_of(path: Path, delimiter: str, row: int) -> int:
    """The line of a CSV file in which row number ``row``, from 0, of `read` ends; 0 if unknown."""
    try:
        with _opened(path) as file:
            reader = csv.reader(file, delimiter=delimiter)
            next(reader, None)
            records = (values for values in reader if not {v.strip() for v in values} <= {*MISSING})
            for _ in islice(records, row + 1):
                pass
            return reader.line_num
    except (OSError, EOFError, ValueError, csv.Error):
        return 0


def _filled(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    if not frame.width:
        raise DataError(f"{path} has no columns")
    if not frame.height:
        raise DataError(f"{path} has no rows, only the columns {', '.join(frame.columns[:20])}")
    return frame


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    opener = gzip.open if packed else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        yield file


def _check_header(path: Path, delimiter: str) -> None:
    """Refuse two columns of one name, which Polars would rename."""
    try:
        with _opened(path) as file:
            names = next(csv.reader(file, delimiter=delimiter), [])
    except (OSError, EOFError, ValueError, csv.Error):
        return  # Polars will say what is wrong, or knows this compression.
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two columns named {twice!r}")


def _check_lines(path: Path, delimiter: str, skip: int, width: int | None) -> None:
    """Refuse a line that has more or fewer values than the first, by its number.

    Raises:
        DataError: such a line.
    """
    try:
        with _opened(path) as file:
            for _ in range(skip):
                next(file, None)
            reader = csv.reader(file, delimiter=delimiter)
            for values in reader:
                if width is None:
                    width = len(values)
                elif values and len(values) != width:
                    raise DataError(
                        f"{path}: line {reader.line_num + skip} has {len(values)} values where "
                        f"{width} are expected"
                    )
    except (OSError, EOFError, ValueError, csv.Error):
        return
