from __future__ import annotations

from typing import Literal

import pytest
import torch
from tests.federations import back
from torch import Tensor

from vertizo.core.errors import MalformedError
from vertizo.protocol.codecs.lattice import Hexagonal, Lattice

KINDS: tuple[Literal["hexagonal", "scalar"], ...] = ("hexagonal", "scalar")
BITS: tuple[Literal[8, 4, 2], ...] = (8, 4, 2)
LATTICES = [Lattice(kind=kind, bits=bits) for kind in KINDS for bits in BITS]


def square(rows: int = 1000) -> Tensor:
    """Numbers spread evenly from −1 to 1, both ends among them."""
    array = 2 * torch.rand(rows, 64, generator=torch.Generator().manual_seed(1)) - 1
    array[0, :4] = torch.tensor([1.0, 1.0, -1.0, 1.0])
    return array


def steps(codec: Lattice) -> float:
    """Steps of the lattice from 0 to 1."""
    if codec.kind == "scalar":
        return (2**codec.bits - 1) / 2
    return Hexagonal.of(2 * codec.bits).span / 2


def test_the_error_stays_within_the_cell() -> None:
    array = square()
    array[1:5] = array[1:5].sign()  # corners of the square, where points could be missing
    neighbours = torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5], [-0.5, 0.75**0.5]])
    for codec in LATTICES:
        errors = (back(codec, array) - array) * steps(codec)
        if codec.kind == "hexagonal":
            errors = errors.view(-1, 2) @ neighbours.T
        assert float(errors.abs().max()) <= 0.5 + 1e-4, codec


def test_the_error_is_spread_evenly_and_knows_nothing_of_the_number() -> None:
    """Second moments of the cell: 1/12 of an interval, 5/72 of each axis of a hexagon."""
    array = square()
    count = array.numel()
    for codec in LATTICES:
        errors = (back(codec, array) - array) * steps(codec)
        moment = 1 / 12 if codec.kind == "scalar" else 5 / 72
        assert abs(float(errors.mean())) < 4 * (moment / count) ** 0.5, codec
        assert float(errors.square().mean()) == pytest.approx(moment, rel=0.02), codec
        for known in (array, array.abs(), array**3, torch.sin(40 * array)):
            both = torch.stack([known.reshape(-1), errors.reshape(-1)])
            assert abs(float(torch.corrcoef(both)[0, 1])) < 4 / count**0.5, codec


def test_a_constant_is_not_off_by_a_constant() -> None:
    """Without dither every number of an array of thirds would have the same error."""
    array = torch.full((200, 50), 1 / 3)
    array[0, 0] = 1.0
    errors = back(Lattice(bits=2, kind="scalar"), array) - array
    assert float(errors.std()) > 0.15
    assert abs(float(errors.mean())) < 0.01


def test_hexagons_against_intervals() -> None:
    """Rounder cells gain 3 % at 8 bits; with few points more is lost around the edge."""
    array = square(4000)
    for bits, ratio in zip(BITS, (0.969, 1.029, 1.407), strict=True):
        hexagons, intervals = (
            float((back(Lattice(kind=kind, bits=bits), array) - array).square().mean())
            for kind in KINDS
        )
        assert hexagons / intervals == pytest.approx(ratio, abs=0.02), bits


def test_the_hexagonal_points_are_the_nearest() -> None:
    """Against all points, one by one."""
    for bits in (4, 8, 16):
        grid = Hexagonal.of(bits)
        count = grid.rows * grid.columns
        assert count <= 2**bits
        pairs, dither = 2 * torch.rand(300, 2) - 1, torch.rand(300, 2) - 0.5
        points = grid.point(torch.arange(count), torch.zeros(count, 2))
        shifted = pairs + dither * torch.tensor([1.0, 0.75**0.5]) / (grid.span / 2)
        distances = torch.cdist(shifted, points, compute_mode="donot_use_mm_for_euclid_dist")
        codes = grid.nearest(pairs, dither)
        assert int(codes.min()) >= 0, bits
        assert int(codes.max()) < count, bits
        found = (shifted - points[codes.long()]).norm(dim=1)
        assert torch.allclose(found, distances.min(1).values, atol=1e-5), bits


def test_the_dither_is_a_public_constant() -> None:
    """Both sides must have the same one, on every machine and in every release."""
    codec = Lattice(kind="scalar", bits=8)
    found = codec.decode(memoryview(bytes.fromhex("0000803f") + bytes(3)), (3,)) * 127.5
    assert found.tolist() == pytest.approx([-127.6225, -127.6885, -127.0194], abs=1e-3)


def test_arrays_longer_than_the_dither() -> None:
    array = torch.rand(2**16 + 9) * 2 - 1
    for kind in KINDS:
        errors = back(Lattice(kind=kind), array) - array
        assert float(errors.abs().max()) < 0.01


def test_points_beyond_the_lattice_are_refused() -> None:
    grid = Hexagonal.of(16)
    first = (grid.rows * grid.columns).to_bytes(2, "little")
    with pytest.raises(MalformedError, match="beyond"):
        Lattice().decode(memoryview(bytes(4) + first), (2,))
