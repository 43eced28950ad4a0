"""What every codec must do (`vertizo.protocol.codecs.base.Codec`)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.federations import back
from tests.refusals import refused

from vertizo.core.errors import MalformedError
from vertizo.protocol import wire
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.chain import Chain
from vertizo.protocol.codecs.lattice import Hexagonal, Lattice
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
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6)
NORMAL = st.floats(0.125, 1000, width=32) | st.floats(-1000, -0.125, width=32) | st.just(0.0)
BATCHES = arrays.arrays(np.float32, SHAPES, elements=NORMAL)


@given(numbers=BATCHES)
@settings(deadline=None, max_examples=60)
def test_an_array_comes_back_in_shape_and_nearly_as_it_was(numbers: np.ndarray) -> None:
    """In as many bytes as were announced; the sender's array stays as it was."""
    array, before = torch.from_numpy(numbers), numbers.copy()
    largest = float(np.abs(numbers).max(initial=0.0))
    for name, case in CASES.items():
        data = case.codec.encode(array)
        assert np.array_equal(numbers, before), name
        assert len(data) == case.codec.size(numbers.shape), name
        assert bool(len(data)) == bool(numbers.size), name
        found = case.codec.decode(data, numbers.shape)
        assert (found.dtype, found.shape) == (torch.float32, numbers.shape), name
        error = float((found - array).abs().amax() if array.numel() else 0.0)
        assert error <= case.error * (1 + 1e-5) * largest, name


def test_the_bounds_above_are_tight() -> None:
    """Each codec's error is what its bound says, within a factor of four."""
    array = torch.linspace(-1.0, 1.0, 2001)
    for name, case in CASES.items():
        error = float((back(case.codec, array) - array).abs().amax())
        assert error <= case.error * (1 + 1e-5), name
        assert error >= case.error / 4 or not case.tight, name


def test_the_same_array_makes_the_same_bytes_however_it_lies_in_memory() -> None:
    array = torch.randn(4, 3, 2)
    for name, case in CASES.items():
        for view in (array, array.transpose(0, 2), array[:, 1], array[::2], array.narrow(1, 1, 1)):
            one, other = case.codec.encode(view), case.codec.encode(view.contiguous().clone())
            assert bytes(one) == bytes(other), (name, view.stride())


def test_what_was_decoded_is_the_receivers_own() -> None:
    """Frames are read-only and may be used again: no array may be a window on one."""
    array = torch.randn(3, 4)
    for name, case in CASES.items():
        data = bytearray(case.codec.encode(array))
        found = case.codec.decode(memoryview(data), (3, 4))
        kept = found.clone()
        data[:] = bytes(len(data))
        assert torch.equal(found, kept), name
        frame = bytes(case.codec.encode(array))
        case.codec.decode(memoryview(frame), (3, 4)).add_(1)
        assert torch.equal(case.codec.decode(memoryview(frame), (3, 4)), kept), name


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    for name, case in CASES.items():
        data = bytes(case.codec.encode(torch.randn(3, 4)))
        for wrong in (*(data[:size] for size in range(len(data))), data + b"\0", data + data):
            named = f"{name}: {len(wrong)} bytes for {len(data)}"
            refused(named, MalformedError, case.codec.decode, memoryview(wrong), (3, 4))


@given(data=st.binary(max_size=64), shape=st.lists(st.integers(0, 2**31 - 1), max_size=3))
@example(data=b"", shape=[2**31 - 1, 0, 2**31 - 1])
@settings(deadline=None, max_examples=60)
def test_any_bytes_for_any_shape_decode_or_are_refused(data: bytes, shape: list[int]) -> None:
    for name, case in CASES.items():
        with suppress(MalformedError):
            found = case.codec.decode(memoryview(data), tuple(shape))
            assert found.shape == tuple(shape), name


@given(content=st.binary(min_size=2048, max_size=2048), shape=SHAPES)
@example(content=bytes(2048), shape=(2, 3, 4))
@settings(deadline=None, max_examples=60)
def test_bytes_of_the_right_size_decode_or_are_refused(
    content: bytes, shape: tuple[int, ...]
) -> None:
    for name, case in CASES.items():
        data = memoryview(content)[: case.codec.size(shape)]
        assert len(data) == case.codec.size(shape), name
        with suppress(MalformedError):
            found = case.codec.decode(data, shape)
            assert (found.dtype, found.shape) == (torch.float32, shape), name


def test_zeros_are_exact_and_one_number_without_an_axis_is_an_array_too() -> None:
    for name, case in CASES.items():
        data = case.codec.encode(torch.tensor(3.0))
        assert len(data) == case.codec.size(()), name
        assert abs(float(case.codec.decode(data, ())) - 3) <= 3 * case.error, name
        for shape in ((1,), (5,), (3, 3), (2, 3, 5)):
            zeros = torch.zeros(shape)
            assert torch.equal(back(case.codec, zeros), zeros), (name, shape)


def test_what_is_not_finite_is_not_finite_for_the_receiver() -> None:
    """The receiver refuses it then, instead of taking something plausible for it."""
    inf, nan = float("inf"), float("nan")
    for name, case in CASES.items():
        for shape in ((1,), (2,), (9,), (3, 3), (2, 3, 4), (1, 1, 5)):
            numbers = torch.Size(shape).numel()
            for value, place in product((inf, -inf, nan), range(numbers)):
                array = torch.linspace(-1, 1, numbers)
                array[place] = value
                found = back(case.codec, array.view(shape))
                assert not found.isfinite().all(), (name, shape, value, place)
        for values in ([inf, -inf], [nan] * 2, [inf] * 2):  # everything
            found = back(case.codec, torch.tensor(values).repeat(2, 3, 2))
            assert not found.isfinite().all(2).any(), (name, values)


def test_they_say_truly_whether_records_mix() -> None:
    """No scale or selection of more than one record where features are protected.

    docs/mathematics.md, Records must not mix.
    """
    array = torch.randn(2, 3, 8)
    other = array.clone()
    other[:, 1] *= 100
    for name, case in CASES.items():
        before, after = back(case.codec, array), back(case.codec, other)
        kept = torch.equal(before[:, ::2], after[:, ::2])
        assert kept != case.codec.mixes_records, name


def test_they_say_truly_whether_two_numbers_are_kept() -> None:
    losses = [torch.tensor(pair) for pair in ([1.1, 0.3], [-2.0, 5e-5], [0.7, 0.7 + 1e-6])]
    for name, case in CASES.items():
        kept = all(torch.equal(back(case.codec, pair), pair) for pair in losses)
        assert kept == case.codec.keeps_two_numbers, name


def test_they_say_truly_whether_small_differences_are_kept() -> None:
    """Half of the difference survives, at the least: bfloat16 and coarse parts keep little more."""
    middle, shift = torch.randn(64, 16), 3e-3 * torch.randn(64, 16)
    for name, case in CASES.items():
        plus, minus = back(case.codec, torch.stack([middle + shift, middle - shift]))
        error = float((plus - minus - 2 * shift).norm() / (2 * shift).norm())
        assert (error < 0.6) == case.codec.keeps_differences, name


def test_they_fit_the_wire_and_have_a_name() -> None:
    query = Query(1, 2, torch.tensor([3, 4]), torch.ones(2, 2, 3))
    for name, case in CASES.items():
        assert case.codec.name, name
        assert isinstance(case.codec.encode(torch.ones(2)), memoryview), name
        found = wire.decode(wire.encode(query, case.codec), case.codec)
        assert isinstance(found, Query), name
        assert torch.allclose(found.embeddings, query.embeddings, atol=case.error), name
