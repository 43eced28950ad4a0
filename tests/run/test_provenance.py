"""When a run began, by which versions, from which files."""

from __future__ import annotations

import inspect
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from vertizo.core.errors import DataError
from vertizo.run.results import provenance


def test_a_run_that_begins_tells_when_and_of_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "loans.csv").write_text("id,income\n1,2\n")
    monkeypatch.setattr(provenance, "now", lambda: "2026-01-02T03:04:05+00:00")
    found = provenance.begun([path, None])
    assert found["started"] == "2026-01-02T03:04:05+00:00"
    assert {"vertizo", "python", "torch", "system"} <= found["versions"].keys()
    assert found["files"] == {"loans.csv": sha256(b"id,income\n1,2\n").hexdigest()}
    assert found["key"] != provenance.begun([])["key"], "each run's own"


def test_two_files_of_one_name_are_two(tmp_path: Path) -> None:
    paths = [tmp_path / name / "t.csv" for name in ("train", "test")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(path.parent.name)
    found = provenance.digests(paths)
    assert found == {str(path): provenance.sha256_of(path) for path in paths}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.csv cannot be read"):
        provenance.begun([tmp_path / "missing.csv"])


@pytest.mark.full
def test_the_packages_folder_is_the_whole_package() -> None:
    """Wherever in it the module that asks is: or else no run would name its commit."""
    assert (provenance.CODE / "py.typed").is_file()
    assert (provenance.CODE / "__main__.py").is_file()


def test_a_commit_is_of_the_package_s_own_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation within somebody's checkout is not of their commit; changed files get a +."""
    code = tmp_path / "src" / "vertizo"
    code.mkdir(parents=True)
    (code / "a.py").write_text("1")
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "x")):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    monkeypatch.setattr(provenance, "CODE", code)
    said = inspect.unwrap(provenance.commit)()
    assert len(said) >= 7
    assert head.stdout.startswith(said)
    (code / "a.py").write_text("2")
    assert inspect.unwrap(provenance.commit)() == f"{said}+"
    monkeypatch.setattr(provenance, "CODE", tmp_path / "lib" / "vertizo")
    (tmp_path / "lib" / "vertizo").mkdir(parents=True)
    assert inspect.unwrap(provenance.commit)() == ""
    monkeypatch.setenv("PATH", "")
    assert inspect.unwrap(provenance.commit)() == ""
