"""Errors in the steps of methods from outside this package, in one line that says where."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from traceback import extract_tb
from typing import Any

from vertizo.core.errors import ConfigError, VertizoError

STEPS = ("ask", "table_of", "stored", "evaluated", "told", "answered", "tell")
NO_POINTS = (
    "; outcome.losses has no points, since `evaluated` asks for none further: the losses at the "
    "table's own embeddings are outcome.plain"
)


def report_steps(kind: type) -> None:
    """Make each step that a class itself defines raise a ConfigError of one line if it fails."""
    for step in STEPS:
        given = vars(kind).get(step)
        if inspect.isfunction(given):
            setattr(kind, step, _reported(step, given))


def _reported(step: str, given: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(given)
    def called(self: Any, *values: Any, **named: Any) -> Any:
        try:
            return given(self, *values, **named)
        except VertizoError:
            raise
        except Exception as error:
            at = extract_tb(error.__traceback__)[-1]
            what = (str(error).splitlines() or [""])[0]
            losses = getattr(values[0], "losses", None) if values else None
            why = NO_POINTS if step == "told" and losses is not None and not len(losses) else ""
            raise ConfigError(
                f"method {type(self).__name__}: {step} failed in {Path(at.filename).name}, line "
                f"{at.lineno}: {type(error).__name__}: {what}{why}"
            ) from error

    return called
