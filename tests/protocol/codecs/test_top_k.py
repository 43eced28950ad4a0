from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import ValidationError

from vertizo.core.errors import MalformedError
from vertizo.protocol.codecs.top_k import TopK

shapes = arrays.array_shapes(max_dims=3, max_side=20)


@given(
    array=arrays.arrays(np.float32, shapes, elements=st.floats(-9, 9, width=32)),
    fraction=st.floats(0.01, 1),
)
@settings(deadline=None, max_examples=100)
def test_the_largest_of_every_row_are_kept_exactly(array: np.ndarray, fraction: float) -> None:
    codec = TopK(fraction=fraction)
    given_ = torch.from_numpy(array)
    found = codec.decode(codec.encode(given_), array.shape)
    kept = max(1, round(fraction * array.shape[-1]))
    for before, after in zip(
        given_.view(-1, array.shape[-1]), found.view(-1, array.shape[-1]), strict=True
    ):
        assert ((after == before) | (after == 0)).all()
        largest = before.abs().sort(descending=True).values
        assert torch.equal(after.abs().sort(descending=True).values[:kept], largest[:kept])
        assert not after.abs().sort(descending=True).values[kept:].any()
    assert torch.equal(codec.decode(codec.encode(found), array.shape), found)


@pytest.mark.parametrize(
    ("fraction", "shape", "size"),
    [
        (0.1, (64, 64), 64 * 36 // 8 + 64 * 6 * 4),  # 6 columns of 6 bits a row
        (0.3, (64, 64), 64 * 64 // 8 + 64 * 19 * 4),  # bitmaps
        (0.5, (3, 3), 2 + 3 * 2 * 4),
        (1.0, (5, 3), 60),
        (0.1, (1000,), 125 + 400),
        (0.01, (1000,), 13 + 40),
        (0.1, (2, 5, 1), 40),
        (0.5, (3, 0), 0),
        (0.5, (), 4),
    ],
)
def test_sizes(fraction: float, shape: tuple[int, ...], size: int) -> None:
    codec = TopK(fraction=fraction)
    assert codec.size(shape) == size == len(codec.encode(torch.randn(shape)))


def test_the_bytes_are_places_and_then_values() -> None:
    array = torch.tensor([[0.0, 2.0, 0.0, -1.0], [5.0, 0.0, 0.0, 6.0]])
    values = struct.pack("<4f", 2, -1, 5, 6)
    assert bytes(TopK(fraction=0.5).encode(array)) == bytes([0b1001_1010]) + values
    one = torch.tensor([0.0, 0.0, 0.0, 0.0, -7.0])
    assert bytes(TopK(fraction=0.2).encode(one)) == bytes([0b100]) + struct.pack("<f", -7)


def test_places_that_are_none_are_refused() -> None:
    codec, values = TopK(fraction=0.2), bytes(8)
    first, second = 3, 4
    for columns in ((second, first), (first, first), (first, 10), (15, 15)):
        places = bytes([columns[0] | columns[1] << 4])
        with pytest.raises(MalformedError, match="rise"):
            codec.decode(memoryview(places + values), (10,))
    assert codec.decode(memoryview(bytes([first | second << 4]) + values), (10,)).shape == (10,)
    for bitmap in (0b0111, 0b1000, 0):
        with pytest.raises(MalformedError, match="kept values"):
            TopK(fraction=0.5).decode(memoryview(bytes([bitmap]) + values), (4,))


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, float("nan"), True])
def test_other_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(ValidationError):
        TopK(fraction=fraction)
