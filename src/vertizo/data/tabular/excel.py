"""Excel workbooks, as a CSV file of their first sheet would be; they need the extra excel."""

from __future__ import annotations

import warnings
from datetime import date, datetime
from pathlib import Path
from typing import Any

from vertizo.core.errors import ConfigError, DataError


def is_workbook(path: Path) -> bool:
    """Whether a file's name says so.

    >>> is_workbook(Path("loans.XLSX"))
    True
    """
    return path.suffix.lower() == ".xlsx"


def records(path: Path) -> list[tuple[int, list[str]]]:
    """The rows of the first sheet that are not blank, the header first, by their numbers from 1.

    All have as many values as the header. Dates become 2020-01-31, with a time 2020-01-31T08:30:00;
    a formula is what Excel last computed, and empty if nothing has.

    Raises:
        ConfigError: openpyxl is not there.
        DataError: damaged, empty, a value outside the header's columns, or a formula that failed.
    """
    try:
        import openpyxl
    except ImportError:
        raise ConfigError(
            f"{path} is an Excel workbook, which needs the extra: pip install 'vertizo[excel]'; "
            "or save its sheet as CSV in UTF-8"
        ) from None
    try:
        with warnings.catch_warnings(), path.open("rb") as file:
            warnings.simplefilter("ignore")  # of styles and pictures that it does not know
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # which some programs write wrongly
            rows = [
                (number, [_text(path, cell) for cell in row])
                for number, row in enumerate(sheet.iter_rows(), 1)
            ]
    except DataError:
        raise
    except Exception as error:  # of archives, of XML, of what is in it: openpyxl passes them on
        raise DataError(
            f"{path} is not a readable Excel workbook, or has a password: {error}"
        ) from None
    rows = [(number, values) for number, values in rows if any(values)]
    if not rows:
        raise DataError(f"{path} is empty: its first sheet, {sheet.title!r}, has no values")
    width = max(place for place, name in enumerate(rows[0][1], 1) if name)
    for number, values in rows:
        if any(values[width:]):
            raise DataError(
                f"{path}: row {number} has a value right of the last column, "
                f"{rows[0][1][width - 1]!r}; name its column in row {rows[0][0]}, or delete it"
            )
    return [(number, (values + [""] * width)[:width]) for number, values in rows]


def _text(path: Path, cell: Any) -> str:
    """A cell as a CSV file has it."""
    value = cell.value
    if cell.data_type == "e" and value != "#N/A":  # which is a missing value
        raise DataError(
            f"{path}: cell {cell.coordinate} holds the error {value}; mend its formula, or leave "
            "the cell empty"
        )
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, datetime) and value.time() == datetime.min.time():
        return value.date().isoformat()
    return value.isoformat() if isinstance(value, date) else str(value).strip()
