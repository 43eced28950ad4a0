"""What every codec must do (`vertizo.protocol.codecs.base.Codec`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.rows import each, examples

from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.chain import Chain
from vertizo.protocol.codecs.lattice import Hexagonal, Lattice
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.paired import Paired
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform
from vertizo.testing.codecs import back, check_codec, comes_back, decodes_or_refuses


@dataclass(frozen=True)
class Case:
    codec: Codec
    error: float
    """Largest error, relative to the largest number of the array."""
    tight: bool = True
    """Whether an array of one axis can come near that error."""
    gain: float = 1.0
    """⟨x, what arrives⟩/⟨x, x⟩ for 100 normal numbers x."""


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
    "uniform-1": Case(Uniform(bits=1, scale="record"), 1.0, gain=1.92),
    "top-k": Case(TopK(fraction=0.3), 1.0, gain=0.777),
    "top-k-one": Case(TopK(fraction=0.01), 1.0, gain=0.077),
    "sign": Case(Sign(), 1.0, gain=2 / math.pi),
    "sign-array": Case(Sign(scale="array"), 1.0, gain=2 / math.pi),
    "sign-gain-1": Case(Sign(gain="one"), 1.0),
    "sign-array-gain-1": Case(Sign(scale="array", gain="one"), 1.0),
    "lattice-8": Case(Lattice(), _hexagonal(8)),
    "lattice-4": Case(Lattice(bits=4, scale="record"), _hexagonal(4)),
    "lattice-2": Case(Lattice(bits=2), _hexagonal(2)),
    "lattice-scalar": Case(Lattice(kind="scalar", bits=4), 1 / 15),
    "chain": Case(Chain(codecs=(TopK(fraction=0.3), OF_RECORDS)), 1.07, gain=0.777),
    "chain-three": Case(
        Chain(codecs=(TopK(fraction=0.7), TopK(fraction=0.5), Sign())), 1.0, gain=0.757
    ),
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
@settings(deadline=None, max_examples=examples(60))
def test_an_array_comes_back_in_shape_and_nearly_as_it_was(numbers: np.ndarray) -> None:
    for case in CASES.values():
        comes_back(case.codec, numbers, case.error)


HUGE = st.floats(2.0**126, width=32, allow_infinity=False, allow_nan=False)
EXTREME = arrays.arrays(np.float32, SHAPES, elements=HUGE | HUGE.map(lambda x: -x) | NORMAL)


@given(numbers=EXTREME)
@settings(deadline=None, max_examples=examples(60))
def test_what_is_finite_stays_finite(numbers: np.ndarray) -> None:
    """Near the largest number of float32 as well; two bytes a number hold less."""
    for name, case in CASES.items():
        if name not in ("none-float16", "none-bfloat16"):
            array = torch.from_numpy(numbers)
            found = case.codec.decode(case.codec.encode(array), tuple(array.shape))
            assert bool(found.isfinite().all()), name


@each("name", CASES)
def test_it_does_not_matter_how_an_array_lies_in_memory(name: str) -> None:
    codec = CASES[name].codec
    array = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(1))
    for lying in (array.permute(2, 1, 0), array.transpose(0, 1), array[:, :, 0].t(), array[::2]):
        assert bytes(codec.encode(lying)) == bytes(codec.encode(lying.contiguous()))


@given(data=st.binary(max_size=64), shape=st.lists(st.integers(0, 2**31 - 1), max_size=3))
@settings(deadline=None, max_examples=examples(60))
def test_any_bytes_for_any_shape_decode_or_are_refused(data: bytes, shape: list[int]) -> None:
    for case in CASES.values():
        decodes_or_refuses(case.codec, memoryview(data), tuple(shape))


@given(content=st.binary(min_size=2048, max_size=2048), shape=SHAPES)
@example(content=bytes(2048), shape=(2, 3, 4))
@settings(deadline=None, max_examples=examples(60))
def test_bytes_of_the_right_size_decode_or_are_refused(
    content: bytes, shape: tuple[int, ...]
) -> None:
    for case in CASES.values():
        decodes_or_refuses(case.codec, memoryview(content)[: case.codec.size(shape)], shape)


@each("name", CASES)
def test_every_codec_keeps_the_contract(name: str) -> None:
    case = CASES[name]
    check_codec(case.codec, error=case.error, tight=case.tight, gain=case.gain)


@given(numbers=arrays.arrays(np.float32, 50, elements=NORMAL))
@settings(deadline=None, max_examples=examples(60))
def test_signs_of_gain_1_keep_the_length_of_a_step_along_any_array(numbers: np.ndarray) -> None:
    array = torch.from_numpy(numbers).view(5, 10)
    for codec in (Sign(gain="one"), Sign(gain="one", scale="array")):
        along = array * back(codec, array)
        assert torch.allclose(along.sum(), array.square().sum(), rtol=1e-4), codec
        if codec.scale == "record":
            assert torch.allclose(along.sum(1), array.square().sum(1), rtol=1e-4)


class Mixing(Sign):
    """Has one scale for all records, and does not say so."""

    mixes_records: ClassVar[bool] = False


@each(
    "codec, error, words",
    [
        (Uniform(), 1 / 300, "an error of .* is claimed"),
        (Uniform(), 0.5, "better than the error"),
        (Sign(), 1.0, "a gain of 0.6.*; 1 is claimed"),
        (Mixing(scale="array", gain="one"), 1.0, "mixes_records: False, and it is True"),
    ],
)
def test_a_broken_one_is_told_in_a_line(codec: Codec, error: float, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_codec(codec, error=error)
