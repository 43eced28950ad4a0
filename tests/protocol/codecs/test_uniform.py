from __future__ import annotations

import struct
from typing import Literal

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from vertizo.protocol.codecs.uniform import Uniform

BITS: tuple[Literal[8, 4, 2, 1], ...] = (8, 4, 2, 1)
MOST = float(torch.finfo(torch.float32).max)
LEAST = 2.0**-149
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def there_and_back(codec: Uniform, array: Tensor) -> Tensor:
    return codec.decode(codec.encode(array), tuple(array.shape))


@given(array=arrays.arrays(np.float32, st.integers(1, 30), elements=numbers))
@example(array=np.array([-MOST, MOST, 0, 1], np.float32))
@example(array=np.array([LEAST, 0, 5 * LEAST, 3 * LEAST], np.float32))
@settings(deadline=None, max_examples=50)
def test_a_number_is_off_by_half_a_step_and_the_ends_by_nothing(array: np.ndarray) -> None:
    given_ = torch.from_numpy(array)
    low, high = float(given_.min()), float(given_.max())
    rounding = max(abs(low), abs(high)) * 2**-24 + LEAST
    ends = (given_ == low) | (given_ == high)
    for bits in BITS:
        found = there_and_back(Uniform(bits=bits), given_)
        error = float((found.double() - given_.double()).abs().max())
        assert error <= (high - low) / (2**bits - 1) / 2 * (1 + 1e-6) + rounding, bits
        assert torch.equal(found[ends], given_[ends]), bits
        assert torch.equal(there_and_back(Uniform(bits=bits), found), found), bits


@given(
    array=arrays.arrays(np.float32, st.integers(0, 2), elements=numbers),
    shape=arrays.array_shapes(max_dims=3, max_side=5),
)
@settings(deadline=None, max_examples=50)
def test_two_numbers_and_constants_are_exact(array: np.ndarray, shape: tuple[int, ...]) -> None:
    two = torch.from_numpy(array)
    constant = torch.full(shape, float(two[0]) if len(two) else 0.0)
    for bits in BITS:
        for scale in ("array", "record"):
            assert torch.equal(there_and_back(Uniform(bits=bits, scale=scale), two), two), bits
        assert torch.equal(there_and_back(Uniform(bits=bits), constant), constant), bits


def test_the_bytes_are_ends_and_then_levels() -> None:
    data = Uniform(bits=2).encode(torch.tensor([0.0, 3.0, 1.1, 2.2, -0.0]))
    assert bytes(data) == struct.pack("<2f", 0, 3) + bytes([0b10_01_11_00, 0])


def test_every_point_of_a_query_has_a_scale() -> None:
    array = torch.randn(2, 4, 5)
    small = array * torch.tensor([1.0, 1e-6])[:, None, None]
    found = there_and_back(Uniform(), small)
    assert float((found[1] - small[1]).abs().max()) < 1e-6 * 8 / 255


def test_a_value_that_is_not_finite_spoils_its_group_alone() -> None:
    array = torch.randn(3, 4)
    array[1, 2] = float("nan")
    found = there_and_back(Uniform(scale="record"), array)
    assert found.isfinite().all(1).tolist() == [True, False, True]
    assert not found[1].isfinite().any()
    assert not there_and_back(Uniform(), array).isfinite().any()
