"""The ledger charges, refuses in time, and changes nothing when it refuses."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vertizo.core.errors import (
    BudgetError,
    ConfigError,
    RepeatedRecordError,
    UnknownPartyError,
    UnknownRecordError,
)
from vertizo.privacy.accounting import UNIT, mu_of_units, units
from vertizo.privacy.ledger import Entry, MemoryLedger, digest

COST = 3


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def entry(client: int, *records: int, cost: int = COST) -> Entry:
    return Entry(client, 0, b"query", ids(*records), cost, b"reply")


def charge(ledger: MemoryLedger, client: int, *records: int, cost: int = COST) -> None:
    """One query and its answer."""
    ledger.admit(client, ids(*records), cost)
    ledger.commit([entry(client, *records, cost=cost)])


def spending(ledger: MemoryLedger) -> torch.Tensor:
    return ledger.state()["spent"].clone()


def test_one_more_than_the_limit_is_refused() -> None:
    ledger = MemoryLedger(records=4, clients=1, share=3 * COST)
    for _ in range(3):
        charge(ledger, 0, 0, 2)
    with pytest.raises(BudgetError, match=r"2 of 2 records .* share of a record is 3 such replies"):
        charge(ledger, 0, 0, 2)
    charge(ledger, 0, 1, 3)


def test_a_refusal_changes_nothing() -> None:
    ledger = MemoryLedger(records=5, clients=2, share=COST)
    charge(ledger, 0, 2)
    before = spending(ledger)
    with pytest.raises(BudgetError, match=r"1 of 4 records .* for client 0"):
        charge(ledger, 0, 0, 1, 2, 3)
    assert torch.equal(spending(ledger), before)
    assert ledger.spent == COST
    charge(ledger, 0, 0, 1, 3)


def test_admitting_changes_nothing() -> None:
    """A query that is not answered costs nothing; its answer is charged when it is committed."""
    ledger = MemoryLedger(records=3, clients=1, share=COST)
    for _ in range(5):
        ledger.admit(0, ids(0, 1), COST)
    assert ledger.spent == 0
    ledger.commit([entry(0, 0, 1)])
    assert spending(ledger).tolist() == [[COST, COST, 0]]
    assert ledger.answered(0) is None  # it does not outlive its process


def test_every_client_has_a_share_of_its_own() -> None:
    ledger = MemoryLedger(records=3, clients=3, share=2 * COST)
    for _ in range(2):
        charge(ledger, 1, 0, 1, 2)
    with pytest.raises(BudgetError):
        charge(ledger, 1, 0)
    for client in (0, 2):
        for _ in range(2):
            charge(ledger, client, 0, 1, 2)
    assert ledger.spent == 3 * ledger.share


def test_spent_is_the_most_used_record_over_all_clients() -> None:
    ledger = MemoryLedger(records=4, clients=2, share=9 * COST)
    assert ledger.spent == 0
    charge(ledger, 0, 0, 1)
    charge(ledger, 1, 1, 2)
    assert ledger.spent == 2 * COST
    charge(ledger, 0, 3)
    assert ledger.spent == 2 * COST


def test_answers_of_several_clients_are_charged_together() -> None:
    """As of a synchronous round."""
    ledger = MemoryLedger(records=3, clients=2, share=COST)
    ledger.commit([entry(0, 0, 1), entry(1, 0, 1)])
    assert spending(ledger).tolist() == [[COST, COST, 0]] * 2
    assert ledger.spent == 2 * COST


def test_what_is_no_charge_is_refused() -> None:
    """A record twice in a batch would take two shares and be charged one."""
    ledger = MemoryLedger(records=3, clients=1, share=2 * COST)
    for client, records, cost, error, words in (
        (0, (0, 3), COST, UnknownRecordError, "outside 0 to 2"),
        (0, (-1,), COST, UnknownRecordError, "outside 0 to 2"),
        (0, (2**40,), COST, UnknownRecordError, "outside 0 to 2"),
        (0, (1, 1), COST, RepeatedRecordError, "twice"),
        (1, (1,), COST, UnknownPartyError, "client 1"),
        (0, (1,), -1, ConfigError, "costs -1 units"),
        (0, (1,), 2**70, BudgetError, "1 of 1 records"),
    ):
        with pytest.raises(error, match=words):
            ledger.admit(client, ids(*records), cost)
    for share in (-1, -1e-9):
        with pytest.raises(ConfigError, match="client's share of a record"):
            MemoryLedger(records=3, clients=2, share=share)  # type: ignore[arg-type]
    with pytest.raises(BudgetError):
        MemoryLedger(records=3, clients=2, share=0).admit(0, ids(1), 1)


def test_a_loaded_ledger_goes_on() -> None:
    one = MemoryLedger(records=3, clients=2, share=2 * COST, steps=2)
    one.begin_step(0)
    for _ in range(2):
        charge(one, 1, 0, 2)
    other = MemoryLedger(records=3, clients=2, share=2 * COST, steps=2)
    other.load({key: value.clone() for key, value in one.state().items()})
    assert other.spent == 2 * COST
    with pytest.raises(BudgetError):
        charge(other, 1, 2)
    charge(other, 0, 2)
    assert one.spent == 2 * COST
    assert other.steps == 1
    other.begin_step(1)
    with pytest.raises(BudgetError):
        other.begin_step(2)
    assert one.steps == 1


def test_secret_steps_come_in_order_and_end() -> None:
    """Every step is charged to every record, so that their number is all there is to count."""
    ledger = MemoryLedger(records=3, clients=1, share=COST, steps=3)
    with pytest.raises(BudgetError, match="secret step 1; 0 is the next"):
        ledger.begin_step(1)
    for number in range(3):
        assert ledger.steps == number
        ledger.begin_step(number)
    for number in (0, 2, 3):
        with pytest.raises(BudgetError, match="all 3 steps on secret samples were made"):
            ledger.begin_step(number)
    assert ledger.steps == 3
    assert ledger.spent == 0
    with pytest.raises(BudgetError):
        MemoryLedger(records=3, clients=1, share=COST).begin_step(0)


@given(mu=st.floats(1e-7, 1e3))
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_units_are_rounded_up(mu: float) -> None:
    """Against exact arithmetic, up to what the square and the quotient lose to float64."""
    exact = Fraction(mu) ** 2 / Fraction(UNIT)
    slack = exact * Fraction(2**-51)
    assert exact - slack <= units(mu) <= exact + slack + 1
    assert mu_of_units(units(mu)) >= mu * (1 - 1e-15)


def test_units_of_little_and_digests() -> None:
    frames = [b"", b"a", b"b", b"a" * 1000]
    assert len({digest(frame) for frame in frames}) == 4
    assert {len(digest(frame)) for frame in frames} == {32}
    assert units(0.0) == 0
    assert units(1e-30) == 1
    assert mu_of_units(0) == 0
    assert mu_of_units(units(3.0)) == pytest.approx(3.0, rel=1e-12)


def test_long_sums_are_exact() -> None:
    """A million charges of a third of a μ²: floats added up one by one would drift."""
    ledger = MemoryLedger(records=1, clients=1, share=2**62)
    cost = units(math.sqrt(1 / 3))
    entries = [entry(0, 0, cost=cost)] * 1000
    for _ in range(1000):
        ledger.commit(entries)
    assert ledger.spent == 10**6 * cost


CHARGES = st.lists(
    st.tuples(st.integers(0, 1), st.sets(st.integers(0, 4), min_size=1), st.integers(1, 4)),
    max_size=25,
)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(charges=CHARGES, share=st.integers(1, 7))
def test_any_order_of_charges(charges: list[tuple[int, set[int], int]], share: int) -> None:
    """Against a dictionary: no record passes its share, and what fits is never refused."""
    ledger = MemoryLedger(records=5, clients=2, share=share)
    model: dict[tuple[int, int], int] = {}
    for client, records, cost in charges:
        if any(model.get((client, record), 0) + cost > share for record in records):
            with pytest.raises(BudgetError):
                charge(ledger, client, *sorted(records), cost=cost)
        else:
            charge(ledger, client, *sorted(records), cost=cost)
            for record in records:
                model[client, record] = model.get((client, record), 0) + cost
    for client in range(2):
        for record in range(5):
            assert spending(ledger)[client, record] == model.get((client, record), 0) <= share
