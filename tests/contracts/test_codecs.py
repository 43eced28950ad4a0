"""What every codec must do (`vertizo.codecs.base.Codec`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from vertizo import wire
from vertizo.codecs.base import Codec
from vertizo.codecs.none import NoCompression
from vertizo.errors import MalformedError
from vertizo.messages import Query


@dataclass(frozen=True)
class Case:
    make: Callable[[], Codec]
    error: float
    """Largest error, relative to the largest number of the array."""


CASES = {
    "none-float32": Case(NoCompression, 0.0),
    "none-float16": Case(lambda: NoCompression("float16"), 2**-11),
    "none-bfloat16": Case(lambda: NoCompression("bfloat16"), 2**-8),
}
every_codec = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6)
normal = st.floats(0.125, 1000, width=32) | st.floats(-1000, -0.125, width=32) | st.just(0.0)
batches = arrays.arrays(np.float32, shapes, elements=normal)


@every_codec
@given(numbers=batches)
@settings(deadline=None)
def test_an_array_comes_back_in_shape_and_nearly_as_it_was(case: Case, numbers: np.ndarray) -> None:
    array = torch.from_numpy(numbers)
    found = case.make().decode(case.make().encode(array), numbers.shape)
    assert found.dtype == torch.float32
    assert found.shape == numbers.shape
    largest = float(np.abs(numbers).max(initial=0.0))
    assert float((found - array).abs().amax() if array.numel() else 0.0) <= case.error * largest


@every_codec
@given(numbers=batches)
@settings(deadline=None)
def test_encoding_leaves_the_array_alone(case: Case, numbers: np.ndarray) -> None:
    before = numbers.copy()
    case.make().encode(torch.from_numpy(numbers))
    assert np.array_equal(numbers, before)


@every_codec
def test_the_same_array_makes_the_same_bytes(case: Case) -> None:
    array = torch.randn(3, 4)
    assert bytes(case.make().encode(array)) == bytes(case.make().encode(array.clone()))


@every_codec
def test_how_an_array_lies_in_memory_makes_no_difference(case: Case) -> None:
    array = torch.randn(4, 3, 2)
    for view in (array.transpose(0, 2), array[:, 1], array[::2], array.narrow(1, 1, 1)):
        assert bytes(case.make().encode(view)) == bytes(case.make().encode(view.contiguous()))


@every_codec
def test_what_was_decoded_is_the_receivers_own(case: Case) -> None:
    """Frames are read-only and may be used again: no array may be a window on one."""
    array = torch.randn(3, 4)
    data = bytearray(case.make().encode(array))
    found = case.make().decode(memoryview(data), (3, 4))
    kept = found.clone()
    data[:] = bytes(len(data))
    assert torch.equal(found, kept)
    again = case.make().decode(memoryview(bytes(data)), (3, 4))
    again.add_(1)
    assert torch.equal(again, torch.ones(3, 4))


@every_codec
def test_bytes_that_do_not_fit_the_shape_are_refused(case: Case) -> None:
    codec = case.make()
    data = bytes(codec.encode(torch.randn(3, 4)))
    for wrong in (*(data[:size] for size in range(len(data))), data + b"\0", data + data):
        with pytest.raises(MalformedError):
            codec.decode(memoryview(wrong), (3, 4))


@every_codec
@given(data=st.binary(max_size=64), shape=st.lists(st.integers(0, 2**31 - 1), max_size=3))
@example(data=b"", shape=[2**31 - 1, 0, 2**31 - 1])
@settings(deadline=None, max_examples=300)
def test_any_bytes_for_any_shape_decode_or_are_refused(
    case: Case, data: bytes, shape: list[int]
) -> None:
    try:
        found = case.make().decode(memoryview(data), tuple(shape))
    except MalformedError:
        return
    assert found.shape == tuple(shape)


@every_codec
def test_it_fits_the_wire(case: Case) -> None:
    codec = case.make()
    query = Query(1, 2, torch.tensor([3, 4]), torch.ones(2, 2, 3))
    found = wire.decode(wire.encode(query, codec), codec)
    assert isinstance(found, Query)
    assert torch.allclose(found.embeddings, query.embeddings, atol=case.error)


@every_codec
def test_it_has_a_name(case: Case) -> None:
    codec = case.make()
    assert codec.name
    assert isinstance(codec.encode(torch.ones(2)), memoryview)


def test_the_bounds_above_are_tight() -> None:
    """Each codec's error is what its bound says, within a factor of four."""
    array = torch.linspace(0.5, 1.0, 1001)
    for case in CASES.values():
        codec = case.make()
        error = _largest(codec.decode(codec.encode(array), (1001,)) - array)
        assert case.error / 4 <= error <= case.error


def _largest(array: Tensor) -> float:
    return float(array.abs().amax())
