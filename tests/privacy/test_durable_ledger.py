"""The durable ledger: what it charges, refuses, repeats and remembers."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refusals import refused
from tests.rows import examples

from vertizo.core.errors import (
    BudgetError,
    ConfigError,
    ConflictError,
    RefusedError,
    RepeatedRecordError,
    RunError,
    UnknownPartyError,
    UnknownRecordError,
)
from vertizo.privacy.accounting.events import LedgerBudget, SecretSteps
from vertizo.privacy.accounting.gaussian import mu_of_units, units
from vertizo.privacy.ledger.base import Answered, Entry, digest
from vertizo.privacy.ledger.durable import DurableLedger

SECRET = SecretSteps(count=5, sampling=0.01, noise_multiplier=4.0)
BUDGET = LedgerBudget("six records", records=6, clients=2, share=30, epsilon=1.0, delta=1e-5)


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def entry(client: int, number: int, *records: int, cost: int = 10, reply: bytes = b"") -> Entry:
    query = b"query %d of %d" % (number, client)
    reply = reply or b"reply %d to %d" % (number, client)
    return Entry(client, number, query, ids(*records), cost, reply)


class Place:
    """A ledger and its witness in a folder of a test."""

    def __init__(self, folder: Path, budget: LedgerBudget = BUDGET) -> None:
        self.path = folder / "ledger.sqlite"
        self.witnesses = folder / "witnesses"
        DurableLedger.create(self.path, budget, self.witnesses)

    def open(self, run: str = "a", **options: Any) -> DurableLedger:
        return DurableLedger.open(self.path, run, self.witnesses, **options)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def spending(ledger: DurableLedger) -> list[list[int]]:
    return ledger.tally.charged.tolist()


def test_what_was_charged_is_there_after_reopening(place: Place) -> None:
    with place.open() as ledger:
        assert (ledger.spent, ledger.steps, ledger.answered(0), ledger.state()) == (0, 0, None, {})
        assert ledger.budget == BUDGET
        ledger.commit([entry(0, 0, 1, 2), entry(1, 0, 2, 3, cost=7)])
        ledger.commit([entry(0, 1, 2)])
    for _ in range(2):
        with place.open() as ledger:
            assert spending(ledger) == [[0, 10, 20, 0, 0, 0], [0, 0, 7, 7, 0, 0]]
            assert ledger.spent == 27
            assert ledger.answered(0) == Answered(1, digest(b"query 1 of 0"), b"reply 1 to 0")
            assert ledger.answered(1) == Answered(0, digest(b"query 0 of 1"), b"reply 0 to 1")


def test_runs_draw_on_the_same_share_and_answer_for_themselves(place: Place) -> None:
    for run in ("a", "b", "c"):
        with place.open(run) as ledger:
            assert ledger.answered(0) is None
            ledger.admit(0, ids(4), 10)
            ledger.commit([entry(0, 0, 4)])
    with place.open("d") as ledger:
        with pytest.raises(BudgetError, match="1 of 2 records"):
            ledger.admit(0, ids(4, 5), 10)
        ledger.admit(1, ids(4, 5), 10)
        assert list(ledger.tally.runs) == ["a", "b", "c", "d"]
    with place.open("b") as ledger:
        assert ledger.answered(0) is not None
        assert list(ledger.tally.runs) == ["a", "b", "c", "d"]


def test_a_run_takes_no_more_than_its_own_share_of_a_larger_one(place: Place) -> None:
    """It states the ε of so many replies, whatever the ledger has left for other runs."""
    for client in (0, 1):
        with place.open("a", share=20) as ledger:
            assert ledger.share == 20
            ledger.commit([entry(client, 0, 4)])
        with place.open("a", share=20) as ledger:  # what it was charged is counted after a restart
            with pytest.raises(BudgetError, match="1 of 2 records"):
                ledger.commit([entry(client, 1, 3, 4), entry(client, 2, 4, 5)])
            ledger.commit([entry(client, 1, 3, 4)])
            with pytest.raises(BudgetError, match="whose share of a record is 2 such replies"):
                ledger.admit(client, ids(4), 10)
            ledger.admit(client, ids(3), 10)
    with place.open("b", share=20) as ledger:
        ledger.commit([entry(0, 0, 4)])
        with pytest.raises(BudgetError, match="share of a record is 3 such"):  # all the ledger's
            ledger.admit(0, ids(4), 10)
        ledger.admit(0, ids(5), 10)


def test_what_is_refused(place: Place) -> None:
    with place.open() as ledger:
        for client, records, cost, error in (
            (0, (0, 1), 31, BudgetError),
            (0, (0, 1), 2**70, BudgetError),
            (0, (6,), 1, UnknownRecordError),
            (0, (-1,), 1, UnknownRecordError),
            (0, (2, 2), 1, RepeatedRecordError),
            (2, (0,), 1, UnknownPartyError),
            (-1, (0,), 1, UnknownPartyError),
            (0, (0,), -1, ConfigError),
        ):
            case = client, records, cost
            refused(case, error, ledger.admit, client, ids(*records), cost)
            wrong = entry(client, 1, *records, cost=cost)
            refused(case, error, ledger.commit, [entry(1, 0, 5), wrong])
            assert spending(ledger) == [[0] * 6] * 2, case
            assert ledger.answered(1) is None
        for _ in range(9):  # admitting charges nothing
            ledger.admit(0, ids(1), 30)
        ledger.commit([entry(1, 0, 5, cost=30)])  # it goes on
    with place.open() as ledger:
        assert spending(ledger) == [[0] * 6, [0] * 5 + [30]]


def test_two_entries_of_one_commit_share_a_share(place: Place) -> None:
    with place.open() as ledger:
        ledger.commit([entry(0, 0, 1)])
        with pytest.raises(BudgetError):
            ledger.commit([entry(0, 1, 1), entry(0, 2, 1), entry(0, 3, 1)])
        assert ledger.spent == 10
        ledger.commit([entry(0, 1, 1), entry(0, 2, 1)])
        assert ledger.spent == 30


def test_a_refusal_names_no_record(place: Place) -> None:
    with place.open() as ledger:
        ledger.commit([entry(0, 0, 3, cost=30)])
        with pytest.raises(BudgetError) as refused:
            ledger.admit(0, ids(3, 5), 10)
    words = str(refused.value)
    assert "1 of 2 records" in words
    assert "3 such replies" in words  # the share, which happens to be three tens
    assert "5" not in words


def test_a_repeated_commit_is_charged_once(place: Place) -> None:
    entries = [entry(0, number, 1, 2) for number in range(3)]
    with place.open() as ledger:
        for one in entries:
            ledger.commit([one])
        ledger.commit(entries)
        assert ledger.spent == 30
    with place.open() as ledger:
        ledger.commit([entries[1], entries[1]])
        ledger.commit([entries[2]])
        assert (ledger.spent, ledger.tally.replies) == (30, 3)
        assert ledger.answered(0) == Answered(2, digest(b"query 2 of 0"), b"reply 2 to 0")


def test_another_reply_or_query_for_a_number_is_a_conflict(place: Place) -> None:
    with place.open() as ledger:
        ledger.commit([entry(0, 0, 1), entry(1, 4, 1)])
        ledger.commit([entry(0, 1, 1)])
        first, twice = entry(0, 0, 1), entry(0, 2, 4)
        answered = "query 0 of client 0 was answered before"
        for entries, words in (
            ([entry(1, 5, 5), replace(first, reply=b"another")], f"{answered}, with another reply"),
            ([entry(1, 5, 5), replace(first, query=b"another")], f"{answered}, with another query"),
            ([entry(1, 5, 5), replace(first, ids=ids(2))], answered),
            ([entry(1, 5, 5), replace(first, cost=9)], answered),
            ([entry(1, 2, 1)], "query 2 of client 1 comes after a later one"),
            ([twice, replace(twice, reply=b"another")], "query 2 of client 0 was answered before"),
        ):
            refused(entries, ConflictError, ledger.commit, entries, match=words)
        assert spending(ledger) == [[0, 20, 0, 0, 0, 0], [0, 10, 0, 0, 0, 0]]
        ledger.commit([twice, twice])
        assert ledger.spent == 30


def test_a_resumed_simulation_repeats_what_it_had_no_more_left_for(place: Place) -> None:
    entries = [entry(0, number, 1, cost=15) for number in range(2)]
    with place.open() as ledger:
        for one in entries:
            ledger.commit([one])
    with place.open() as ledger:
        refused("no replay", BudgetError, ledger.admit, 0, ids(1), 15)
    with place.open(replays=True) as ledger:
        refused("twice", RepeatedRecordError, ledger.admit, 0, ids(1, 1), 15)
        for one in entries:
            ledger.admit(0, one.ids, one.cost)
            ledger.commit([one])
        assert ledger.spent == 30
        refused("a new one", BudgetError, ledger.admit, 0, ids(1), 15)
    with place.open(replays=True) as ledger:  # even before the end is reached
        refused("a new one", BudgetError, ledger.commit, [entry(0, 2, 1, cost=15)])
        assert ledger.spent == 30


def secret_place(folder: Path) -> Place:
    return Place(folder, replace(BUDGET, secret=SECRET, epsilon=5.0))


def test_secret_steps_of_all_runs_together_are_limited(tmp_path: Path) -> None:
    place = secret_place(tmp_path)
    with place.open("a", secret=replace(SECRET, count=3)) as ledger:
        for number in range(3):
            assert ledger.steps == number
            ledger.begin_step(number)
        for number in (2, 4):
            words = f"secret step {number}; 3 is the next"
            refused(number, ConflictError, ledger.begin_step, number, match=words)
    with place.open("b", secret=replace(SECRET, count=2)) as ledger:
        ledger.begin_step(0)
        assert (ledger.steps, ledger.tally.steps_left) == (1, 1)
    with place.open("b", secret=replace(SECRET, count=2)) as ledger:
        assert ledger.steps == 1
        ledger.begin_step(1)
        refused("all made", BudgetError, ledger.begin_step, 2, match="all 5 steps")
    words = "this run needs 1 more secret steps, of which 0 are left"
    refused("none left", RunError, place.open, "c", secret=replace(SECRET, count=1), match=words)
    with place.open("c") as ledger:
        assert ledger.tally.steps == 5
        refused("no step", RunError, ledger.begin_step, 0, match="opened without secret steps")


def test_a_repeated_step_is_free_for_seeded_noise_only(tmp_path: Path) -> None:
    place = secret_place(tmp_path)
    with place.open(secret=SECRET) as ledger:
        ledger.begin_step(0)
        ledger.begin_step(1)
    with place.open(secret=SECRET, replays=True) as ledger:
        ledger.begin_step(0)
        ledger.begin_step(1)
        assert ledger.steps == 2
        ledger.begin_step(2)
        refused("no number", ConflictError, ledger.begin_step, -1)
        assert ledger.steps == 3


def test_other_secret_steps_are_refused(tmp_path: Path) -> None:
    place = secret_place(tmp_path)
    for change, words in (
        ({"sampling": 0.02}, "with q = 0.01; the run has 0.02"),
        ({"noise_multiplier": 4.5}, "with z = 4; the run has 4.5; use the configuration"),
        ({"noise_multiplier": 4 * (1 - 1e-6)}, r"the run has 3.999996; .* secure noise"),
    ):
        refused(change, RunError, place.open, secret=replace(SECRET, **change), match=words)
    for fits in (1, 1 + 1e-7):
        with place.open(secret=replace(SECRET, noise_multiplier=4 * fits)):
            pass
    (tmp_path / "plain").mkdir()
    plain = Place(tmp_path / "plain")
    refused("plain", RunError, plain.open, secret=SECRET, match="has no secret steps")


def test_a_ledger_is_made_once(place: Place) -> None:
    with place.open() as ledger:
        ledger.commit([entry(0, 0, 1)])
    with pytest.raises(RunError, match="exists already"):
        DurableLedger.create(place.path, BUDGET, place.witnesses)
    assert DurableLedger.inspect(place.path).spent == 10
    assert sorted(p.name for p in place.path.parent.iterdir()) == ["ledger.sqlite", "witnesses"]


def test_an_epsilon_below_what_may_be_spent_is_not_stated(tmp_path: Path) -> None:
    share = units(0.268051123 / 2**0.5)  # two clients: μ(ε = 1, δ = 1e-5) in all
    for secret, least in ((None, 1.0), (SECRET, 1.03)):  # the steps' own: their μ is about 0.01
        path = tmp_path / f"{least}"
        budget = replace(BUDGET, share=share, secret=secret, epsilon=0.99)
        with pytest.raises(ConfigError, match=r"epsilon 0.99 is stated, but .* come to 1"):
            DurableLedger.create(path, budget, tmp_path / "witnesses")
        DurableLedger.create(path, replace(budget, epsilon=least), tmp_path / "witnesses")


def test_a_budget_and_a_run_say_what_is_wrong_with_them(place: Place) -> None:
    wrong: dict[str, tuple[Any, ...]] = {
        "name": (" ", "two\nlines"),
        "records": (0, 2.0),
        "clients": (True,),
        "share": (0, 2**62),
        "epsilon": (0.0,),
        "delta": (1.0,),
    }
    for key, values in wrong.items():
        for value in values:
            refused((key, value), ConfigError, replace, BUDGET, **{key: value})
    for run in ("", " ", "two\nlines"):
        refused(run, RunError, place.open, run, match="name it in one line")


def test_every_charge_is_forced_to_the_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut takes what was not: replies would have gone out that nobody was charged for."""
    connect, made = sqlite3.connect, list[sqlite3.Connection]()

    def connected(*given: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*given, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)
    with place.open():
        (database,) = made
        assert database.execute("PRAGMA synchronous").fetchone() == (2,), "not FULL"
        assert database.execute("PRAGMA fullfsync").fetchone() == (1,)


@pytest.mark.full
def test_one_process_at_a_time(place: Place) -> None:
    text = (
        "import sys; from pathlib import Path\n"
        "from vertizo.core.errors import RunError\n"
        "from vertizo.privacy.ledger.durable import DurableLedger\n"
        "try: DurableLedger.open(Path(sys.argv[1]), 'b', Path(sys.argv[2]))\n"
        "except RunError as error: print(error)"
    )
    with place.open() as ledger:
        ledger.commit([entry(0, 0, 1)])
        refused("open", RunError, place.open, "b", match="in use by another process")
        words = "in use by another process"
        refused("inspect", RunError, DurableLedger.inspect, place.path, match=words)
        words = [sys.executable, "-c", text, str(place.path), str(place.witnesses)]
        answer = subprocess.run(words, capture_output=True, text=True, check=True)
        assert answer.stdout == f"the ledger {place.path} is in use by another process\n"
        ledger.commit([entry(0, 1, 1)])
    with place.open("b") as ledger:
        assert ledger.spent == 20


def test_a_full_disk_ends_it_and_loses_nothing(place: Place) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = entry(0, 1, 1, reply=bytes(200_000))
    with place.open() as ledger:
        ledger.commit([entry(0, 0, 1)])
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
            with pytest.raises(RunError, match=r"cannot be written: [^\n]+$"):
                ledger.commit([big])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        refused("commit", RunError, ledger.commit, [entry(0, 2, 1)], match="open it again")
        refused("admit", RunError, ledger.admit, 0, ids(1), 1, match="open it again")
        refused("step", RunError, ledger.begin_step, 0, match="open it again")
    with place.open() as ledger:
        assert ledger.spent == 10
        ledger.commit([big])
        assert ledger.spent == 20


def test_an_interrupted_commit_is_settled_by_reopening(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.open() as ledger:
        append = ledger._file.append

        def interrupted(*rows: Any) -> None:
            append(*rows)
            raise KeyboardInterrupt

        monkeypatch.setattr(ledger._file, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.commit([entry(0, 0, 1)])
        with pytest.raises(RunError, match="open it again"):
            ledger.commit([entry(0, 0, 1)])
    with place.open() as ledger:
        assert ledger.spent == 10
        assert ledger.answered(0) is not None


def test_a_summary_for_people(tmp_path: Path) -> None:
    place = secret_place(tmp_path)
    with place.open(secret=SECRET) as ledger:
        ledger.commit([entry(0, 0, 1, 2), entry(1, 0, 2, cost=6)])
        ledger.begin_step(0)
        summary = ledger.tally
    assert str(summary) == str(DurableLedger.inspect(place.path))
    assert (summary.replies, summary.spent, summary.left) == (2, 16, 20)
    assert (summary.steps, summary.steps_left) == (1, 4)
    for words in (
        "six records: 6 records, 2 clients, ε = 5 at δ = 1e-05",
        f"most spent on one record: μ = {mu_of_units(16):.4g}",
        "client 0: 33.4 % of its share of the record charged most, 11.2 % on average",
        "client 1: 20.0 % of its share of the record charged most, 3.4 % on average",
        "secret steps: 1 of 5, 4 left (q = 0.01, z = 4)",
    ):
        assert words in str(summary)


RECORDS = st.lists(st.integers(0, 5), min_size=1, max_size=3)
ANSWER = st.tuples(st.integers(0, 1), RECORDS, st.integers(0, 14))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.lists(ANSWER, min_size=1, max_size=3)),
        st.tuples(st.just("repeat"), st.integers(0, 30)),
        st.tuples(st.just("open"), st.sampled_from("ab")),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None, derandomize=True, database=None)
@given(operations=OPERATIONS)
def test_any_order_of_operations(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, Any]]
) -> None:
    """Against dictionaries: each commit is taken whole or refused whole, and survives."""
    place = Place(tmp_path_factory.mktemp("fuzz"))
    spent: dict[tuple[int, int], int] = {}
    done: dict[str, list[Entry]] = {"a": [], "b": []}
    run, ledger = "a", place.open("a")
    for what, given_ in operations:
        if what == "open":
            ledger.close()
            run, ledger = given_, place.open(given_)
        elif what == "repeat":
            if done[run]:
                ledger.commit([done[run][given_ % len(done[run])]])
        else:
            numbers = [sum(old.client == client for old in done[run]) for client in (0, 1)]
            entries, after, good = [], dict(spent), True
            for client, records, cost in given_:
                entries.append(entry(client, numbers[client], *records, cost=cost))
                numbers[client] += 1
                good &= len(set(records)) == len(records)
                for record in records:
                    after[client, record] = after.get((client, record), 0) + cost
                    good &= after[client, record] <= BUDGET.share
            if good:
                ledger.commit(entries)
                spent = after
                done[run] += entries
            else:
                with pytest.raises(RefusedError):
                    ledger.commit(entries)
        expected = [[spent.get((c, record), 0) for record in range(6)] for c in (0, 1)]
        assert spending(ledger) == expected
        assert ledger.spent == max(map(sum, zip(*expected, strict=True)))
        for client in (0, 1):
            mine = [old for old in done[run] if old.client == client]
            kept = ledger.answered(client)
            assert (kept.reply if kept else None) == (mine[-1].reply if mine else None)
    ledger.close()
    assert DurableLedger.inspect(place.path).replies == sum(map(len, done.values()))
