"""What texts say: outputs, pages, and the one line of an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def says(text: str, *words: str, case: object = "") -> None:
    """All these words are in the text; a failure names the case, and those that are missing."""
    missing = [word for word in words if word not in text]
    assert not missing, f"{case}: {missing} not in {text!r}"


@contextmanager
def one_line(
    error: type[Exception], *words: str, match: str = "", case: object = ""
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Something within raises that error; its text is one line, with all these words in it."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value), case
    says(str(caught.value), *words, case=case)
