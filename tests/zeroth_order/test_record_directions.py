"""Directions on embeddings: their moments, record by record, and their independence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.zeroth_order.directions import LAWS, _remembered, record_directions

COUNT, BATCH, DIM = 3, 4, 5
DRAWS = 4000

FACTORS = {"sphere": DIM, "coordinate": DIM}
NORMS = {"sphere": 1.0, "coordinate": 1.0, "scaled-sphere": DIM**0.5, "rademacher": DIM**0.5}


@pytest.fixture(scope="module")
def drawn() -> dict[str, Tensor]:
    """Many draws of every law, [draws, count, batch, dimension]."""
    found = {}
    for law in LAWS:
        seeds = map(Stream.from_seed(8).child(law).seed, range(DRAWS))
        draws = [record_directions(law, COUNT, BATCH, DIM, seed)[0] for seed in seeds]
        found[law] = torch.stack(draws).double()
    return found


def test_shape_type_and_factor() -> None:
    for law in LAWS:
        for count, batch, dimension in ((1, 1, 1), (7, 2, 3), (2, 9, 64)):
            u, factor = record_directions(law, count, batch, dimension, seed=3)
            assert u.shape == (count, batch, dimension), law
            assert u.dtype == torch.float32, law
            assert factor == (dimension if law in FACTORS else 1), law
            assert bool(u.isfinite().all()), law


def test_norms(drawn: dict[str, Tensor]) -> None:
    for law in LAWS:
        norms = drawn[law].norm(dim=3)
        if law in NORMS:
            assert torch.allclose(norms, torch.full_like(norms, NORMS[law]), rtol=1e-5), law
        else:  # gaussian: ‖u‖² has mean d and variance 2d
            squares = norms.square()
            error = math.sqrt(2 * DIM / squares.numel())
            assert abs(float(squares.mean()) - DIM) < 5 * error, law


def test_moments(drawn: dict[str, Tensor]) -> None:
    """``E[u] = 0`` and ``φ E[u uᵀ] = I``, for each of a query's directions and each record.

    ``E[φ (Σ_i g_i·u_i) u_j] = g_j``: VFL-CZOFO's one number for all records estimates each record's
    gradient.
    """
    wanted = torch.eye(DIM, dtype=torch.float64)
    gradient = torch.linspace(-1, 2, BATCH * DIM, dtype=torch.float64).view(BATCH, DIM)
    for law in LAWS:
        u, factor = drawn[law], FACTORS.get(law, 1)
        slopes = (u * gradient).sum((2, 3), keepdim=True)
        for values, expected, slack, most in (
            (u, torch.zeros(DIM), 0.0, math.inf),
            (factor * u.unsqueeze(4) * u.unsqueeze(3), wanted, 1e-6, 0.06),
            (factor * (slopes * u).mean(1), gradient, 0.0, 0.3),
        ):
            mean, error = values.mean(0), values.std(0) / math.sqrt(DRAWS)
            assert torch.all((mean - expected).abs() <= 5 * error + slack), law
            assert float(error.max()) < most, law  # so that a wrong factor could not hide


def test_records_and_directions_are_uncorrelated(drawn: dict[str, Tensor]) -> None:
    """``E[u_i u_jᵀ] = 0`` for two records, which the slope of a whole batch rests on.

    Of one record's directions it holds as well, except that a later axis is never an earlier one;
    there too no two are correlated, by their signs.
    """
    for law in LAWS:
        rows = drawn[law].flatten(1, 2)
        products = FACTORS.get(law, 1) * torch.einsum("nia,njb->ijab", rows, rows) / DRAWS
        size = COUNT * BATCH
        off = ~torch.eye(size, dtype=torch.bool)
        scale = DIM if law == "coordinate" else 1  # E of a product's square: 1/d of φ² for an axis
        error = math.sqrt(scale / DRAWS)
        assert float(products[off].abs().max()) < 5.5 * error, law


def test_a_seed_decides_them() -> None:
    """And nothing else, at either side: the last few are kept, and drawn again they are alike."""
    for law in LAWS:
        torch.manual_seed(0)
        before = torch.get_rng_state()
        one, _ = record_directions(law, 3, 8, 6, seed=2**64 - 1)
        kept = one.clone()
        other, _ = record_directions(law, 3, 8, 6, seed=2**64 - 2)
        assert not torch.equal(one, other), law
        assert torch.equal(before, torch.get_rng_state()), law
        torch.manual_seed(1)
        _remembered.cache_clear()
        same, _ = record_directions(law, 3, 8, 6, seed=2**64 - 1)
        assert same is not one, law
        assert torch.equal(kept, same), law
        assert torch.equal(kept, one), law


def test_as_many_axes_as_numbers_are_the_whole_gradient() -> None:
    """Each axis as often as every other, for each record: the sum has no variance."""
    for count in [DIM, 3 * DIM]:
        u, factor = record_directions("coordinate", count, BATCH, DIM, seed=1)
        gradient = torch.linspace(-1, 2, BATCH * DIM).view(BATCH, DIM)
        slopes = (u * gradient).sum(2, keepdim=True)
        assert torch.allclose(factor / count * (slopes * u).sum(0), gradient, atol=1e-6), count
        axes = u.abs().argmax(2)
        columns = {tuple(column.tolist()) for column in axes.t()}
        assert len(columns) > 1, count  # not all records alike


def test_no_direction_is_infinite_or_nothing() -> None:
    """In one dimension a sphere has two points."""
    for law in ("sphere", "scaled-sphere", "coordinate", "rademacher"):
        u, _ = record_directions(law, 50, 50, 1, seed=4)
        assert torch.allclose(u.abs(), torch.ones(50, 50, 1))
        assert abs(float(u.mean())) < 0.1
