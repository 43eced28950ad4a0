"""A job that is over, and parties that score new records by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.network.by_hand import holder_config, new_records
from tests.ops.scoring.parties import Scoring

from vertizo.core.names import Head
from vertizo.data.own_tables.keyed import FileTable
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.network.serving.trained_model import LabelHolderModel
from vertizo.ops.scoring import callers
from vertizo.ops.scoring.scorer import Scorer
from vertizo.ops.scoring.service import ScoringService


@pytest.fixture
def scoring(tables: Path, trained: Path, tmp_path: Path) -> Iterator[Callable[..., Scoring]]:
    """Makes a label holder that scores by a head, of keys of the section ``scoring``.

    Members come later.
    """

    with ExitStack() as stack:

        def make(head: Head = "private", **keys: Any) -> Scoring:
            file, notices = tmp_path / "callers.yaml", list[str]()
            token = callers.add(file, "crm", 1000, 100_000, replace=True)
            section = {"deadline": 600.0, "http": "127.0.0.1:0", "callers": file}
            section |= {"log": tmp_path / "log", **keys}
            config = holder_config(tables, trained, scoring=section)
            assert config.scoring is not None
            own = FileTable(tables / "bank.new.csv", "key", CsvFormat())
            service = ScoringService(config, LabelHolderModel(config, head), own, notices.append)
            scorer = Scorer(service, config.scoring, tmp_path, notices.append)
            stack.callback(scorer.close)
            known = list(new_records(tables, "bank").keys)
            return Scoring(tables, trained, config.scoring, service, scorer, token, notices, known)

        yield make
