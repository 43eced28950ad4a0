"""Tables of real parties, and a job on them that is over."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import deployments as dep
from tests.network.by_hand import NAMES, holder_config, member, write_tables
from tests.once import Once

from vertizo.run.results import checkpoint


@pytest.fixture(scope="package")
def tables(once: Once) -> Path:
    """Three parties' tables of 500 people, and new people."""
    own = {"bank": ["diagnosis", "x0"], "lab": [f"x{n}" for n in range(1, 12)]}

    def make(folder: Path) -> None:
        folder.mkdir()
        write_tables(folder, {**own, "clinic": [f"x{n}" for n in range(12, 30)]}, 500)

    return once("tables", make)


@pytest.fixture(scope="package")
def trained(tables: Path, once: Once) -> Path:
    """The folder of a job that is over, with the same secrets in every run."""

    def make(folder: Path) -> None:
        for number, party in enumerate(("run", *NAMES)):
            (folder / party).mkdir(parents=True)
            checkpoint.keep(folder / party / "secret.key", bytes([number]) * 32)
        configs = [member(tables, folder, name) for name in NAMES]
        dep.served(folder, holder_config(tables, folder), configs)

    return once("served", make)
