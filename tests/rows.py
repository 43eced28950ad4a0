"""Tables of a test's rows: one case that goes through all of them and says which row failed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

Rows = Iterable[Any] | Callable[[], Iterable[Any]]


def each(names: str, table: Rows) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once for every row of a table, in one case.

    Each row has a folder of its own as ``tmp_path``, and patches of its own.

    Args:
        names: of the test's arguments, between commas.
        table: their values: one, or as many as there are names; or what makes them anew.
    """
    wanted = [name.strip() for name in names.split(",")]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def looped(*args: Any, **fixtures: Any) -> None:
            for number, row in enumerate(table() if callable(table) else table):
                values = [row] if len(wanted) == 1 else row
                given = fixtures | dict(zip(wanted, values, strict=True))
                if "tmp_path" in given:
                    given["tmp_path"] = _below(given["tmp_path"], number)
                with pytest.MonkeyPatch.context() as patch:
                    if "monkeypatch" in given:
                        given["monkeypatch"] = patch
                    try:
                        test(*args, **given)
                    except BaseException as error:
                        error.add_note(f"in row {number}: {names} = {row!r}")
                        raise

        known = inspect.signature(test)
        left = [known.parameters[name] for name in known.parameters if name not in wanted]
        looped.__signature__ = known.replace(parameters=left)  # type: ignore[attr-defined]
        return looped

    return decorate


def _below(folder: Path, number: int) -> Path:
    made = folder / f"row{number}"
    made.mkdir()
    return made
