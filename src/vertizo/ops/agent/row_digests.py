"""Rows of an SQLite file that have digests of themselves, which triggers write.

SQLite finds pages that do not hang together, and no value that a disk changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from vertizo.core.errors import RunError

COLUMN = "digest TEXT NOT NULL DEFAULT ''"
"""The last of a table's columns."""


class Table(NamedTuple):
    """Which rows have digests."""

    name: str
    keys: tuple[str, ...]
    columns: str
    """All but the digest's, as SQL names them."""


def triggers(table: Table) -> str:
    """SQL that gives each row that is written a digest."""
    new = ", ".join(f"NEW.{column}" for column in table.columns.split(", "))
    same = " AND ".join(f"{key} = NEW.{key}" for key in table.keys)
    done = f"BEGIN UPDATE {table.name} SET digest = digest_of({new}) WHERE {same}; END;"
    events = ("INSERT", "UPDATE")
    return "".join(
        f"CREATE TRIGGER {table.name}_{e} AFTER {e} ON {table.name} {done}" for e in events
    )


def register(database: sqlite3.Connection) -> None:
    """Have what the triggers call."""
    database.create_function("digest_of", -1, _digest_of, deterministic=True)


def check(database: sqlite3.Connection, tables: Sequence[Table], path: Path) -> None:
    """Raise RunError unless the file's pages hang together, and rows are as they were written."""
    (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise damaged(path, found)
    for table in tables:
        for *row, digest in database.execute(f"SELECT {table.columns}, digest FROM {table.name}"):
            if _digest_of(*row) != digest:
                raise damaged(path, f"the row of {row[0]!r} is not what was written")


def damaged(path: Path, what: str) -> RunError:
    """The error that says so."""
    return RunError(f"{path} is damaged: {what}; put a copy of it back")


def _digest_of(*values: Any) -> str:
    return sha256(repr(values).encode()).hexdigest()
