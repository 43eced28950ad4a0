"""Loops in place of parameter sets: one test runs all its rows, and says which of them failed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def each(names: str, rows: Iterable[Any] | Callable[[], Iterable[Any]]) -> Callable[[Test], Test]:
    """Call a test once for each row, as one test; fixtures are shared between the rows.

    Args:
        names: of the test's arguments that rows give, with commas between.
        rows: a value each, or a tuple of values for several names; or what makes them, for each
            run anew.
    """
    looped = [name.strip() for name in names.split(",")]

    def decorate(test: Test) -> Test:
        def loop(*args: Any, **fixtures: Any) -> None:
            for row in rows() if callable(rows) else rows:
                values = dict(zip(looped, row if len(looped) > 1 else (row,), strict=True))
                try:
                    test(*args, **fixtures, **values)
                except BaseException as error:
                    error.add_note(f"with {values}")
                    raise

        signature = inspect.signature(test)
        left = [part for name, part in signature.parameters.items() if name not in looped]
        vars(loop)["__signature__"] = signature.replace(parameters=left)
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(loop, name, getattr(test, name))
        vars(loop)["pytestmark"] = list(getattr(test, "pytestmark", ()))
        return loop

    return decorate
