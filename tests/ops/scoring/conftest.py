"""A job that is over, and parties that score new records by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.ops.scoring.parties import Scoring, scoring_of

from vertizo.ops.scoring import callers


@pytest.fixture
def scoring(tables: Path, trained: Path, tmp_path: Path) -> Iterator[Callable[..., Scoring]]:
    """Makes a label holder that scores, of keys of the section ``scoring``; members come later."""

    with ExitStack() as stack:

        def make(**keys: Any) -> Scoring:
            file = tmp_path / "callers.yaml"
            token = callers.add(file, "crm", 1000, 100_000, replace=True)
            made = scoring_of(tables, trained, tmp_path, file, token, **keys)
            stack.callback(made.scorer.close)
            return made

        yield make
