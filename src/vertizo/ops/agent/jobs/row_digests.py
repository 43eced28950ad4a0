"""Digests of rows in an SQLite file, written by triggers, which reveal damage.

SQLite itself finds pages that do not fit together, but no value that a disk changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from vertizo.core.errors import RunError

COLUMN = "digest TEXT NOT NULL DEFAULT ''"
"""SQL of the column with the digest, the last of a table."""


class Table(NamedTuple):
    """A table whose rows have digests."""

    name: str
    keys: tuple[str, ...]
    columns: str
    """Its columns as SQL names them, without the digest's."""


def triggers(table: Table) -> str:
    """SQL of the triggers that give each written row its digest."""
    new = ", ".join(f"NEW.{column}" for column in table.columns.split(", "))
    same = " AND ".join(f"{key} = NEW.{key}" for key in table.keys)
    done = f"BEGIN UPDATE {table.name} SET digest = digest_of({new}) WHERE {same}; END;"
    events = ("INSERT", "UPDATE")
    return "".join(
        f"CREATE TRIGGER {table.name}_{e} AFTER {e} ON {table.name} {done}" for e in events
    )


def register(database: sqlite3.Connection) -> None:
    """Register the function that the triggers call."""
    database.create_function("digest_of", -1, _digest_of, deterministic=True)


def check(database: sqlite3.Connection, tables: Sequence[Table], path: Path) -> None:
    """Raise RunError unless the file's pages fit together, and rows are as they were written."""
    (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise damaged(path, found)
    for table in tables:
        for *row, digest in database.execute(f"SELECT {table.columns}, digest FROM {table.name}"):
            if _digest_of(*row) != digest:
                raise damaged(path, f"the row of {row[0]!r} is not what was written")


def damaged(path: Path, what: str) -> RunError:
    """The RunError for a damaged file."""
    return RunError(f"{path} is damaged: {what}; put a copy of it back")


def _digest_of(*values: Any) -> str:
    return sha256(repr(values).encode()).hexdigest()
