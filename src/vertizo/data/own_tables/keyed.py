"""Look-up of a party's current rows by their keys, for online scores.

A CSV, Excel or Parquet file is held in memory and read again once it was replaced. A table of an
SQLite database is queried each time, and may be written to meanwhile.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from vertizo.core.errors import ConfigError, DataError, UserError
from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.core.system import file_mark
from vertizo.core.text.messages import Alarm
from vertizo.data.alignment import keys_of, known_keys
from vertizo.data.tabular import frames
from vertizo.data.tabular.columns import Source
from vertizo.data.tabular.csv_lines import CsvFormat

DATABASES = (".db", ".sqlite", ".sqlite3")
LOOK_SECONDS = 1.0
"""Seconds between two checks whether a file was replaced."""
BUSY_SECONDS = 1.0
"""Seconds until a database that somebody writes to counts as unreadable."""
INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""Keys that SQLite may hold as numbers."""


class KeyedTable(Protocol):
    """The interface of tables that give rows by key, to any thread."""

    name: str
    """The table's name in messages."""

    def need(self, columns: Sequence[str]) -> None:
        """Require these columns of all rows from now on; DataError where one is missing."""

    def rows(self, keys: Sequence[str]) -> tuple[list[int], pl.DataFrame]:
        """Places in ``keys`` of those that the table has, in order, and their rows.

        DataError where the table cannot be read.
        """


class FileTable:
    """A file as a `KeyedTable`, held in memory.

    DataError where it cannot be read, or a key is missing or occurs twice.
    """

    def __init__(
        self,
        path: Path,
        column: str,
        form: CsvFormat,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.name = str(path)
        self._path, self._column, self._form, self._tell = path, column, form, tell
        self._needed: Sequence[str] = ()
        self._known = file_mark(self._path)
        self._looked = time.monotonic()
        self._read()

    def need(self, columns: Sequence[str]) -> None:
        """See `KeyedTable.need`."""
        self._needed = columns
        _check_has(self.name, self._held[1], columns)

    def rows(self, keys: Sequence[str]) -> tuple[list[int], pl.DataFrame]:
        """See `KeyedTable.rows`; if a new file is no valid table, rows come from the last one."""
        if (now := time.monotonic()) - self._looked > LOOK_SECONDS:
            self._looked = now
            mark = file_mark(self._path)
            if mark not in (self._known, None):
                self._known = mark
                try:
                    self._read()
                except UserError as error:
                    self._tell(Alarm(f"{error}; scores come from the file of before"))
                else:
                    self._tell(f"{self.name} was read anew: {len(self._held[0]):,} records")
        rows, frame = self._held  # of one file, whatever another thread reads meanwhile
        found = [(place, rows.get(key)) for place, key in enumerate(keys)]
        there = [(place, row) for place, row in found if row is not None]
        return [place for place, _ in there], frame[[row for _, row in there]]

    def _read(self) -> None:
        frame = frames.read(self._path, self._form)
        place = frames.place_in(self._path, self._form)
        keys = keys_of(frame, self._column, self.name, place)
        _check_has(self.name, frame, self._needed)
        self._held = {key: row for row, key in enumerate(keys)}, frame


class DatabaseTable:
    """A table of an SQLite database as a `KeyedTable`; it is only read.

    Raises:
        ConfigError: no table was named and there are several, or none has that name.
        DataError: it is no database, or has no such column, or no index on it.
    """

    def __init__(self, path: Path, column: str, table: str | None) -> None:
        if not path.is_file():
            raise DataError(f"{path} is missing")
        self._path, self._column = path, column
        self.name = str(path)
        with self._open() as base:
            query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
            names = [name for (name,) in base.execute(query)]
            if table is None and len(names) != 1:
                raise ConfigError(
                    f"{path} has {len(names)} tables ({', '.join(names)}); name one by --table"
                )
            self._table = names[0] if table is None else table
            if self._table not in names:
                raise ConfigError(
                    f"--table is {self._table!r}, which {path} lacks; it has {', '.join(names)}"
                )
            self.name = f"{path}, table {self._table!r}"
            known = "SELECT name FROM pragma_table_info(?)"
            self._columns = [name for (name,) in base.execute(known, (self._table,))]
            if column not in self._columns:
                raise DataError(
                    f"{self.name} does not have the column {column!r} of identifiers; it has "
                    f"{', '.join(self._columns)}"
                )
            plan = base.execute(f"EXPLAIN QUERY PLAN {self._query()}", ("[]",))
            if any(str(row[3]).startswith("SCAN ") and "json_each" not in row[3] for row in plan):
                raise DataError(
                    f"{self.name} has no index on {column!r}, so that each score would read all of "
                    f"it; CREATE UNIQUE INDEX by_key ON {_name(self._table)} ({_name(column)})"
                )

    def need(self, columns: Sequence[str]) -> None:
        """See `KeyedTable.need`; the columns are those that the table had when this was made."""
        _check_has(self.name, pl.DataFrame(schema=self._columns), columns)

    def rows(self, keys: Sequence[str]) -> tuple[list[int], pl.DataFrame]:
        """See `KeyedTable.rows`; a key that occurs twice counts as missing."""
        with self._open() as base:
            # In a column without a type, 7 is not '7'.
            numbers = [int(key) for key in keys if INTEGER.fullmatch(key)]
            cursor = base.execute(self._query(), (json.dumps([*keys, *numbers]),))
            names = [column[0] for column in cursor.description]
            rows = [[self._text_of(value) for value in row] for row in cursor]
        frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")
        places: dict[str | None, list[int]] = {}
        for row, key in enumerate(known_keys(frame, self._column, self.name)):
            places.setdefault(key, []).append(row)
        found = [(place, places.get(key, [])) for place, key in enumerate(keys)]
        there = [(place, rows[0]) for place, rows in found if len(rows) == 1]
        return [place for place, _ in there], frame[[row for _, row in there]]

    def _text_of(self, value: str | float | bytes | None) -> str | None:
        """A value as text, as a CSV file of the table would have it."""
        if isinstance(value, bytes):
            return f"{len(value)} bytes"  # which is no number; columns that are not used may be so
        if isinstance(value, str):
            return None if (text := value.strip()) in frames.MISSING else text
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return None if value is None else str(value)

    def _query(self) -> str:
        column = _name(self._column)
        wanted = f"{column} IN (SELECT value FROM json_each(?))"
        return f"SELECT * FROM {_name(self._table)} WHERE {wanted}"

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the database to read it; DataError where SQLite fails inside the block."""
        place = f"file:{quote(str(self._path.absolute()))}?mode=ro"
        try:
            with closing(sqlite3.connect(place, uri=True, timeout=BUSY_SECONDS)) as base:
                # What is no text costs its own record's score, and not everybody's.
                base.text_factory = partial(str, encoding="utf-8", errors="replace")
                yield base
        except sqlite3.Error as error:
            raise DataError(f"{self.name} cannot be read: {error}") from None


def keyed_table(
    path: Path,
    column: str,
    form: CsvFormat,
    table: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> KeyedTable:
    """Open a database or a file, by its ending; ``table`` is for a database.

    Errors are those of `DatabaseTable` and `FileTable`.
    """
    if path.suffix in DATABASES:
        return DatabaseTable(path, column, table)
    if table is not None:
        raise ConfigError(
            f"--table {table} is for a database ({', '.join(DATABASES)}), and {path} is none"
        )
    return FileTable(path, column, form, tell)


def _check_has(name: str, frame: pl.DataFrame, columns: Sequence[str]) -> None:
    source = Source(name, frame)
    for column in columns:
        source.check_has(column)


def _name(text: str) -> str:
    """Quote a name for SQL."""
    return '"' + text.replace('"', '""') + '"'
