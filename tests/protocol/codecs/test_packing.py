from __future__ import annotations

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.refusals import refused

from vertizo.core.errors import MalformedError
from vertizo.protocol.codecs.packing import pack, pack_floats, packed_size, unpack, unpack_floats

WIDTHS = [*range(1, 18), 24, 31, 32]


@given(drawn=st.lists(st.integers(0, 2**32 - 1), max_size=20))
@example(drawn=[2**32 - 1] * 9)
@settings(deadline=None, max_examples=50)
def test_bits_lie_where_the_docstring_says(drawn: list[int]) -> None:
    for width in WIDTHS:
        numbers = [number % 2**width for number in drawn]
        as_one = sum(number << (place * width) for place, number in enumerate(numbers))
        expected = as_one.to_bytes((len(numbers) * width + 7) // 8, "little")
        assert pack(np.array(numbers, np.int64), width) == expected, width
        assert packed_size(len(numbers), width) == len(expected), width
        assert unpack(memoryview(expected), len(numbers), width).tolist() == numbers, width


def test_bits_after_the_last_number_must_be_zero() -> None:
    for width, count in ((1, 9), (2, 3), (3, 3), (4, 1), (7, 9), (12, 1)):
        data = bytearray(pack(np.zeros(count, np.uint8), width))
        data[-1] |= 0x80
        arguments = memoryview(data), count, width
        refused(width, MalformedError, unpack, *arguments, match="after the last")


def test_floats_are_little_endian() -> None:
    data = pack_floats(torch.tensor([1.0, -2.5]))
    assert data == bytes.fromhex("0000803f000020c0")
    assert unpack_floats(memoryview(data)).tolist() == [1.0, -2.5]
