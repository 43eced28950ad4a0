"""Tables of a test's rows: one case that goes through all of them and says which row failed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

Rows = Iterable[Any] | Callable[[], Iterable[Any]]
FULL = pytest.param("full", marks=pytest.mark.full)


def pairs(some: Iterable[Any], others: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Every value of both, in as few pairs as that takes: for the gate's rows of a product."""
    one, other = list(some), list(others)
    length = max(len(one), len(other))
    return [(one[turn % len(one)], other[turn % len(other)]) for turn in range(length)]


def examples(most: int) -> int:
    """How many examples Hypothesis makes where the full tier has ``most``: in the gate a fifth."""
    full = settings.default.max_examples >= settings.get_profile("full").max_examples
    return most if full else max(most // 5, 10)


def each(
    names: str, table: Rows, gate: Iterable[Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once for every row of a table, in one case.

    Each row has a folder of its own as ``tmp_path``, and patches of its own.

    Args:
        names: of the test's arguments, between commas.
        table: their values: one, or as many as there are names; or what makes them anew.
        gate: those of the rows that belong to the gate. The others are a case of the full tier;
            a test that has an argument ``rows`` is told which it is: "gate" or "full".
    """
    wanted = [name.strip() for name in names.split(",")]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def looped(*args: Any, **fixtures: Any) -> None:
            rows = list(table() if callable(table) else table)
            if gate is not None:
                chosen = list(gate)
                assert all(row in rows for row in chosen), "the gate's rows are none of the table"
                own = (fixtures["rows"] if tells else fixtures.pop("rows")) == "gate"
                rows = [row for row in rows if (row in chosen) == own]
            for number, row in enumerate(rows):
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
        tells = "rows" in known.parameters
        if gate is not None and not tells:
            left.append(inspect.Parameter("rows", inspect.Parameter.KEYWORD_ONLY))
        looped.__signature__ = known.replace(parameters=left)
        if gate is None:
            return looped
        return pytest.mark.parametrize("rows", ["gate", FULL])(looped)

    return decorate


def _below(folder: Path, number: int) -> Path:
    made = folder / f"row{number}"
    made.mkdir()
    return made
