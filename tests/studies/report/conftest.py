"""Folders of real, small runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.studies.conftest import Compared

from vertizo.cli.main import main


@pytest.fixture(scope="session")
def comparison(compared: Compared) -> Path:
    """Two methods, two seeds each, with their controls."""
    return compared.folder


@pytest.fixture(scope="session")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures of an attack, made by the command."""
    folder = tmp_path_factory.mktemp("report") / "attacked"
    with pytest.MonkeyPatch.context() as patch:
        command = ["attack", "direct-client", "--seeds", "2", "--set", "data.limit=60"]
        patch.setattr("sys.argv", ["vertizo", *command, "--out", str(folder)])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code in (0, None)
    return folder
