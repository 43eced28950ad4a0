"""The ledger charges, refuses in time, and changes nothing when it refuses."""

from __future__ import annotations

import math
from copy import deepcopy
from fractions import Fraction

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
    RepeatedRecordError,
    UnknownPartyError,
    UnknownRecordError,
)
from vertizo.privacy.accounting.gaussian import UNIT, mu_of_units, units
from vertizo.privacy.ledger.base import Entry, MemoryLedger, digest

COST = 3


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def entry(client: int, *records: int, cost: int = COST) -> Entry:
    return Entry(client, 0, b"query", ids(*records), cost, b"reply")


def spending(ledger: MemoryLedger) -> list[list[int]]:
    found: list[list[int]] = ledger.state()["charged"].tolist()
    return found


def test_what_is_refused() -> None:
    """A record twice in a batch would take two shares and be charged one."""
    ledger = MemoryLedger(records=4, clients=2, share=3 * COST)
    ledger.commit([entry(0, 1)] * 3)
    over = r"2 of 4 records .* for client 0, whose share of a record is 3 such replies"
    ledger.commit([entry(0, 2)] * 3)
    before = spending(ledger)
    for client, records, cost, error, words in (
        (0, (0, 1, 2, 3), COST, BudgetError, over),
        (1, (1,), 2**70, BudgetError, "1 of 1 records .* 0 such replies"),
        (0, (0, 4), COST, UnknownRecordError, "outside 0 to 3"),
        (0, (-1,), COST, UnknownRecordError, "outside 0 to 3"),
        (0, (2**40,), COST, UnknownRecordError, "outside 0 to 3"),
        (0, (0, 0), COST, RepeatedRecordError, "twice"),
        (2, (1,), COST, UnknownPartyError, "client 2"),
        (0, (0,), -1, ConfigError, "costs -1 units"),
    ):
        case = client, records, cost
        refused(case, error, ledger.admit, client, ids(*records), cost, match=words)
        assert spending(ledger) == before
    ledger.admit(0, ids(0, 3), COST)
    ledger.admit(1, ids(0, 1, 2, 3), COST)  # a share of its own
    for share in (-1, -1e-9):
        refused(share, ConfigError, MemoryLedger, 3, 2, share, match="client's share of a record")
    refused("no share", BudgetError, MemoryLedger(3, 2, 0).admit, 0, ids(1), 1)


def test_a_loaded_ledger_goes_on() -> None:
    one, other = (MemoryLedger(records=3, clients=2, share=2 * COST, steps=2) for _ in range(2))
    one.begin_step(0)
    one.commit([entry(1, 0, 2)] * 2)
    other.load(deepcopy(one.state()))
    assert other.spent == 2 * COST
    refused("charged before", BudgetError, other.admit, 1, ids(2), COST)
    other.commit([entry(0, 2)])
    assert (one.spent, other.steps) == (2 * COST, 1)
    other.begin_step(1)
    refused("no step left", BudgetError, other.begin_step, 2)
    assert one.steps == 1
    assert one.answered(1) is None  # it does not outlive its process


def test_secret_steps_come_in_order_and_end() -> None:
    """Every step is charged to every record, so that their number is all there is to count."""
    ledger = MemoryLedger(records=3, clients=1, share=COST, steps=3)
    refused(1, ConflictError, ledger.begin_step, 1, match="secret step 1; 0 is the next")
    for number in range(3):
        assert ledger.steps == number
        ledger.begin_step(number)
    for number in (0, 2, 4):
        words = f"secret step {number}; 3 is the next"
        refused(number, ConflictError, ledger.begin_step, number, match=words)
    words = "all 3 steps on secret samples were made"
    refused(3, BudgetError, ledger.begin_step, 3, match=words)
    assert (ledger.steps, ledger.spent) == (3, 0)
    refused("none", BudgetError, MemoryLedger(records=3, clients=1, share=COST).begin_step, 0)


@given(mu=st.floats(1e-7, 1e3))
@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
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
    assert (units(0.0), units(1e-30), mu_of_units(0)) == (0, 1, 0)
    assert mu_of_units(units(3.0)) == pytest.approx(3.0, rel=1e-12)


def test_long_sums_are_exact() -> None:
    """100,000 charges of a third of a μ² pass 2^53 units: floats added up would drift."""
    ledger = MemoryLedger(records=1, clients=1, share=2**62)
    cost = units(math.sqrt(1 / 3))
    for _ in range(100):
        ledger.commit([entry(0, 0, cost=cost)] * 1000)
    assert ledger.spent == 10**5 * cost > 2**53


CHARGES = st.lists(
    st.tuples(st.integers(0, 1), st.sets(st.integers(0, 4), min_size=1), st.integers(1, 4)),
    max_size=25,
)


@settings(max_examples=examples(100), deadline=None, derandomize=True, database=None)
@given(charges=CHARGES, share=st.integers(1, 7))
def test_any_order_of_charges(charges: list[tuple[int, set[int], int]], share: int) -> None:
    """Against sums: none passes its share, what fits is taken, admitting charges nothing."""
    ledger = MemoryLedger(records=5, clients=2, share=share)
    model = [[0] * 5, [0] * 5]
    for client, records, cost in charges:
        if any(model[client][record] + cost > share for record in records):
            with pytest.raises(BudgetError):
                ledger.admit(client, ids(*records), cost)
        else:
            ledger.admit(client, ids(*records), cost)
            assert spending(ledger) == model
            ledger.commit([entry(client, *records, cost=cost)])
            for record in records:
                model[client][record] += cost
        assert spending(ledger) == model
        assert ledger.spent == max(map(sum, zip(*model, strict=True)))
