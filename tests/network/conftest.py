"""Tables of real parties, and a job on them that is over."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import deployments as dep
from tests.network.by_hand import NAMES, holder_config, member, write_tables


@pytest.fixture(scope="package")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parties' tables of 500 people, and new people."""
    folder = tmp_path_factory.mktemp("tables")
    own = {"bank": ["diagnosis", "x0"], "lab": [f"x{n}" for n in range(1, 12)]}
    write_tables(folder, {**own, "clinic": [f"x{n}" for n in range(12, 30)]}, 500)
    return folder


@pytest.fixture(scope="package")
def trained(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that is over, with the same secrets in every run."""
    folder = tmp_path_factory.mktemp("trained")
    for number, party in enumerate(("run", *NAMES)):
        (folder / party).mkdir()
        (folder / party / "secret.key").write_bytes(bytes([number]) * 32)
    configs = [member(tables, folder, name) for name in NAMES]
    dep.served(folder, holder_config(tables, folder), configs)
    return folder
