from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

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
    assert ((found == given_) | (found == 0)).all()
    before, after = (x.abs().sort(-1, descending=True).values for x in (given_, found))
    assert torch.equal(after[..., :kept], before[..., :kept])
    assert not after[..., kept:].any()
    assert torch.equal(codec.decode(codec.encode(found), array.shape), found)


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
