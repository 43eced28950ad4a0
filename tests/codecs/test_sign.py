from __future__ import annotations

import struct

import pytest
import torch

from vertizo.codecs.sign import Sign


def test_signs_have_the_mean_size_of_their_row() -> None:
    array = torch.tensor([[1.0, -3.0, 0.0], [0.5, 0.5, 0.5]])
    codec = Sign()
    data = codec.encode(array)
    third = 4 / 3
    assert bytes(data) == struct.pack("<2f", third, 0.5) + bytes([0b000_010])
    found = codec.decode(data, (2, 3))
    assert torch.allclose(found, torch.tensor([[third, -third, third], [0.5] * 3]))
    assert torch.equal(codec.decode(codec.encode(found), (2, 3)), found)


def test_the_mean_of_signs_does_not_overflow() -> None:
    most = torch.finfo(torch.float32).max
    array = torch.tensor([most, -most, most])
    assert torch.equal(Sign().decode(Sign().encode(array), (3,)), array)


@pytest.mark.parametrize(
    ("shape", "size"), [((9,), 4 + 2), ((5, 3), 20 + 2), ((2, 5, 3), 40 + 4), ((), 5), ((3, 0), 0)]
)
def test_sizes_of_signs(shape: tuple[int, ...], size: int) -> None:
    assert Sign().size(shape) == size == len(Sign().encode(torch.randn(shape)))
