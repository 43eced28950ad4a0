"""What is secret on a party's disk is its owner's alone, and goes where it belongs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests import deployments as dep
from tests.network.by_hand import begin

from vertizo.network.serving import FederationService
from vertizo.network.store import Store, root_of


@pytest.fixture(autouse=True)
def _loose_umask() -> None:
    """As of somebody whose files everybody may read."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_key_is_read_by_its_owner_alone(tmp_path: Path) -> None:
    first = root_of(tmp_path / "party")
    assert mode(tmp_path / "party" / "secret.key") == 0o600
    assert root_of(tmp_path / "party").key == first.key


def test_a_key_is_not_written_where_somebody_else_waits_for_it(tmp_path: Path) -> None:
    """A name that was there before the key is not followed, and its rights are not taken over."""
    for there in ("link", "dangling link", "open file"):
        theirs, folder = tmp_path / f"of {there}", tmp_path / there
        partial, held = folder / "secret.key.partial", None
        folder.mkdir()
        if there == "open file":
            partial.touch(0o666)
            held = partial.open("rb")
        else:
            if there == "link":
                theirs.touch()
            partial.symlink_to(theirs)
        key, path = root_of(folder).key, folder / "secret.key"
        assert not path.is_symlink(), there
        assert path.read_bytes() == key
        assert mode(path) == 0o600
        assert not theirs.exists() or theirs.read_bytes() == b""
        if held is not None:
            assert held.read() == b""
            held.close()


def test_checkpoints_are_read_by_their_owner_alone(tmp_path: Path) -> None:
    """They hold the key of the noise, and labels can be worked out from them."""
    config = dep.serve_config(tmp_path, federation={"trial": False}, **dep.PRIVATE)
    with FederationService(config) as service:
        begin(service)
    folder = tmp_path / "server"
    assert mode(folder) == mode(folder / "checkpoints") == 0o700
    found = [folder / "secret.key", folder / "ledger.sqlite", *(folder / "checkpoints").iterdir()]
    assert len(found) >= 4
    assert {path.name: mode(path) for path in found} == {path.name: 0o600 for path in found}


def test_a_store_makes_its_folder_its_owners(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    Store(tmp_path).save({"key": b"secret"})
    assert mode(tmp_path / "checkpoints") == 0o700
    assert mode(tmp_path / "checkpoints" / "last.safetensors") == 0o600
