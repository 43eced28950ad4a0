"""What is wrong is refused in one line that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from vertizo.core.errors import UserError


def refused(
    words: Iterable[str],
    kind: type[UserError],
    call: Callable[..., object],
    *args: Any,
    **more: Any,
) -> str:
    """The one line that a call is refused in, which has all these words."""
    try:
        call(*args, **more)
    except kind as error:
        line = str(error)
    else:
        pytest.fail(f"not refused: {args} {more}")
    assert line
    assert "\n" not in line, f"{args} {more}"
    absent = [word for word in words if word not in line]
    assert not absent, f"{args} {more}: {absent} not in {line!r}"
    return line
