from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vertizo.core.errors import MalformedError
from vertizo.protocol.codecs.none import FloatName, NoCompression

DTYPES: dict[FloatName, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


def there_and_back(codec: NoCompression, array: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(array), tuple(array.shape))


@given(numbers=arrays.arrays(np.float32, shapes, elements=st.floats(width=32)))
@settings(deadline=None)
def test_float32_keeps_every_bit(numbers: np.ndarray) -> None:
    found = there_and_back(NoCompression(), torch.from_numpy(numbers))
    assert found.shape == numbers.shape
    assert found.numpy().tobytes() == numbers.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@given(
    numbers=arrays.arrays(np.float32, shapes, elements=st.floats(-65_000, 65_000, width=32)),
)
@settings(deadline=None)
def test_halves_round_to_the_nearest(dtype: FloatName, numbers: np.ndarray) -> None:
    array = torch.from_numpy(numbers)
    found = there_and_back(NoCompression(dtype=dtype), array)
    assert torch.equal(found, array.to(DTYPES[dtype]).to(torch.float32))


@every_dtype
def test_a_number_takes_4_or_2_bytes(dtype: FloatName) -> None:
    size = 4 if dtype == "float32" else 2
    for shape in ((), (0,), (7,), (2, 3, 5)):
        array = torch.zeros(shape)
        assert len(NoCompression(dtype=dtype).encode(array)) == size * array.numel()


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


@every_dtype
def test_arrays_that_do_not_lie_in_one_piece_are_sent_in_order(dtype: FloatName) -> None:
    codec = NoCompression(dtype=dtype)
    array = torch.arange(24.0).reshape(2, 3, 4)
    for view in (array.transpose(0, 2), array[:, 1], array[..., ::2], array.narrow(2, 1, 2)):
        assert torch.equal(there_and_back(codec, view), view)


@every_dtype
def test_values_that_are_not_finite_arrive_as_such(dtype: FloatName) -> None:
    inf = float("inf")
    found = there_and_back(
        NoCompression(dtype=dtype), torch.tensor([inf, -inf, float("nan"), -0.0])
    )
    assert found[:2].tolist() == [inf, -inf]
    assert found[2].isnan()
    assert found[3].signbit()


def test_numbers_beyond_float16_become_infinite_for_the_receiver_to_refuse() -> None:
    found = there_and_back(NoCompression(dtype="float16"), torch.tensor([1e6, -1e6, 65_504.0]))
    assert found.tolist() == [float("inf"), -float("inf"), 65_504.0]


@every_dtype
def test_bytes_of_another_number_are_refused(dtype: FloatName) -> None:
    codec = NoCompression(dtype=dtype)
    data = bytes(codec.encode(torch.ones(2, 3)))
    for wrong in (b"", data[:-1], data + b"\0", data * 2):
        with pytest.raises(MalformedError):
            codec.decode(memoryview(wrong), (2, 3))
    for shape in ((2, 2), (7,), (), (0,), (2, 3, 0)):
        with pytest.raises(MalformedError):
            codec.decode(memoryview(data), shape)
