"""A party's memory on disk: journals that are used again, and secrets that are its alone."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests import deployments as dep
from tests.network.by_hand import begin

from vertizo.core.errors import RunError
from vertizo.network.serving import store
from vertizo.network.serving.serving import FederationService
from vertizo.network.serving.store import RECORD, Journal, Slot, Store, records, root_of


def test_records_come_back_in_order_and_undone_ones_do_not(tmp_path: Path) -> None:
    chance, path = random.Random(1), tmp_path / "j"
    for segment in range(1, 30):  # over and over in one file
        journal, kept = Journal(path, segment), []
        for _ in range(chance.randrange(20)):
            kind, body = chance.randrange(4), chance.randbytes(chance.randrange(200))
            journal.append(kind, body)
            if chance.random() < 0.3:
                journal.undo()
            else:
                kept.append((kind, body))
        assert list(records(path, segment)) == kept
        with suppress(RunError):  # those of an earlier one count in no case
            assert list(records(path, segment - 1)) == [] or not kept
        journal.close()


def test_what_a_member_sent_cannot_pass_for_a_record(tmp_path: Path) -> None:
    """A record of another's, hidden in a query that is refused, or in one of an older segment."""
    path, segment = tmp_path / "j", 7
    body = b"somebody else's query"
    forged = RECORD.pack(len(body), zlib.crc32(body, segment << 8), 0) + body
    for filler in range(40):
        journal = Journal(path, segment)
        journal.append(0, bytes(filler) + forged)
        journal.undo()
        for size in range(40):
            journal.append(0, b"x" * size)
            assert (0, body) not in list(records(path, segment))
            journal.undo()
        journal.close()
        older = Journal(path, segment - 1)
        older.append(0, bytes(filler) + forged)
        older.close()
        for size in range(40):
            journal = Journal(path, segment)
            journal.append(0, b"x" * size)
            assert list(records(path, segment)) == [(0, b"x" * size)]
            journal.close()


def test_what_a_member_sent_does_not_make_a_torn_record_a_damaged_one(tmp_path: Path) -> None:
    """A power cut leaves half of its query, in which it hid what looks like a record."""
    body = b"somebody else's query"
    kept = Store(tmp_path)
    kept.save({"number": 1})
    hidden = RECORD.pack(len(body), zlib.crc32(body, 1 << 8), 0) + body
    kept.append(0, b"whole")
    kept.append(0, hidden + bytes(range(1, 200)))
    kept.close()
    path = tmp_path / "checkpoints" / "journal-1.log"
    os.truncate(path, path.stat().st_size - 100)
    loaded = Store(tmp_path).load()
    assert loaded is not None
    state, found = loaded
    assert (state["number"], list(found)) == (1, [(0, b"whole")])


def test_a_torn_or_damaged_end_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path, 3)
    journal.append(1, b"first")
    journal.append(2, b"second")
    journal.close()
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        whole = 2 if length >= 2 * RECORD.size + 11 else int(length >= RECORD.size + 5)
        assert list(records(path, 3)) == [(1, b"first"), (2, b"second")][:whole]
    changed = bytearray(content)
    changed[RECORD.size + 2] ^= 1
    path.write_bytes(bytes(changed))
    with pytest.raises(RunError, match="a record is not what was written, and others follow"):
        list(records(path, 3))
    changed = bytearray(content)
    changed[RECORD.size + 5] ^= 1  # the length of the second one, which is the last
    path.write_bytes(bytes(changed))
    assert list(records(path, 3)) == [(1, b"first")]


def test_a_full_disk_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "j", 1)
    journal.append(1, b"kept")
    written = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, parts, at: written(file, [parts[0][:4]], at))
    with pytest.raises(RunError, match="No space left on device"):
        journal.append(1, b"lost")
    monkeypatch.undo()
    assert list(records(tmp_path / "j", 1)) == [(1, b"kept")]
    journal.append(2, b"after")
    assert list(records(tmp_path / "j", 1)) == [(1, b"kept"), (2, b"after")]


def test_a_checkpoint_and_what_came_after(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load() is None
    for number in range(4):
        store.save({"number": number})
        for n in range(number):
            store.append(n, bytes([n]))
        again = Store(tmp_path)
        loaded = again.load()
        assert loaded is not None
        state, journal = loaded
        assert state == {"number": number}
        assert list(journal) == [(n, bytes([n])) for n in range(number)]
    store.clear()
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert left == {"last.safetensors", "digests"}


def test_a_slot_has_the_last_query_whole_or_none(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "query")
    assert slot.get() is None
    slot.put(b"a long query")
    slot.put(b"short")
    assert slot.get() == b"short"
    content = (tmp_path / "query").read_bytes()
    (tmp_path / "query").write_bytes(content[:10])
    assert slot.get() is None


# What is secret on a party's disk is its owner's alone, and goes where it belongs.


@pytest.fixture
def _loose_umask() -> Iterator[None]:
    """As of somebody whose files everybody may read."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("_loose_umask")
def test_a_key_is_read_by_its_owner_alone(tmp_path: Path) -> None:
    first = root_of(tmp_path / "party")
    assert mode(tmp_path / "party" / "secret.key") == 0o600
    assert root_of(tmp_path / "party").key == first.key


@pytest.mark.usefixtures("_loose_umask")
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


@pytest.mark.usefixtures("_loose_umask")
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


@pytest.mark.usefixtures("_loose_umask")
def test_a_store_makes_its_folder_its_owners(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    Store(tmp_path).save({"key": b"secret"})
    assert mode(tmp_path / "checkpoints") == 0o700
    assert mode(tmp_path / "checkpoints" / "last.safetensors") == 0o600


def test_a_journal_is_about_as_large_as_its_checkpoint_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little work its records are: a checkpoint is due at a size, too."""
    assert store.SMALL <= 32 * 2**20
    monkeypatch.setattr(store, "SMALL", 10_000)
    monkeypatch.setattr(store, "LARGEST", 50_000)
    for state, most in ((b"", 10_000), (bytes(30_000), 32_000), (bytes(100_000), 50_000)):
        kept = Store(tmp_path)
        for _ in range(3):
            kept.save({"bytes": state})
            count = 0
            while not kept.worked(0.0):
                kept.append(1, bytes(1000))
                count += 1
            assert most - 3000 <= count * (RECORD.size + 1000) <= most + 2000, (count, most)
        kept.close()
    assert max(one.stat().st_size for one in tmp_path.rglob("journal-*")) <= 52_000
