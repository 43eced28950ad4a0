"""The ledger counts, refuses in time, and changes nothing when it refuses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vertizo.errors import BudgetError, ConfigError
from vertizo.privacy.ledger import Ledger


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def counts(ledger: Ledger) -> torch.Tensor:
    return ledger.state()["counts"].clone()


def test_one_more_than_the_limit_is_refused() -> None:
    ledger = Ledger(records=4, clients=1, per_client=3)
    for _ in range(3):
        ledger.charge(0, ids(0, 2))
    with pytest.raises(BudgetError, match="2 of 2 records"):
        ledger.charge(0, ids(0, 2))
    ledger.charge(0, ids(1, 3))


def test_a_refusal_changes_nothing() -> None:
    ledger = Ledger(records=5, clients=2, per_client=1)
    ledger.charge(0, ids(2))
    before = counts(ledger)
    with pytest.raises(BudgetError, match=r"1 of 4 records .* replies to client 0"):
        ledger.charge(0, ids(0, 1, 2, 3))
    assert torch.equal(counts(ledger), before)
    assert ledger.spent == 1
    ledger.charge(0, ids(0, 1, 3))


def test_every_client_has_a_share_of_its_own() -> None:
    ledger = Ledger(records=3, clients=3, per_client=2)
    for _ in range(2):
        ledger.charge(1, ids(0, 1, 2))
    with pytest.raises(BudgetError):
        ledger.charge(1, ids(0))
    for client in (0, 2):
        for _ in range(2):
            ledger.charge(client, ids(0, 1, 2))
    assert ledger.spent == ledger.max_participations == 6


def test_spent_is_the_most_used_record_over_all_clients() -> None:
    ledger = Ledger(records=4, clients=2, per_client=9)
    assert ledger.spent == 0
    ledger.charge(0, ids(0, 1))
    ledger.charge(1, ids(1, 2))
    assert ledger.spent == 2
    ledger.charge(0, ids(3))
    assert ledger.spent == 2


@pytest.mark.parametrize("per_client", [0, -1])
def test_a_share_must_be_positive(per_client: int) -> None:
    with pytest.raises(ConfigError, match="participations per client"):
        Ledger(records=3, clients=2, per_client=per_client)


def test_a_loaded_ledger_goes_on() -> None:
    one = Ledger(records=3, clients=2, per_client=2)
    for _ in range(2):
        one.charge(1, ids(0, 2))
    other = Ledger(records=3, clients=2, per_client=2)
    other.load({key: value.clone() for key, value in one.state().items()})
    assert other.spent == 2
    with pytest.raises(BudgetError):
        other.charge(1, ids(2))
    other.charge(0, ids(2))
    assert one.spent == 2


CHARGES = st.lists(
    st.tuples(st.integers(0, 1), st.sets(st.integers(0, 4), min_size=1)), max_size=25
)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(charges=CHARGES, per_client=st.integers(1, 3))
def test_any_order_of_charges(charges: list[tuple[int, set[int]]], per_client: int) -> None:
    """Against a dictionary: no record passes its share, and what fits is never refused."""
    ledger = Ledger(records=5, clients=2, per_client=per_client)
    model: dict[tuple[int, int], int] = {}
    for client, records in charges:
        if any(model.get((client, record), 0) == per_client for record in records):
            with pytest.raises(BudgetError):
                ledger.charge(client, ids(*sorted(records)))
        else:
            ledger.charge(client, ids(*sorted(records)))
            for record in records:
                model[client, record] = model.get((client, record), 0) + 1
    for client in range(2):
        for record in range(5):
            assert counts(ledger)[client, record] == model.get((client, record), 0) <= per_client
