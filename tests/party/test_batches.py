"""Every record is in exactly one batch of an epoch."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.lazy import Lazy
from tests.rows import examples

from vertizo.core.randomness import Stream
from vertizo.party.batches import Batches

stats = Lazy("scipy.stats")


@settings(max_examples=examples(100), deadline=None, derandomize=True, database=None)
@given(records=st.integers(1, 60), size=st.integers(1, 70), number=st.integers(0, 50))
@example(records=60_000, size=64, number=0)
def test_an_epoch_holds_every_record_once(records: int, size: int, number: int) -> None:
    batches = Batches(records, size, Stream.from_seed(1))
    first = number * batches.per_epoch
    cut = [batches.ids(first + position) for position in range(batches.per_epoch)]
    assert sorted(torch.cat(cut).tolist()) == list(range(records))
    assert all(len(ids) == size for ids in cut[:-1])
    assert len(cut[-1]) == records - size * (len(cut) - 1) > 0
    assert cut[0].dtype == torch.int64


def test_a_batch_is_a_function_of_its_number() -> None:
    forward, jumping = (Batches(23, 5, Stream.from_seed(3)) for _ in range(2))
    known = [forward.ids(n).tolist() for n in range(20)]
    for n in (17, 2, 19, 3, 0, 9):
        assert jumping.ids(n).tolist() == known[n]


def test_epochs_and_owners_are_shuffled_apart() -> None:
    mine, other = (Batches(100, 100, Stream.from_seed(3).child("client", m)) for m in (0, 1))
    orders = [mine.ids(0), mine.ids(1), other.ids(0), torch.arange(100)]
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_every_record_is_as_likely_to_come_first() -> None:
    batches = Batches(8, 8, Stream.from_seed(5))
    counts = torch.zeros(8)
    for number in range(2000):
        counts[batches.ids(number)[0]] += 1
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
