"""A ledger that was rolled back, copied, changed or damaged does not start, and says so."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.refusals import refused

from vertizo.core.errors import RunError
from vertizo.privacy.accounting.events import LedgerBudget, SecretSteps
from vertizo.privacy.ledger import file as ledger_file
from vertizo.privacy.ledger.base import REPLY, Entry, Row, Tally
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.ledger.witness import Head, Witness, state_folder

BUDGET = LedgerBudget("records", records=9, clients=2, share=1000, epsilon=1.0, delta=1e-5)


class Place:
    """A ledger that answered a few queries, and its witness."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "records" / "ledger.sqlite"
        self.path.parent.mkdir()
        self.witnesses = folder / "witnesses"
        self.number = 0
        DurableLedger.create(self.path, BUDGET, self.witnesses)
        self.answer(5)

    @property
    def witness(self) -> Path:
        (path,) = self.witnesses.iterdir()
        return path

    def open(self, path: Path | None = None) -> DurableLedger:
        return DurableLedger.open(path or self.path, "run", self.witnesses)

    def answer(self, times: int) -> None:
        with self.open() as ledger:
            self.answer_with(ledger, times)

    def answer_with(self, ledger: DurableLedger, times: int) -> None:
        for _ in range(times):
            number, self.number = self.number, self.number + 1
            ids = torch.tensor([number % 9, (number + 1) % 9])
            ledger.commit([Entry(number % 2, number, b"q%d" % number, ids, 1, b"r%d" % number)])

    def refused(self, words: str, path: Path | None = None) -> None:
        """It does not open; the message is one line."""
        with pytest.raises(RunError, match=words) as error:
            self.open(path)
        assert "\n" not in str(error.value)

    def change(self, statement: str, *values: Any) -> None:
        """As somebody would who has the file and SQLite."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            database.execute("DROP TRIGGER log_is_kept")
            database.execute("DROP TRIGGER log_is_not_changed")
            assert database.execute(statement, values).rowcount


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_older_copy_put_back_does_not_start(place: Place) -> None:
    backup = place.path.with_name("backup")
    shutil.copy(place.path, backup)
    place.answer(1)
    newest = place.path.read_bytes()
    shutil.copy(backup, place.path)
    place.refused("older copy of a ledger: it ends with entry 6, and entry 7 was written here")
    refused("accept", RunError, DurableLedger.accept, place.path, place.witnesses, match="older")
    place.path.write_bytes(newest)
    place.answer(1)


def test_a_copy_without_its_log_of_writes_does_not_start(place: Place) -> None:
    with place.open() as ledger:
        place.answer_with(ledger, 1)
        content = place.path.read_bytes()  # what is new is still in the file beside it
        assert place.path.with_name(place.path.name + "-wal").stat().st_size
    place.path.write_bytes(content)
    place.refused("older copy of a ledger")


def test_two_copies_in_turn_are_found(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    shutil.copy(place.path, other)
    place.answer(2)
    place.refused("older copy", other)
    elsewhere = tmp_path / "elsewhere"
    DurableLedger.accept(other, elsewhere)  # on another machine; what was vouched for is not so
    with DurableLedger.open(other, "run", elsewhere) as ledger:
        for number in range(9, 14):
            ledger.commit([Entry(0, number, b"q", torch.tensor([1]), 1, b"r")])
    place.refused("another copy than the one that was used here last: its entry 8", other)
    place.answer(1)


def test_two_copies_at_once_are_found(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    shutil.copy(place.path, other)
    with place.open():
        place.refused("a copy of this ledger is in use", other)
    with place.open(other):
        place.refused("a copy of this ledger is in use")


def test_a_moved_ledger_must_be_accepted(place: Place) -> None:
    place.witness.unlink()
    place.refused("has no witness .*; if it was moved here, .* accept it")
    summary = DurableLedger.accept(place.path, place.witnesses)
    assert summary.replies == 5
    assert str(DurableLedger.accept(place.path, place.witnesses)) == str(summary)
    place.answer(1)


def test_a_copy_made_right_after_creation_starts_nowhere_else(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever puts it back under another state folder has a budget that nobody spent."""
    fresh, copy = tmp_path / "records" / "fresh.sqlite", tmp_path / "records" / "copy.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    DurableLedger.create(fresh, BUDGET)
    shutil.copy(fresh, copy)
    with DurableLedger.open(fresh, "run") as ledger:
        place.answer_with(ledger, 3)
    words = "older copy of a ledger: it ends with entry 0"
    refused("copy", RunError, DurableLedger.open, copy, "run", match=words)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    words = r"has no witness .* accept it: `vertizo privacy ledger a"
    refused("copy", RunError, DurableLedger.open, copy, "run", match=words)
    assert not (tmp_path / "another").exists()


def test_a_witness_is_made_with_its_ledger_or_neither_is(tmp_path: Path) -> None:
    witnesses, path = tmp_path / "witnesses", tmp_path / "ledger.sqlite"
    DurableLedger.create(path, BUDGET, witnesses)
    (witness,) = witnesses.iterdir()
    assert path.stat().st_mode & 0o777 == witness.stat().st_mode & 0o777 == 0o600
    assert witnesses.stat().st_mode & 0o777 == 0o700
    make = DurableLedger.create
    refused("again", RunError, make, path, BUDGET, witnesses, match="exists already")
    assert list(witnesses.iterdir()) == [witness]
    words, second = "must be kept in another folder", tmp_path / "second.sqlite"
    refused("beside", RunError, make, second, BUDGET, tmp_path, match=words)
    assert not second.exists()


def test_a_witness_that_lags_moves_on(place: Place) -> None:
    old = place.witness.read_bytes()
    place.answer(3)
    new = place.witness.read_bytes()
    place.witness.write_bytes(old)
    with place.open():
        pass
    assert old != new
    assert Witness(place.witness.name, place.witnesses).open().sequence == 9


def test_a_torn_line_of_a_witness_is_made_up_for(place: Place) -> None:
    lines = place.witness.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    sequences = [int(line.split()[0]) for line in lines[1:]]
    assert sorted(sequences) == [5, 6]
    newest = 1 + sequences.index(6)
    torn = [*lines[:newest], lines[newest][:30] + bytes(len(lines[newest]) - 30)]
    place.witness.write_bytes(b"".join([*torn, *lines[newest + 1 :]]))
    place.answer(1)
    assert Witness(place.witness.name, place.witnesses).open().sequence == 7


def test_a_damaged_witness_must_be_replaced_by_somebody(place: Place) -> None:
    other = Witness("0" * 32, place.witnesses.with_name("others"))
    other.create(Head(6, bytes(32)))
    for content in (b"", b"nonsense", bytes(300), other.path.read_bytes()):
        place.witness.write_bytes(content)
        place.refused("damaged: it is no witness of this ledger")
        DurableLedger.accept(place.path, place.witnesses)
        place.answer(1)
    beside = place.path.parent
    refused("beside", RunError, DurableLedger.open, place.path, "run", beside, match="in another")


def test_a_witness_is_kept_with_the_users_state(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    fresh = tmp_path / "fresh.sqlite"
    DurableLedger.create(fresh, BUDGET)
    with DurableLedger.open(fresh, "run") as ledger:
        identity = ledger.tally.identity
    assert (tmp_path / "state" / "vertizo" / "ledgers" / identity).is_file()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        assert state_folder() == tmp_path / "home" / ".local" / "state" / "vertizo" / "ledgers"


BLOBS = ("query", "reply", "body", "chain")


def test_what_was_changed_in_the_file_is_found(place: Place) -> None:
    changes = [
        ("DELETE FROM log WHERE sequence = 1", "damaged"),
        ("DELETE FROM log WHERE sequence = 3", "damaged"),
        ("DELETE FROM log WHERE sequence = 6", "older copy of a ledger"),
        ("UPDATE ledger SET budget = replace(budget, '1000', '2000')", "its budget is not the one"),
        ("UPDATE reply SET frame = x'00' WHERE client = 1", "query 3 of client 1 is not the one"),
        ("DELETE FROM reply WHERE client = 1", "query 3 of client 1 is not the one kept"),
    ]
    for row, column in product((1, 4, 6), (*Row._fields, "chain")):
        value = f"CAST({column} || x'00' AS BLOB)" if column in BLOBS else f"{column} + 1"
        new = f"UPDATE log SET {column} = {value} WHERE sequence = {row}"
        changes.append((new, f"damaged: entry {row} does not follow"))
    for column in ("cost", "body", "query"):
        new = f"UPDATE log SET {column} = 'text' WHERE sequence = 3"
        changes.append((new, "damaged: entry 3"))
    good = place.path.read_bytes()
    for statement, words in changes:
        place.change(statement)
        place.refused(words)
        place.path.write_bytes(good)
    place.answer(1)


def test_a_past_forged_with_its_chain_is_found_by_the_witness(place: Place) -> None:
    file = ledger_file.LedgerFile(place.path)
    rows = [file.row(number)._replace(cost=0) for number in range(1, file.head.sequence + 1)]
    chain = ledger_file._first(file.tally.identity, file.tally.budget.to_json())
    file.close()
    place.change("UPDATE log SET cost = 0 WHERE cost > 0")
    with closing(sqlite3.connect(place.path, isolation_level=None)) as database:
        for sequence, row in enumerate(rows, 1):
            chain = row.link(chain)
            database.execute("UPDATE log SET chain = ? WHERE sequence = ?", (chain, sequence))
    assert DurableLedger.inspect(place.path).spent == 0  # the chain alone has no key
    place.refused("another copy than the one that was used here last: its entry 6")


def test_the_format_stays_what_it_was() -> None:
    """Recorded: a ledger must open in every later version."""
    budget = replace(BUDGET, epsilon=5.0, secret=SecretSteps(5, 0.01, 4.0))
    text = (
        '{"clients": 2, "delta": 1e-05, "epsilon": 5.0, "name": "records", "records": 9, '
        '"secret": {"count": 5, "noise_multiplier": 4.0, "sampling": 0.01}, "share": 1000}'
    )
    assert budget.to_json() == text
    assert LedgerBudget.from_json(text) == budget
    first = ledger_file._first("0" * 32, text)
    assert first.hex() == "53199a6d0efe10ffdd21469854baa6c6a3f5eae546ee37d301c228f8536ebe62"
    row = Row(REPLY, 1, 1, 5, 7, b"q" * 32, b"r" * 32, b"\1\0\0\0")
    found = row.link(first).hex()
    assert found == "f8c35959d8a9d47b1d7f111cda7b2296b799e71f249f8ceb4b919a80403b1c13"
    assert Tally("", budget).pack(np.array([1])) == row.body
    assert (ledger_file.APPLICATION, ledger_file.VERSION) == (0x565A4C47, 2)
    timed = row._replace(time=1764000000).link(first).hex()
    assert timed == "3a382eba708f6fabd09ca08a31304f378ec71a59cb17ecbceb22b3b39d8ef281"


def test_a_ledger_of_version_1_goes_on_with_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows keep their chain; new ones carry the time, and a changed time is found."""
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: 0.0)
        place = Place(tmp_path)
    with closing(sqlite3.connect(place.path, isolation_level=None)) as database:
        database.execute("ALTER TABLE log DROP COLUMN time")
        database.execute("PRAGMA user_version = 1")
    before = DurableLedger.inspect(place.path)
    assert set(before.times.values()) == {(0, 0)}
    assert " UTC" not in str(before)
    monkeypatch.setattr("time.time", lambda: 1764000000.5)
    place.answer(2)
    after = DurableLedger.inspect(place.path)
    assert after.replies == before.replies + 2
    assert set(after.times.values()) == {(0, 1764000000)}
    place.change("UPDATE log SET time = time + 1 WHERE time > ?", 0)
    place.refused("does not follow")


def test_a_ledger_only_grows(place: Place) -> None:
    with closing(sqlite3.connect(place.path, isolation_level=None)) as database:
        for change in ("DELETE FROM log", "UPDATE log SET cost = 0"):
            error = sqlite3.IntegrityError
            refused(change, error, database.execute, change, match="a ledger only grows")


def test_spoilt_bytes_are_found_or_do_not_matter(place: Place) -> None:
    """Anywhere in the file: it opens with what was spent, or says in one line that it cannot."""
    place.answer(40)
    with place.open() as ledger:
        before = str(ledger.tally)
    good = place.path.read_bytes()
    draw = random.Random(5)
    complaints: list[str] = []
    for _ in range(400):
        spoilt = bytearray(good)
        start = draw.randrange(len(good))
        for place_ in range(start, min(start + draw.choice((1, 8, 600)), len(good))):
            spoilt[place_] = draw.randrange(256)
        place.path.write_bytes(spoilt)
        for left in ("-wal", "-shm", "-journal"):
            place.path.with_name(place.path.name + left).unlink(missing_ok=True)
        try:
            with place.open() as ledger:
                assert str(ledger.tally) == before
        except RunError as error:
            complaints.append(str(error))
    assert 100 < len(complaints) < 400
    assert not any("\n" in words for words in complaints)
    place.path.write_bytes(good)
    place.answer(1)


def test_a_cut_off_file_is_told(place: Place) -> None:
    good = place.path.read_bytes()
    for size in (0, 1, 100, 4096, 8192):
        place.path.write_bytes(good[:size])
        place.refused("no ledger of this package|damaged|cannot be|older copy")


def test_what_is_no_ledger(place: Place, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("label,column\n" * 500)
    place.refused("text is no ledger", text)
    place.refused("there is no such ledger", tmp_path / "missing")
    place.refused("is a folder, and no ledger is in it", tmp_path)
    (tmp_path / "ledger.sqlite").touch()
    place.refused(r"is a folder; its ledger is .*/ledger\.sqlite", tmp_path)
    foreign = tmp_path / "foreign.sqlite"
    with closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE log (sequence INTEGER)")
    content = foreign.read_bytes()
    place.refused("foreign.sqlite is no ledger", foreign)
    assert foreign.read_bytes() == content
    with closing(sqlite3.connect(place.path)) as database:
        database.execute("PRAGMA user_version = 3")
    place.refused(r"has format 3; this is vertizo .*, which reads 2: use the version")


def test_where_no_ledger_or_witness_can_be_made(place: Place) -> None:
    (file := place.path.with_name("file")).write_text("")
    make, words = DurableLedger.create, r"cannot be made: [^\n]+$"
    for path in (file.with_name("missing") / "ledger", Path("/proc/ledger"), file / "l"):
        refused(path, RunError, make, path, BUDGET, match=words)
    accept, words = DurableLedger.accept, r"witness .* cannot be"
    refused("witness", RunError, accept, place.path, file / "folder", match=words)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(place: Place) -> None:
    place.path.chmod(0o400)
    place.path.parent.chmod(0o500)
    try:
        place.refused(r"cannot be opened: [^\n]+")
        with pytest.raises(RunError, match="cannot be made"):
            DurableLedger.create(place.path.with_name("another"), BUDGET)
    finally:
        place.path.parent.chmod(0o700)
