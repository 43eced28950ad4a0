"""Folders of real, small runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.studies.report.pages import EXACT, ran

from vertizo.cli.main import main


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds each, with their controls."""
    folder = tmp_path_factory.mktemp("report") / "compared"
    for label in ("vafl", "dpzv"):  # not in the order of the alphabet
        for seed in (0, 1):
            for control in ("none", "frozen", "random"):
                end = "" if control == "none" else f"-{control}"
                own = (f"method.name={label}", f"seed={seed}", f"control={control}")
                ran(folder / label / f"seed{seed}{end}", *own, "simulation.stragglers={1: 6}")
    content = {
        "command": "vertizo compare --methods vafl,dpzv",
        "methods": {"vafl": {}, "dpzv": {}},
    }
    (folder / "comparison.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an exact guarantee."""
    return ran(tmp_path_factory.mktemp("report") / "private", *EXACT)


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
