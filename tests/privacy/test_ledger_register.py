"""Records that a ledger is for get no second one unnoticed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.damage import KINDS, damage, files
from tests.refusals import refused

from vertizo.core import digests
from vertizo.core.errors import RunError
from vertizo.privacy.accounting.events import LedgerBudget
from vertizo.privacy.ledger.base import Entry
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.ledger.register import Names

PEOPLE = [f"patient {number}" for number in range(9)]


def budget(records: int, epsilon: float = 1.0) -> LedgerBudget:
    return LedgerBudget("records", records, clients=2, share=1000, epsilon=epsilon, delta=1e-5)


TAKEN = "9 of 9 records are charged"


class House:
    """Somebody's ledgers, and the folder with their witnesses and the register."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.witnesses = folder, folder / "state"

    def create(self, name: str, people: list[str], rows: Sequence[str] = (), **more: Any) -> Path:
        path = self.folder / name
        made = budget(len(people), more.pop("epsilon", 1.0))
        DurableLedger.create(path, made, self.witnesses, names=Names(people, rows), **more)
        return path

    def open(self, path: Path, people: list[str], rows: Sequence[str] = ()) -> str:
        """What a run on it says that its budget is for."""
        names = Names(people, rows)
        with DurableLedger.open(path, "run", self.witnesses, names=names) as ledger:
            return ledger.counted


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_second_ledger_on_some_of_the_records_is_refused(house: House) -> None:
    first = house.create("first", PEOPLE)
    strangers = [f"patient {number}" for number in range(20, 40)]
    for shared in (9, 5, 1):
        found = rf"{shared} of {shared + 20} records are charged"
        with pytest.raises(RunError, match=found) as error:
            house.create("second", [*PEOPLE[:shared], *strangers][::-1])
        words = str(error.value)
        assert str(first) in words
        assert "set privacy.ledger to that file" in words
        assert "--further" in words
        assert "\n" not in words
        assert not any(person in words for person in PEOPLE)
        assert not (house.folder / "second").exists()
    house.create("others", strangers)


ROWS = [f"51\0ill\0{number // 2}" for number in range(9)]  # but for one, two people each


def test_the_same_rows_under_other_keys_are_found(house: House) -> None:
    """As after data.id was changed, or left out; whether a row is there once is said."""
    first = house.create("first", PEOPLE, ROWS)
    others = [f"number {number}" for number in range(4)]
    with pytest.raises(RunError, match="3 of 4 rows have, in every column, the values") as error:
        house.create("second", others, [*ROWS[6:], "50\0well\01"])
    words = str(error.value)
    assert str(first) in words
    assert "1 of them are here only once" in words
    assert "different people can have equal rows" in words
    assert "take data.id from there and set privacy.ledger to that file" in words
    assert "--further" in words
    assert not any(text in words for text in (*PEOPLE, *ROWS, *others, "\n"))
    assert not (house.folder / "second").exists()
    house.create("strangers", others, ["a", "b", "c", "d"])
    second = house.create("second", ["another"], ROWS[:1], further=True, epsilon=2.5)
    for path, people, rows in ((first, PEOPLE, ROWS), (second, ["another"], ROWS[:1])):
        assert house.open(path, people, rows).endswith("ε = 3.5 at δ = 2e-05")


def test_rows_of_a_ledger_without_any_are_added_when_it_is_used(house: House) -> None:
    """As of one that was registered before rows were."""
    first = house.create("first", PEOPLE)
    house.create("second", ["a"], ROWS[:1]).unlink()
    house.open(first, PEOPLE, ROWS)
    with pytest.raises(RunError, match="1 of 1 rows have"):
        house.create("third", ["b"], ROWS[:1])


def test_rows_that_changed_are_remembered_beside_those_before(house: House) -> None:
    """As after a column was added to the table, and then data.id was changed."""
    first = house.create("first", PEOPLE, ROWS)
    newer = [f"{row}\0{number}" for number, row in enumerate(ROWS)]
    for rows in (newer, newer, ROWS):
        house.open(first, PEOPLE, rows)
    moved = first.rename(first.with_name("moved"))
    house.open(moved, PEOPLE)
    for rows in (newer, ROWS):
        with pytest.raises(RunError, match="1 of 1 rows have, in every column"):
            house.create("second", ["a"], rows[:1])


def test_a_further_ledger_adds_to_what_every_run_states(house: House) -> None:
    first = house.create("first", PEOPLE)
    assert "together have ε = 1 at δ = 1e-05" in house.open(first, PEOPLE)
    assert "some of the same records" not in house.open(first, PEOPLE)
    second = house.create("second", PEOPLE[3:], epsilon=2.5, further=True)
    for path, people in ((first, PEOPLE), (second, PEOPLE[3:])):
        words = house.open(path, people)
        assert "some of the same records" in words
        assert words.endswith("ε = 3.5 at δ = 2e-05")


def test_a_ledger_is_for_its_records_in_their_order(house: House) -> None:
    path = house.create("ledger", PEOPLE)
    house.open(path, PEOPLE)
    for wrong in (PEOPLE[::-1], [*PEOPLE[:-1], "another"], PEOPLE[:-1]):
        words = "records of other keys, or in another order"
        refused(wrong, RunError, house.open, path, wrong, match=words)


def test_a_ledger_that_is_not_registered_here_is_when_it_is_used(house: House) -> None:
    path = house.folder / "moved"
    DurableLedger.create(path, budget(9), house.witnesses)
    house.open(path, PEOPLE)
    refused("second", RunError, house.create, "second", PEOPLE, match=TAKEN)
    other = house.folder / "other"
    DurableLedger.create(other, budget(1), house.witnesses)
    words = "1 of 1 records are charged"
    refused("other", RunError, house.open, other, PEOPLE[:1], match=words)
    # One that is moved is found where it is.
    moved = path.rename(path.with_name("renamed"))
    house.open(moved, PEOPLE)
    refused("second", RunError, house.create, "second", PEOPLE, match="renamed already")


def test_records_stay_charged_when_the_ledger_is_deleted(house: House) -> None:
    """But those of one that was charged nothing, which may be made again."""
    house.create("ledger", PEOPLE).unlink()
    path = house.create("ledger", PEOPLE)
    house.open(path, PEOPLE)
    path.unlink()
    house.create("ledger", PEOPLE, further=True).unlink()
    path = house.create("ledger", PEOPLE)
    assert "some of the same" not in house.open(path, PEOPLE)
    refused("second", RunError, house.create, "second", PEOPLE, match=TAKEN)
    with DurableLedger.open(path, "run", house.witnesses, names=Names(PEOPLE)) as ledger:
        ledger.commit([Entry(0, 0, b"query", torch.tensor([4]), 1, b"reply")])
    path.unlink()
    refused("deleted", RunError, house.create, "second", PEOPLE, match=TAKEN)


def test_the_register_tells_nobody_who_is_in_it(house: House) -> None:
    """Without its key: no name of a record, and no digest of one that can be tried out."""
    house.create("ledger", PEOPLE, ROWS)
    register = house.witnesses / "records"
    assert register.stat().st_mode & 0o777 == 0o700
    files = [path for path in register.iterdir() if path.is_file()]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    for path in files:
        content = path.read_bytes()
        for person in (*PEOPLE, *ROWS):
            assert person.encode() not in content
            for size in (8, 16, 32):
                plain = hashlib.blake2b(person.encode(), digest_size=size).digest()
                assert plain[:8] not in content
    again = House(house.folder / "again")
    again.folder.mkdir()
    again.create("ledger", PEOPLE)
    one, two = (
        path.read_bytes().partition(b"\n")[2]
        for h in (house, again)
        for path in (h.witnesses / "records").iterdir()
        if len(path.name) == 32
    )
    assert one != two


def test_a_damaged_register_is_one_line(house: House) -> None:
    house.create("ledger", PEOPLE)
    register = house.witnesses / "records"
    entry = next(path for path in register.iterdir() if len(path.name) == 32)
    for path, content, words in (
        (entry, b"nonsense", r"damaged: it does not say what a ledger is for$"),
        (register / "secret.key", b"short", "has 5 bytes; it must have the 32"),
    ):
        path.write_bytes(content)
        refused(path, RunError, house.create, "second", PEOPLE, match="is damaged or was changed")
        digests.add(path)
        refused(path, RunError, house.create, "second", PEOPLE, match=words)
        entry.unlink(missing_ok=True)


def test_a_register_that_cannot_be_kept_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "ledger"
    with pytest.raises(RunError, match=r"register of ledgers .* cannot be used: [^\n]+$"):
        DurableLedger.create(path, budget(9), tmp_path / "file" / "folder", names=Names(PEOPLE))
    assert not path.exists()


def test_a_damaged_register_grants_no_second_ledger(house: House) -> None:
    house.create("first", PEOPLE, ROWS)
    chance, folder = random.Random(0), house.witnesses / "records"
    names = [name for name in files(folder) if name != "digests"]
    assert "secret.key" in names
    assert len(names) > 2
    for name in names:
        whole = (folder / name).read_bytes()
        for kind in KINDS:
            damage(folder / name, kind, chance)
            with pytest.raises(RunError, match=rf"{name} is damaged or was changed"):
                house.create("second", PEOPLE[:3], ROWS[:3])
            (folder / name).write_bytes(whole)
    with pytest.raises(RunError, match="3 of 3 records are charged"):
        house.create("second", PEOPLE[:3], ROWS[:3])
    (folder / "digests").unlink()  # as an older version left it
    with pytest.raises(RunError, match="3 of 3 records are charged"):
        house.create("second", PEOPLE[:3], ROWS[:3])
    assert (folder / "digests").exists()
