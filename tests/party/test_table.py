from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
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


def test_it_starts_with_zeros_of_round_zero() -> None:
    table = EmbeddingTable(4, [2, 3])
    assert torch.equal(table.values, torch.zeros(4, 5))
    assert torch.equal(table.refreshed[torch.arange(4)], torch.zeros(4, 2, dtype=torch.int32))


@every_join
def test_width_is_that_of_the_joined_row(join: Join) -> None:
    table, parts = filled(join)
    assert table.width == joined(join, parts).shape[1]


@each("join", ["sum", "mean"])
def test_adding_needs_equal_sizes(join: Join) -> None:
    with pytest.raises(ConfigError, match=r"\[2, 3\]"):
        EmbeddingTable(4, [2, 3], join)
    assert EmbeddingTable(4, [3, 3], join).width == 3


stores = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.integers(0, RECORDS - 1), min_size=1, unique=True, max_size=5),
    ),
    max_size=12,
)


@given(stores=stores, join=st.sampled_from(JOINS))
@settings(deadline=None)
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


def test_what_was_stored_is_the_tables_own() -> None:
    table, embeddings = EmbeddingTable(3, [2]), torch.ones(1, 2)
    table.store(0, torch.tensor([1]), embeddings, 1)
    embeddings.zero_()
    assert table.values[1].tolist() == [1, 1]


@every_join
@each("client", [0, 1, 2])
def test_points_are_rows_with_one_part_replaced_then_the_rows(join: Join, client: int) -> None:
    table, parts = filled(join)
    before = table.values.clone()
    ids = torch.tensor([5, 2, 8, 0])
    rows = [part[ids] for part in parts]
    replacements = torch.randn(2, 4, dims_of(join)[client])
    points = written_out(table.points(ids, [(client, replacements)]))
    assert points.shape == (3, 4, table.width)
    for point, own in zip(points, replacements, strict=False):
        expected = [own if other == client else row for other, row in enumerate(rows)]
        assert torch.allclose(point, joined(join, expected), atol=1e-6)
    assert torch.allclose(points[-1], joined(join, rows), atol=1e-6)
    assert torch.equal(table.values, before)


@every_join
def test_points_of_several_clients_come_in_order(join: Join) -> None:
    table, parts = filled(join)
    ids = torch.tensor([3, 1])
    rows = [part[ids] for part in parts]
    dims = dims_of(join)
    pairs = [(2, torch.randn(2, 2, dims[2])), (0, torch.randn(1, 2, dims[0]))]
    points = written_out(table.points(ids, pairs))
    expected = [
        [rows[0], rows[1], pairs[0][1][0]],
        [rows[0], rows[1], pairs[0][1][1]],
        [pairs[1][1][0], rows[1], rows[2]],
        rows,
    ]
    assert torch.allclose(points, torch.stack([joined(join, x) for x in expected]), atol=1e-6)


@every_join
def test_points_are_a_copy(join: Join) -> None:
    table, _ = filled(join)
    before = table.values.clone()
    points = table.points(torch.tensor([0, 1]), [(1, torch.ones(1, 2, dims_of(join)[1]))])
    points.rows.add_(1)
    points.shifts[0][1].add_(1)
    assert torch.equal(table.values, before)


@every_join
def test_no_replacement_gives_the_rows_alone(join: Join) -> None:
    table, parts = filled(join)
    ids = torch.tensor([8, 0, 3])
    (points,) = written_out(table.points(ids, []))
    assert torch.allclose(points, joined(join, [part[ids] for part in parts]), atol=1e-6)


@every_join
def test_combine_joins_rows_of_any_number_of_dimensions(join: Join) -> None:
    table, parts = filled(join)
    rows = torch.cat(parts, 1)
    assert torch.allclose(table.combine(rows), joined(join, parts), atol=1e-6)
    deep = torch.stack([rows, 2 * rows])
    assert torch.allclose(table.combine(deep)[1], 2 * joined(join, parts), atol=1e-6)


@every_join
@each("client", [0, 1, 2])
def test_part_is_the_gradient_of_the_clients_embeddings(join: Join, client: int) -> None:
    table, parts = filled(join)
    leaves = [part.clone().requires_grad_(True) for part in parts]
    weights = torch.randn(RECORDS, table.width)
    (joined(join, leaves).square() * weights).sum().backward()
    gradient = 2 * weights * joined(join, parts)
    assert torch.allclose(table.part(client, gradient), leaves[client].grad, atol=1e-5)


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
