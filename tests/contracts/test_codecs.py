"""What every codec must do (`vertizo.protocol.codecs.base.Codec`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.rows import each
from torch import Tensor

from vertizo.core.errors import MalformedError
from vertizo.protocol import wire
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.chain import Chain
from vertizo.protocol.codecs.hexagonal import Hexagonal
from vertizo.protocol.codecs.lattice import Lattice
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.paired import Paired
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform
from vertizo.protocol.messages import Query


@dataclass(frozen=True)
class Case:
    codec: Codec
    error: float
    """Largest error, relative to the largest number of the array."""
    tight: bool = True
    """Whether an array of one axis can come near that error."""


def _hexagonal(bits: int) -> float:
    return 2 / 3**0.5 / Hexagonal.of(2 * bits).span


OF_RECORDS = Uniform(bits=4, scale="record")
CASES = {
    "none-float32": Case(NoCompression(), 0.0),
    "none-float16": Case(NoCompression(dtype="float16"), 2**-11),
    "none-bfloat16": Case(NoCompression(dtype="bfloat16"), 2**-8),
    "uniform-8": Case(Uniform(), 1 / 255),
    "uniform-4": Case(OF_RECORDS, 1 / 15),
    "uniform-2": Case(Uniform(bits=2), 1 / 3),
    "uniform-1": Case(Uniform(bits=1, scale="record"), 1.0),
    "top-k": Case(TopK(fraction=0.3), 1.0),
    "top-k-one": Case(TopK(fraction=0.01), 1.0),
    "sign": Case(Sign(), 1.0),
    "sign-array": Case(Sign(scale="array"), 1.0),
    "lattice-8": Case(Lattice(), _hexagonal(8)),
    "lattice-4": Case(Lattice(bits=4, scale="record"), _hexagonal(4)),
    "lattice-2": Case(Lattice(bits=2), _hexagonal(2)),
    "lattice-scalar": Case(Lattice(kind="scalar", bits=4), 1 / 15),
    "chain": Case(Chain(codecs=(TopK(fraction=0.3), OF_RECORDS)), 1.07),
    "chain-three": Case(Chain(codecs=(TopK(fraction=0.7), TopK(fraction=0.5), Sign())), 1.0),
    # pairs around different middles have nothing in common
    "paired": Case(Paired(), 3.0, tight=False),
    "paired-records": Case(
        Paired(midpoint=OF_RECORDS, difference=TopK(fraction=0.5), scale="record"), 3.1, tight=False
    ),
}
every_codec = each("case", CASES.values())
shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6)
normal = st.floats(0.125, 1000, width=32) | st.floats(-1000, -0.125, width=32) | st.just(0.0)
batches = arrays.arrays(np.float32, shapes, elements=normal)


@every_codec
@given(numbers=batches)
@settings(deadline=None, max_examples=60)
def test_an_array_comes_back_in_shape_and_nearly_as_it_was(case: Case, numbers: np.ndarray) -> None:
    array = torch.from_numpy(numbers)
    found = case.codec.decode(case.codec.encode(array), numbers.shape)
    assert found.dtype == torch.float32
    assert found.shape == numbers.shape
    largest = float(np.abs(numbers).max(initial=0.0))
    error = float((found - array).abs().amax() if array.numel() else 0.0)
    assert error <= case.error * (1 + 1e-5) * largest


@every_codec
@given(numbers=batches)
@settings(deadline=None, max_examples=30)
def test_encoding_leaves_the_array_alone(case: Case, numbers: np.ndarray) -> None:
    before = numbers.copy()
    case.codec.encode(torch.from_numpy(numbers))
    assert np.array_equal(numbers, before)


@every_codec
def test_the_same_array_makes_the_same_bytes(case: Case) -> None:
    array = torch.randn(3, 4)
    assert bytes(case.codec.encode(array)) == bytes(case.codec.encode(array.clone()))


@every_codec
def test_how_an_array_lies_in_memory_makes_no_difference(case: Case) -> None:
    array = torch.randn(4, 3, 2)
    for view in (array.transpose(0, 2), array[:, 1], array[::2], array.narrow(1, 1, 1)):
        assert bytes(case.codec.encode(view)) == bytes(case.codec.encode(view.contiguous()))


@every_codec
def test_what_was_decoded_is_the_receivers_own(case: Case) -> None:
    """Frames are read-only and may be used again: no array may be a window on one."""
    array = torch.randn(3, 4)
    data = bytearray(case.codec.encode(array))
    found = case.codec.decode(memoryview(data), (3, 4))
    kept = found.clone()
    data[:] = bytes(len(data))
    assert torch.equal(found, kept)
    frame = bytes(case.codec.encode(array))
    case.codec.decode(memoryview(frame), (3, 4)).add_(1)
    assert torch.equal(case.codec.decode(memoryview(frame), (3, 4)), kept)


@every_codec
def test_bytes_that_do_not_fit_the_shape_are_refused(case: Case) -> None:
    codec = case.codec
    data = bytes(codec.encode(torch.randn(3, 4)))
    for wrong in (*(data[:size] for size in range(len(data))), data + b"\0", data + data):
        with pytest.raises(MalformedError):
            codec.decode(memoryview(wrong), (3, 4))


@every_codec
@given(data=st.binary(max_size=64), shape=st.lists(st.integers(0, 2**31 - 1), max_size=3))
@example(data=b"", shape=[2**31 - 1, 0, 2**31 - 1])
@settings(deadline=None, max_examples=60)
def test_any_bytes_for_any_shape_decode_or_are_refused(
    case: Case, data: bytes, shape: list[int]
) -> None:
    try:
        found = case.codec.decode(memoryview(data), tuple(shape))
    except MalformedError:
        return
    assert found.shape == tuple(shape)


@every_codec
@given(data=st.data(), shape=shapes)
@settings(deadline=None, max_examples=60)
def test_bytes_of_the_right_size_decode_or_are_refused(
    case: Case, data: st.DataObject, shape: tuple[int, ...]
) -> None:
    size = case.codec.size(shape)
    content = data.draw(st.binary(min_size=size, max_size=size))
    try:
        found = case.codec.decode(memoryview(content), shape)
    except MalformedError:
        return
    assert found.shape == shape
    assert found.dtype == torch.float32


@every_codec
@given(numbers=batches)
@settings(deadline=None, max_examples=30)
def test_the_size_is_known_beforehand(case: Case, numbers: np.ndarray) -> None:
    assert len(case.codec.encode(torch.from_numpy(numbers))) == case.codec.size(numbers.shape)
    assert bool(case.codec.size(numbers.shape)) == bool(numbers.size)


@every_codec
def test_one_number_without_an_axis_is_an_array_too(case: Case) -> None:
    data = case.codec.encode(torch.tensor(3.0))
    assert len(data) == case.codec.size(())
    assert abs(float(case.codec.decode(data, ())) - 3) <= 3 * case.error


@every_codec
@each("value", [float("inf"), -float("inf"), float("nan")])
@each("shape", [(1,), (2,), (9,), (3, 3), (2, 3, 4), (1, 1, 5)])
def test_what_is_not_finite_is_not_finite_for_the_receiver(
    case: Case, value: float, shape: tuple[int, ...]
) -> None:
    """The receiver refuses it then, instead of taking something plausible for it."""
    numbers = torch.Size(shape).numel()
    for place in range(numbers):
        array = torch.linspace(-1, 1, numbers)
        array[place] = value
        array = array.view(shape)
        found = case.codec.decode(case.codec.encode(array), shape)
        assert not found.isfinite().all()


@every_codec
def test_everything_not_finite_is_so_for_the_receiver(case: Case) -> None:
    for values in ([float("inf"), -float("inf")], [float("nan")] * 2, [float("inf")] * 2):
        array = torch.tensor(values).repeat(2, 3, 2)
        found = case.codec.decode(case.codec.encode(array), (2, 3, 4))
        assert not found.isfinite().all(2).any()


@every_codec
def test_zeros_are_exact(case: Case) -> None:
    for shape in ((1,), (5,), (3, 3), (2, 3, 5)):
        found = case.codec.decode(case.codec.encode(torch.zeros(shape)), shape)
        assert torch.equal(found, torch.zeros(shape))


@every_codec
def test_it_says_truly_whether_records_mix(case: Case) -> None:
    """No scale or selection of more than one record where features are protected.

    docs/mathematics.md, Records must not mix.
    """
    array = torch.randn(2, 3, 8)
    other = array.clone()
    other[:, 1] *= 100
    before, after = (case.codec.decode(case.codec.encode(a), (2, 3, 8)) for a in (array, other))
    kept = torch.equal(before[:, ::2], after[:, ::2])
    assert kept != case.codec.mixes_records


@every_codec
def test_it_says_truly_whether_two_numbers_are_kept(case: Case) -> None:
    losses = [torch.tensor(pair) for pair in ([1.1, 0.3], [-2.0, 5e-5], [0.7, 0.7 + 1e-6])]
    found = [case.codec.decode(case.codec.encode(array), (2,)) for array in losses]
    assert all(map(torch.equal, found, losses)) == case.codec.keeps_two_numbers


@every_codec
def test_it_says_truly_whether_small_differences_are_kept(case: Case) -> None:
    """Half of the difference survives, at the least: bfloat16 and coarse parts keep little more."""
    middle, shift = torch.randn(64, 16), 3e-3 * torch.randn(64, 16)
    found = case.codec.decode(
        case.codec.encode(torch.stack([middle + shift, middle - shift])), (2, 64, 16)
    )
    error = (found[0] - found[1] - 2 * shift).norm() / (2 * shift).norm()
    assert (float(error) < 0.6) == case.codec.keeps_differences


@every_codec
def test_it_fits_the_wire(case: Case) -> None:
    codec = case.codec
    query = Query(1, 2, torch.tensor([3, 4]), torch.ones(2, 2, 3))
    found = wire.decode(wire.encode(query, codec), codec)
    assert isinstance(found, Query)
    assert torch.allclose(found.embeddings, query.embeddings, atol=case.error)


@every_codec
def test_it_has_a_name(case: Case) -> None:
    codec = case.codec
    assert codec.name
    assert isinstance(codec.encode(torch.ones(2)), memoryview)


def test_the_bounds_above_are_tight() -> None:
    """Each codec's error is what its bound says, within a factor of four."""
    array = torch.linspace(-1.0, 1.0, 2001)
    for case in CASES.values():
        error = _largest(case.codec.decode(case.codec.encode(array), (2001,)) - array)
        assert error <= case.error * (1 + 1e-5)
        assert error >= case.error / 4 or not case.tight


def _largest(array: Tensor) -> float:
    return float(array.abs().amax())
