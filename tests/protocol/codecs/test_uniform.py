from __future__ import annotations

import struct
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import ValidationError
from torch import Tensor

from vertizo.protocol.codecs.uniform import Uniform

BITS: tuple[Literal[8, 4, 2, 1], ...] = (8, 4, 2, 1)
MOST = float(torch.finfo(torch.float32).max)
LEAST = 2.0**-149
every_width = pytest.mark.parametrize("bits", BITS)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def there_and_back(codec: Uniform, array: Tensor) -> Tensor:
    return codec.decode(codec.encode(array), tuple(array.shape))


@every_width
@given(array=arrays.arrays(np.float32, st.integers(1, 30), elements=numbers))
@example(array=np.array([-MOST, MOST, 0, 1], np.float32))
@example(array=np.array([LEAST, 0, 5 * LEAST, 3 * LEAST], np.float32))
@settings(deadline=None, max_examples=50)
def test_a_number_is_off_by_half_a_step_and_the_ends_by_nothing(
    bits: Literal[8, 4, 2, 1], array: np.ndarray
) -> None:
    given_ = torch.from_numpy(array)
    found = there_and_back(Uniform(bits=bits), given_)
    low, high = float(given_.min()), float(given_.max())
    rounding = max(abs(low), abs(high)) * 2**-24 + LEAST
    error = float((found.double() - given_.double()).abs().max())
    assert error <= (high - low) / (2**bits - 1) / 2 * (1 + 1e-6) + rounding
    ends = (given_ == low) | (given_ == high)
    assert torch.equal(found[ends], given_[ends])
    assert torch.equal(there_and_back(Uniform(bits=bits), found), found)


@every_width
@given(array=arrays.arrays(np.float32, st.integers(0, 2), elements=numbers))
@settings(deadline=None, max_examples=50)
def test_two_numbers_and_fewer_are_exact(bits: Literal[8, 4, 2, 1], array: np.ndarray) -> None:
    given_ = torch.from_numpy(array)
    for scale in ("array", "record"):
        assert torch.equal(there_and_back(Uniform(bits=bits, scale=scale), given_), given_)


@every_width
@given(value=numbers, shape=arrays.array_shapes(max_dims=3, max_side=5))
@settings(deadline=None, max_examples=30)
def test_a_constant_is_exact(
    bits: Literal[8, 4, 2, 1], value: float, shape: tuple[int, ...]
) -> None:
    array = torch.full(shape, value)
    assert torch.equal(there_and_back(Uniform(bits=bits), array), array)


def test_the_bytes_are_ends_and_then_levels() -> None:
    data = Uniform(bits=2).encode(torch.tensor([0.0, 3.0, 1.1, 2.2, -0.0]))
    assert bytes(data) == struct.pack("<2f", 0, 3) + bytes([0b10_01_11_00, 0])


@pytest.mark.parametrize(
    ("scale", "shape", "size"),
    [
        ("array", (7,), 8 + 4),
        ("array", (5, 3), 8 + 8),
        ("array", (2, 5, 3), 16 + 15),
        ("record", (7,), 8 + 4),
        ("record", (5, 3), 40 + 8),
        ("record", (2, 5, 3), 80 + 15),
        ("array", (2, 0, 3), 0),
        ("record", (4, 0), 0),
        ("array", (), 9),
    ],
)
def test_sizes(scale: Literal["array", "record"], shape: tuple[int, ...], size: int) -> None:
    codec = Uniform(bits=4, scale=scale)
    assert codec.size(shape) == size == len(codec.encode(torch.randn(shape)))


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


@pytest.mark.parametrize("wrong", [{"bits": 3}, {"bits": "few"}, {"scale": "column"}, {"bit": 8}])
def test_other_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Uniform.model_validate(wrong)
