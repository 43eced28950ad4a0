"""The list of a folder's digests: what it tells, and what a kill at any moment leaves."""

from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path

import pytest
from tests.damage import KINDS, damage
from tests.failing_disk import disk_below

from vertizo.core import digests
from vertizo.core.errors import RunError


def write(path: Path, content: bytes) -> None:
    with digests.replacing(path, sha256(content).hexdigest()):
        path.with_suffix(".partial").write_bytes(content)
        path.with_suffix(".partial").replace(path)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"", b"one", b"two", b"two"):
        write(path, content)
        assert digests.content(path) == content
        digests.check(path)
    with pytest.raises(FileNotFoundError):
        digests.content(tmp_path / "absent")


def test_damage_is_one_line(tmp_path: Path) -> None:
    path, chance = tmp_path / "file", random.Random(0)
    write(path, b"before")
    for _ in range(20):
        for kind in KINDS:
            write(path, chance.randbytes(50))
            damage(path, kind, chance)
            for read in (digests.content, digests.check):
                with pytest.raises(RunError, match="is damaged or was changed: its SHA-256") as e:
                    read(path)
                assert "\n" not in str(e.value)
    write(path, b"first")
    older = path.read_bytes()
    write(path, b"second")
    path.write_bytes(older)
    with pytest.raises(RunError, match="was changed"):
        digests.content(path)


def test_damage_to_the_list_changes_no_content(tmp_path: Path) -> None:
    path, chance = tmp_path / "file", random.Random(1)
    refused = 0
    for _ in range(100):
        for content in (b"before", b"after"):
            write(path, content)
        damage(tmp_path / digests.NAME, chance.choice(KINDS), chance)
        try:
            assert digests.content(path) == b"after"
        except RunError:
            refused += 1
        (tmp_path / digests.NAME).unlink()
    assert 0 < refused < 90


def test_a_kill_at_any_moment_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """Even one kill after the other, at different moments."""
    chance = random.Random(2)
    sites = [*((call, digests.NAME) for call in ("open", "write", "fsync")), None]
    path, whole = tmp_path / "file", {b""}
    write(path, b"")
    for number in range(300):
        content = b"%d" % number
        with disk_below(tmp_path) as disk:
            site = chance.choice(sites)
            if site is not None:
                disk.fail_at(site, chance.choice((1, 2)))
            try:
                write(path, content)
                whole = {content}
            except OSError:
                whole |= {content}
        assert digests.content(path) in whole
        whole = {path.read_bytes()} | ({content} & whole)
    assert (tmp_path / digests.NAME).stat().st_size < digests.MOST + 200


def test_a_long_list_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MOST", 1000)
    for number in range(100):
        for name in ("one", "two"):
            write(tmp_path / name, b"%d" % number)
    assert (tmp_path / digests.NAME).stat().st_size < 1200
    assert digests.content(tmp_path / "one") == digests.content(tmp_path / "two") == b"99"


def test_files_of_an_older_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("old", "other"):
        (tmp_path / name).write_bytes(b"of before")
    assert digests.content(tmp_path / "old") == b"of before"
    write(tmp_path / "new", b"of now")
    assert digests.content(tmp_path / "old") == b"of before"
    assert len(caplog.messages) == 1
    write(tmp_path / "old", b"of now")
    (tmp_path / "old").write_bytes(b"of noon")
    with pytest.raises(RunError):
        digests.content(tmp_path / "old")
    digests.check(tmp_path / "other")
    (tmp_path / "stranger").write_bytes(b"x")
    with pytest.raises(RunError):
        digests.check(tmp_path / "stranger")


def test_a_folder_that_is_adopted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"of before")
    digests.adopt(tmp_path)
    digests.check(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"of beforf")
    for _ in range(2):
        with pytest.raises(RunError):
            digests.check(tmp_path / "file")
        digests.adopt(tmp_path)


def test_rows_have_digests_of_their_own() -> None:
    row = {"round": 3, "loss": float("nan"), "words": "ε"}
    written = digests.with_digest(row)
    assert digests.without_digest(written) == row | {"loss": None}
    assert digests.without_digest(row) is row
    with pytest.raises(ValueError, match="not what was written"):
        digests.without_digest(written | {"round": 4})
    *rest, (_, digest) = written.items()
    with pytest.raises(ValueError, match="not what was written"):
        digests.without_digest({**dict(rest), "sxa256": digest})
