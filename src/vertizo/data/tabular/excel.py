"""Reading of Excel workbooks, as a CSV file of the sheet would be (extra ``excel``)."""

from __future__ import annotations

import re
import warnings
import zipfile
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from vertizo.core.errors import ConfigError, DataError


def is_workbook(path: Path) -> bool:
    """Whether a file's name ends in .xlsx.

    >>> is_workbook(Path("loans.XLSX"))
    True
    """
    return path.suffix.lower() == ".xlsx"


def records(path: Path) -> list[tuple[int, list[str]]]:
    """Read rows that are not blank, the header first, with their numbers from 1.

    They are of the first sheet that is not hidden; all have as many values as the header. Dates
    become 2020-01-31, with a time 2020-01-31T08:30:00, and durations and times of day seconds. A
    formula has the value that Excel last computed, or none. Merged cells all have the value that
    they show.

    Raises:
        ConfigError: openpyxl is not installed.
        DataError: the file is damaged or empty, has a value outside the header's columns, or a
            formula that failed.
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
            book = openpyxl.load_workbook(file, read_only=not merges(path), data_only=True)
            shown = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
            sheet = shown[0]
            if book.read_only:
                sheet.reset_dimensions()  # which some programs write wrongly
                merged: dict[tuple[int, int], Any] = {}
            else:
                merged = {
                    place: sheet.cell(several.min_row, several.min_col)
                    for several in sheet.merged_cells.ranges
                    for place in several.cells
                }
            rows = [
                (
                    number,
                    [_text(path, merged.get((number, c), cell)) for c, cell in enumerate(r, 1)],
                )
                for number, r in enumerate(sheet.iter_rows(), 1)
            ]
    except DataError:
        raise
    except Exception as error:  # of archives, of XML, of what is in it: openpyxl passes them on
        raise DataError(
            f"{path} is not a readable Excel workbook, or has a password: {error}"
        ) from None
    rows = [(number, values) for number, values in rows if _any(values)]
    if not rows:
        raise DataError(f"{path} is empty: its first sheet, {sheet.title!r}, has no values")
    width = max(place for place, name in enumerate(rows[0][1], 1) if name.strip())
    for number, values in rows:
        if _any(values[width:]):
            raise DataError(
                f"{path}: row {number} has a value right of the last column, "
                f"{rows[0][1][width - 1]!r}; name its column in row {rows[0][0]}, or delete it"
            )
    return [(number, (values + [""] * width)[:width]) for number, values in rows]


def merges(path: Path) -> bool:
    """Whether some sheet has merged cells; openpyxl tells it only of a workbook held in memory."""
    with zipfile.ZipFile(path) as packed:
        return any(
            b"mergeCell " in packed.read(name)
            for name in packed.namelist()
            if re.fullmatch(r"/?xl/worksheets/[^/]+\.xml", name)
        )


def _any(values: list[str]) -> bool:
    return any(map(str.strip, values))


def _text(path: Path, cell: Any) -> str:
    """A cell as text, as a CSV file has it; DataError for a failed formula."""
    value = cell.value
    if cell.data_type == "e" and value != "#N/A":  # which is a missing value
        raise DataError(
            f"{path}: cell {cell.coordinate} holds the error {value}; mend its formula, or leave "
            "the cell empty"
        )
    if value is None:
        return ""
    if isinstance(value, time):
        value = datetime.combine(date.min, value) - datetime.min
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, datetime) and value.time() == datetime.min.time():
        return value.date().isoformat()
    return value.isoformat() if isinstance(value, date) else str(value)
