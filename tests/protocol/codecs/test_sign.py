from __future__ import annotations

import struct

import torch

from vertizo.protocol.codecs.sign import Sign


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


def test_one_size_for_all_records_of_a_point() -> None:
    array = torch.tensor([[[1.0, -3.0], [0.0, 4.0]], [[0.5, 0.5], [-0.5, 0.5]]])
    codec = Sign(scale="array")
    data = codec.encode(array)
    assert bytes(data) == struct.pack("<2f", 2.0, 0.5) + bytes([0b0100_0010])
    found = codec.decode(data, (2, 2, 2))
    assert found.tolist() == [[[2.0, -2.0], [2.0, 2.0]], [[0.5, 0.5], [-0.5, 0.5]]]
