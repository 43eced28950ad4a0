"""When a run began, by which versions, from which files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from vertizo.core.errors import DataError
from vertizo.run import provenance


def test_a_run_that_begins_tells_when_and_of_what(tmp_path: Path) -> None:
    (path := tmp_path / "loans.csv").write_text("id,income\n1,2\n")
    found = provenance.begun([path, None])
    begun = datetime.fromisoformat(found["started"])
    assert timedelta(0) <= datetime.now(UTC) - begun < timedelta(seconds=30)
    assert {"vertizo", "python", "torch", "system"} <= found["versions"].keys()
    assert found["files"] == {"loans.csv": sha256(b"id,income\n1,2\n").hexdigest()}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.csv cannot be read"):
        provenance.begun([tmp_path / "missing.csv"])
