from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import each
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.core.names import Join
from vertizo.models.base import Points
from vertizo.party.table import EmbeddingTable

RECORDS = 9
JOINS: list[Join] = ["concat", "sum", "mean"]
every_join = each("join", JOINS)


def dims_of(join: Join) -> list[int]:
    return [2, 1, 3] if join == "concat" else [2, 2, 2]


def filled(join: Join) -> tuple[EmbeddingTable, list[Tensor]]:
    """A table, and every client's entries on their own."""
    dims = dims_of(join)
    table = EmbeddingTable(RECORDS, dims, join)
    parts = [torch.randn(RECORDS, dim) for dim in dims]
    for client, part in enumerate(parts):
        table.store(client, torch.arange(RECORDS), part, client + 1)
    return table, parts


def joined(join: Join, parts: list[Tensor]) -> Tensor:
    if join == "concat":
        return torch.cat(parts, -1)
    total = sum(parts[1:], parts[0])
    return total if join == "sum" else total / len(parts)


def written_out(points: Points) -> Tensor:
    """Every point as one array, [points, batch, width]."""
    rows = points.rows.unsqueeze(0)
    if not points.shifts:
        return rows
    return torch.cat([points.changed().view(len(points) - 1, *points.rows.shape), rows])


stores = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.integers(0, RECORDS - 1), min_size=1, unique=True, max_size=5),
    ),
    max_size=12,
)


@given(stores=stores, join=st.sampled_from(JOINS))
def test_store_replaces_these_entries_and_no_others(
    stores: list[tuple[int, list[int]]], join: Join
) -> None:
    dims = dims_of(join)
    table = EmbeddingTable(RECORDS, dims, join)
    parts = [torch.zeros(RECORDS, dim) for dim in dims]
    rounds = torch.zeros(RECORDS, 3, dtype=torch.int32)
    for round_, (client, ids) in enumerate(stores, 1):
        embeddings = torch.randn(len(ids), dims[client])
        table.store(client, torch.tensor(ids), embeddings, round_)
        for record, embedding in zip(ids, embeddings, strict=True):
            parts[client][record] = embedding
            rounds[record, client] = round_
    assert torch.equal(table.values, torch.cat(parts, 1))
    assert torch.equal(table.refreshed, rounds)
    some = torch.tensor([4, 0, 7])
    assert torch.equal(table.refreshed[some], rounds[some])


@every_join
def test_a_table_is_made_of_zeros_and_its_own_copies(join: Join) -> None:
    table, dims = EmbeddingTable(4, dims_of(join), join), dims_of(join)
    assert torch.equal(table.values, torch.zeros(4, sum(dims)))
    assert torch.equal(table.refreshed[torch.arange(4)], torch.zeros(4, 3, dtype=torch.int32))
    embeddings = torch.ones(1, dims[0])
    table.store(0, torch.tensor([1]), embeddings, 1)
    embeddings.zero_()
    points = table.points(torch.tensor([1]), [(1, torch.ones(1, 1, dims[1]))])
    points.rows.add_(1)
    points.shifts[0][1].add_(1)
    assert table.values[1].tolist() == [1.0] * dims[0] + [0.0] * (sum(dims) - dims[0])


@each("join", ["sum", "mean"])
def test_adding_needs_equal_sizes(join: Join) -> None:
    with pytest.raises(ConfigError, match=r"\[2, 3\]"):
        EmbeddingTable(4, [2, 3], join)
    assert EmbeddingTable(4, [3, 3], join).width == 3


@every_join
@each("replaced", [(), (0,), (1,), (2,), (2, 0)])
def test_points_are_rows_with_one_part_replaced_then_the_rows(
    join: Join, replaced: tuple[int, ...]
) -> None:
    """Those of several clients come in order."""
    table, parts = filled(join)
    before, ids = table.values.clone(), torch.tensor([5, 2, 8, 0])
    rows = [part[ids] for part in parts]
    pairs = [(m, torch.randn(n, 4, dims_of(join)[m])) for n, m in enumerate(replaced, 1)]
    points = written_out(table.points(ids, pairs))
    expected = [
        [own if other == client else row for other, row in enumerate(rows)]
        for client, replacements in pairs
        for own in replacements
    ]
    wanted = torch.stack([joined(join, x) for x in [*expected, rows]])
    assert points.shape == (len(expected) + 1, 4, table.width)
    assert torch.allclose(points, wanted, atol=1e-6)
    assert torch.equal(table.values, before)


@every_join
def test_combine_joins_rows_and_part_is_the_gradient_of_a_clients_embeddings(join: Join) -> None:
    """Rows of any number of dimensions."""
    table, parts = filled(join)
    rows = torch.cat(parts, 1)
    assert torch.allclose(table.combine(rows), joined(join, parts), atol=1e-6)
    deep = torch.stack([rows, 2 * rows])
    assert torch.allclose(table.combine(deep)[1], 2 * joined(join, parts), atol=1e-6)
    leaves = [part.clone().requires_grad_(True) for part in parts]
    weights = torch.randn(RECORDS, table.width)
    (joined(join, leaves).square() * weights).sum().backward()
    gradient = 2 * weights * joined(join, parts)
    for client, leaf in enumerate(leaves):
        assert torch.allclose(table.part(client, gradient), leaf.grad, atol=1e-5), client


@every_join
def test_state_comes_back_in_another_table(join: Join) -> None:
    table, _ = filled(join)
    other = EmbeddingTable(RECORDS, dims_of(join), join)
    other.load({key: value.clone() for key, value in table.state().items()})
    assert torch.equal(other.values, table.values)
    assert torch.equal(other.refreshed, table.refreshed)
    ids = torch.tensor([1, 4])
    other.store(1, ids, torch.zeros(2, dims_of(join)[1]), 99)
    assert torch.equal(other.refreshed[ids][:, 1], torch.tensor([99, 99], dtype=torch.int32))
    assert int(table.refreshed.max()) == 3
    assert torch.equal(other.points(ids, []).rows, other.combine(other.values[ids]))


def test_large_rows_reuse_memory_that_nobody_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vertizo.party.table.KEPT_WHEN_FREED", 0)
    table, _ = filled("concat")
    first = table.points(torch.tensor([1, 2, 3]))
    kept = first.rows.clone()
    second = table.points(torch.tensor([4, 5]))
    assert torch.equal(first.rows, kept)
    assert torch.equal(kept, table.values[1:4])
    assert torch.equal(second.rows, table.values[4:6])
    place = second.rows.data_ptr()
    del second
    third = table.points(torch.tensor([7]))
    assert third.rows.data_ptr() == place
    assert torch.equal(third.rows, table.values[7:8])
