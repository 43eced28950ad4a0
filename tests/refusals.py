"""Bad input that must be refused, row by row of a table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest


def refused(
    case: object,
    error: type[Exception] | tuple[type[Exception], ...],
    call: Callable[..., object],
    *arguments: Any,
    match: str = "",
    **options: Any,
) -> None:
    """The call raises that error, with words that match; if not, the failure names the case."""
    try:
        call(*arguments, **options)
    except error as found:
        if not re.search(match, str(found)):
            pytest.fail(f"{case}: {found}")
    else:
        pytest.fail(f"{case} was not refused")
