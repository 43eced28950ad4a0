from __future__ import annotations

import struct

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.refusals import refused

from vertizo.core.errors import MalformedError
from vertizo.protocol.codecs.none import NoCompression

shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


def there_and_back(codec: NoCompression, array: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(array), tuple(array.shape))


@given(numbers=arrays.arrays(np.float32, shapes, elements=st.floats(width=32)))
@settings(deadline=None)
def test_float32_keeps_every_bit(numbers: np.ndarray) -> None:
    found = there_and_back(NoCompression(), torch.from_numpy(numbers))
    assert found.shape == numbers.shape
    assert found.numpy().tobytes() == numbers.tobytes()


@given(numbers=arrays.arrays(np.float32, shapes, elements=st.floats(-65_000, 65_000, width=32)))
@settings(deadline=None)
def test_halves_round_to_the_nearest(numbers: np.ndarray) -> None:
    array = torch.from_numpy(numbers)
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        found = there_and_back(NoCompression(dtype=name), array)
        assert torch.equal(found, array.to(dtype).to(torch.float32)), name


def test_bytes_are_little_endian_row_by_row() -> None:
    array = torch.tensor([[1.0, -2.5], [3.0, 1e-3]])
    expected = struct.pack("<4f", 1.0, -2.5, 3.0, 1e-3)
    assert bytes(NoCompression().encode(array)) == expected
    assert bytes(NoCompression().encode(array.t().contiguous().t())) == expected
    assert bytes(NoCompression(dtype="float16").encode(array)) == struct.pack(
        "<4e", 1, -2.5, 3, 1e-3
    )
    tops = [bits >> 16 for bits in struct.unpack("<2I", struct.pack("<2f", 1.0, -2.5))]
    assert bytes(NoCompression(dtype="bfloat16").encode(array[0])) == struct.pack("<2H", *tops)


def test_values_that_are_not_finite_arrive_as_such() -> None:
    inf = float("inf")
    array = torch.tensor([inf, -inf, float("nan"), -0.0])
    for dtype in ("float32", "float16", "bfloat16"):
        found = there_and_back(NoCompression(dtype=dtype), array)
        assert found[:2].tolist() == [inf, -inf], dtype
        assert found[2].isnan(), dtype
        assert found[3].signbit(), dtype


def test_numbers_beyond_float16_become_infinite_for_the_receiver_to_refuse() -> None:
    found = there_and_back(NoCompression(dtype="float16"), torch.tensor([1e6, -1e6, 65_504.0]))
    assert found.tolist() == [float("inf"), -float("inf"), 65_504.0]


def test_bytes_are_refused_for_another_shape() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        codec = NoCompression(dtype=dtype)
        data = memoryview(codec.encode(torch.ones(2, 3)))
        for shape in ((2, 2), (7,), (), (0,), (2, 3, 0)):
            refused((dtype, shape), MalformedError, codec.decode, data, shape)
