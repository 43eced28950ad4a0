from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vertizo.core.errors import MalformedError
from vertizo.protocol.codecs.packing import pack, pack_floats, packed_size, unpack, unpack_floats

WIDTHS = [*range(1, 18), 24, 31, 32]
every_width = pytest.mark.parametrize("width", WIDTHS)


@every_width
@given(data=st.data())
@settings(deadline=None, max_examples=25)
def test_bits_lie_where_the_docstring_says(width: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, 2**width - 1), max_size=20))
    as_one = sum(number << (place * width) for place, number in enumerate(numbers))
    expected = as_one.to_bytes((len(numbers) * width + 7) // 8, "little")
    assert pack(np.array(numbers, np.int64), width) == expected
    assert packed_size(len(numbers), width) == len(expected)
    assert unpack(memoryview(expected), len(numbers), width).tolist() == numbers


@pytest.mark.parametrize(("width", "count"), [(1, 9), (2, 3), (3, 3), (4, 1), (7, 9), (12, 1)])
def test_bits_after_the_last_number_must_be_zero(width: int, count: int) -> None:
    data = bytearray(pack(np.zeros(count, np.uint8), width))
    data[-1] |= 0x80
    with pytest.raises(MalformedError, match="after the last"):
        unpack(memoryview(data), count, width)


def test_floats_are_little_endian() -> None:
    data = pack_floats(torch.tensor([1.0, -2.5]))
    assert data == bytes.fromhex("0000803f000020c0")
    assert unpack_floats(memoryview(data)).tolist() == [1.0, -2.5]
