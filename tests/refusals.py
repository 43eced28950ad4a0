"""Bad input that must be refused: row by row of a table, or in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.words import says


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


@contextmanager
def one_line(
    error: type[Exception], *words: str, match: str | None = None, case: object = ""
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Something within raises that error; its text is one line, with all these words in it."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value), case
    says(str(caught.value), *words, case=case)
