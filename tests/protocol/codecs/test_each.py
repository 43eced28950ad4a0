"""Each codec's options, its bytes, and what it makes of numbers (tests/contracts has the rest)."""

from __future__ import annotations

import struct
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import TypeAdapter, ValidationError
from tests.federations import back
from tests.refusals import refused
from tests.rows import each, examples

from vertizo.core.errors import MalformedError
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.catalog import CODECS
from vertizo.protocol.codecs.chain import Chain
from vertizo.protocol.codecs.lattice import Lattice
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.packing import pack, pack_floats, packed_size, unpack, unpack_floats
from vertizo.protocol.codecs.paired import Paired
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform

shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
rows = arrays.array_shapes(max_dims=3, max_side=20)


@given(numbers=arrays.arrays(np.float32, shapes, elements=st.floats(width=32)))
def test_float32_keeps_every_bit(numbers: np.ndarray) -> None:
    found = back(NoCompression(), torch.from_numpy(numbers))
    assert found.shape == numbers.shape
    assert found.numpy().tobytes() == numbers.tobytes()


@given(numbers=arrays.arrays(np.float32, shapes, elements=st.floats(-65_000, 65_000, width=32)))
def test_halves_round_to_the_nearest(numbers: np.ndarray) -> None:
    array = torch.from_numpy(numbers)
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        found = back(NoCompression(dtype=name), array)
        assert torch.equal(found, array.to(dtype).to(torch.float32)), name


def test_bytes_are_little_endian_row_by_row() -> None:
    array = torch.tensor([[1.0, -2.5], [3.0, 1e-3]])
    expected = struct.pack("<4f", 1.0, -2.5, 3.0, 1e-3)
    assert bytes(NoCompression().encode(array)) == expected
    assert bytes(NoCompression().encode(array.t().contiguous().t())) == expected
    halves = struct.pack("<4e", 1, -2.5, 3, 1e-3)
    assert bytes(NoCompression(dtype="float16").encode(array)) == halves
    tops = [bits >> 16 for bits in struct.unpack("<2I", struct.pack("<2f", 1.0, -2.5))]
    assert bytes(NoCompression(dtype="bfloat16").encode(array[0])) == struct.pack("<2H", *tops)


def test_values_that_are_not_finite_arrive_as_such() -> None:
    inf = float("inf")
    array = torch.tensor([inf, -inf, float("nan"), -0.0])
    for dtype in ("float32", "float16", "bfloat16"):
        found = back(NoCompression(dtype=dtype), array)
        assert found[:2].tolist() == [inf, -inf], dtype
        assert found[2].isnan(), dtype
        assert found[3].signbit(), dtype


def test_numbers_beyond_float16_become_infinite_for_the_receiver_to_refuse() -> None:
    found = back(NoCompression(dtype="float16"), torch.tensor([1e6, -1e6, 65_504.0]))
    assert found.tolist() == [float("inf"), -float("inf"), 65_504.0]


def test_bytes_are_refused_for_another_shape() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        codec = NoCompression(dtype=dtype)
        data = memoryview(codec.encode(torch.ones(2, 3)))
        for shape in ((2, 2), (7,), (), (0,), (2, 3, 0)):
            refused((dtype, shape), MalformedError, codec.decode, data, shape)


BITS: tuple[Literal[8, 4, 2, 1], ...] = (8, 4, 2, 1)
MOST = float(torch.finfo(torch.float32).max)
LEAST = 2.0**-149
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(array=arrays.arrays(np.float32, st.integers(1, 30), elements=numbers))
@example(array=np.array([-MOST, MOST, 0, 1], np.float32))
@example(array=np.array([LEAST, 0, 5 * LEAST, 3 * LEAST], np.float32))
@settings(deadline=None, max_examples=examples(50))
def test_a_number_is_off_by_half_a_step_and_the_ends_by_nothing(array: np.ndarray) -> None:
    given_ = torch.from_numpy(array)
    low, high = float(given_.min()), float(given_.max())
    rounding = max(abs(low), abs(high)) * 2**-24 + LEAST
    ends = (given_ == low) | (given_ == high)
    for bits in BITS:
        found = back(Uniform(bits=bits), given_)
        error = float((found.double() - given_.double()).abs().max())
        assert error <= (high - low) / (2**bits - 1) / 2 * (1 + 1e-6) + rounding, bits
        assert torch.equal(found[ends], given_[ends]), bits
        assert torch.equal(back(Uniform(bits=bits), found), found), bits


@given(
    array=arrays.arrays(np.float32, st.integers(0, 2), elements=numbers),
    shape=arrays.array_shapes(max_dims=3, max_side=5),
)
@settings(deadline=None, max_examples=examples(50))
def test_two_numbers_and_constants_are_exact(array: np.ndarray, shape: tuple[int, ...]) -> None:
    two = torch.from_numpy(array)
    constant = torch.full(shape, float(two[0]) if len(two) else 0.0)
    for bits in BITS:
        for scale in ("array", "record"):
            assert torch.equal(back(Uniform(bits=bits, scale=scale), two), two), bits
        assert torch.equal(back(Uniform(bits=bits), constant), constant), bits


def test_the_bytes_are_ends_and_then_levels() -> None:
    data = Uniform(bits=2).encode(torch.tensor([0.0, 3.0, 1.1, 2.2, -0.0]))
    assert bytes(data) == struct.pack("<2f", 0, 3) + bytes([0b10_01_11_00, 0])


def test_every_point_of_a_query_has_a_scale() -> None:
    array = torch.randn(2, 4, 5)
    small = array * torch.tensor([1.0, 1e-6])[:, None, None]
    found = back(Uniform(), small)
    assert float((found[1] - small[1]).abs().max()) < 1e-6 * 8 / 255


def test_a_value_that_is_not_finite_spoils_its_group_alone() -> None:
    array = torch.randn(3, 4)
    array[1, 2] = float("nan")
    found = back(Uniform(scale="record"), array)
    assert found.isfinite().all(1).tolist() == [True, False, True]
    assert not found[1].isfinite().any()
    assert not back(Uniform(), array).isfinite().any()


def test_signs_have_the_mean_size_of_their_row() -> None:
    array = torch.tensor([[1.0, -3.0, 0.0], [0.5, 0.5, 0.5]])
    codec = Sign()
    data = codec.encode(array)
    third = 4 / 3
    assert bytes(data) == struct.pack("<2f", third, 0.5) + bytes([0b000_010])
    found = codec.decode(data, (2, 3))
    assert torch.allclose(found, torch.tensor([[third, -third, third], [0.5] * 3]))
    assert torch.equal(back(codec, found), found)


def test_the_mean_of_signs_does_not_overflow() -> None:
    most = torch.finfo(torch.float32).max
    array = torch.tensor([most, -most, most])
    assert torch.equal(back(Sign(), array), array)


def test_one_size_for_all_records_of_a_point() -> None:
    array = torch.tensor([[[1.0, -3.0], [0.0, 4.0]], [[0.5, 0.5], [-0.5, 0.5]]])
    codec = Sign(scale="array")
    data = codec.encode(array)
    assert bytes(data) == struct.pack("<2f", 2.0, 0.5) + bytes([0b0100_0010])
    found = codec.decode(data, (2, 2, 2))
    assert found.tolist() == [[[2.0, -2.0], [2.0, 2.0]], [[0.5, 0.5], [-0.5, 0.5]]]


@given(
    array=arrays.arrays(
        np.float32,
        arrays.array_shapes(max_dims=3, max_side=20),
        elements=st.floats(-9, 9, width=32),
    ),
    fraction=st.floats(0.01, 1),
)
@settings(deadline=None, max_examples=examples(100))
def test_the_largest_of_every_row_are_kept_exactly(array: np.ndarray, fraction: float) -> None:
    codec = TopK(fraction=fraction)
    given_ = torch.from_numpy(array)
    found = back(codec, given_)
    kept = max(1, round(fraction * array.shape[-1]))
    assert ((found == given_) | (found == 0)).all()
    before, after = (x.abs().sort(-1, descending=True).values for x in (given_, found))
    assert torch.equal(after[..., :kept], before[..., :kept])
    assert not after[..., kept:].any()
    assert torch.equal(back(codec, found), found)


def test_the_bytes_are_places_and_then_values() -> None:
    array = torch.tensor([[0.0, 2.0, 0.0, -1.0], [5.0, 0.0, 0.0, 6.0]])
    values = struct.pack("<4f", 2, -1, 5, 6)
    assert bytes(TopK(fraction=0.5).encode(array)) == bytes([0b1001_1010]) + values
    one = torch.tensor([0.0, 0.0, 0.0, 0.0, -7.0])
    assert bytes(TopK(fraction=0.2).encode(one)) == bytes([0b100]) + struct.pack("<f", -7)


def test_places_that_are_none_are_refused() -> None:
    codec, values = TopK(fraction=0.2), bytes(8)
    first, second = 3, 4
    for columns in ((second, first), (first, first), (first, 10), (15, 15)):
        places = bytes([columns[0] | columns[1] << 4])
        with pytest.raises(MalformedError, match="rise"):
            codec.decode(memoryview(places + values), (10,))
    assert codec.decode(memoryview(bytes([first | second << 4]) + values), (10,)).shape == (10,)
    for bitmap in (0b0111, 0b1000, 0):
        with pytest.raises(MalformedError, match="kept values"):
            TopK(fraction=0.5).decode(memoryview(bytes([bitmap]) + values), (4,))


def test_the_selected_values_are_what_the_last_codec_makes_of_them() -> None:
    array = torch.randn(2, 5, 40)
    first, last = TopK(fraction=0.2), Uniform(bits=4)
    chain = Chain(codecs=(first, last))
    places, values = first.split(array)
    assert values.shape == (2, 5, 8)
    assert bytes(chain.encode(array)) == places + bytes(last.encode(values))
    found, kept = back(chain, array), back(first, array) != 0
    assert not found[~kept].any()
    assert torch.equal(found[kept].view(2, 5, 8), back(last, values))


def test_without_loss_in_the_last_a_chain_is_its_selection() -> None:
    array = torch.randn(6, 50)
    chain = Chain(codecs=(TopK(fraction=0.5), TopK(fraction=0.2), NoCompression()))
    selection = TopK(fraction=0.1)
    assert torch.equal(back(chain, array), back(selection, array))


WIDTHS = [*range(1, 18), 24, 31, 32]


@given(drawn=st.lists(st.integers(0, 2**32 - 1), max_size=20))
@example(drawn=[2**32 - 1] * 9)
@settings(deadline=None, max_examples=examples(50))
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


EXACT = Paired(midpoint=NoCompression(), difference=NoCompression())
SIZES: list[tuple[Codec, tuple[int, ...], int]] = [
    *((NoCompression(), shape, 4 * n) for shape, n in (((), 1), ((0,), 0), ((2, 3, 5), 30))),
    *((NoCompression(dtype="float16"), shape, 2 * n) for shape, n in (((), 1), ((2, 3, 5), 30))),
    (NoCompression(dtype="bfloat16"), (7,), 14),
    (Uniform(bits=4), (7,), 8 + 4),
    (Uniform(bits=4), (5, 3), 8 + 8),
    (Uniform(bits=4), (2, 5, 3), 16 + 15),
    (Uniform(bits=4, scale="record"), (7,), 8 + 4),
    (Uniform(bits=4, scale="record"), (5, 3), 40 + 8),
    (Uniform(bits=4, scale="record"), (2, 5, 3), 80 + 15),
    (Uniform(bits=4), (2, 0, 3), 0),
    (Uniform(bits=4, scale="record"), (4, 0), 0),
    (Uniform(bits=4), (), 9),
    (TopK(fraction=0.1), (64, 64), 64 * 36 // 8 + 64 * 6 * 4),  # 6 columns of 6 bits a row
    (TopK(fraction=0.3), (64, 64), 64 * 64 // 8 + 64 * 19 * 4),  # bitmaps
    (TopK(fraction=0.5), (3, 3), 2 + 3 * 2 * 4),
    (TopK(fraction=1.0), (5, 3), 60),
    (TopK(fraction=0.1), (1000,), 125 + 400),
    (TopK(fraction=0.01), (1000,), 13 + 40),
    (TopK(fraction=0.1), (2, 5, 1), 40),
    (TopK(fraction=0.5), (3, 0), 0),
    (TopK(fraction=0.5), (), 4),
    (Sign(), (9,), 4 + 2),
    (Sign(), (5, 3), 20 + 2),
    (Sign(), (2, 5, 3), 40 + 4),
    (Sign(), (), 5),
    (Sign(), (3, 0), 0),
    (Sign(scale="array"), (9,), 4 + 2),
    (Sign(scale="array"), (5, 3), 4 + 2),
    (Sign(scale="array"), (2, 5, 3), 8 + 4),
    (Lattice(), (64, 64), 4 + 4096),
    (Lattice(), (5, 3), 4 + 5 * 4),  # a zero beside the third number
    (Lattice(bits=4), (2, 5, 3), 8 + 10 * 2),
    (Lattice(bits=2), (3,), 4 + 1),
    (Lattice(bits=2, scale="record"), (5, 3), 20 + 5),
    (Lattice(kind="scalar", bits=2), (5, 3), 4 + 4),
    (Lattice(), (), 6),
    (Lattice(kind="scalar", bits=4), (0, 4), 0),
    (Paired(), (2, 64, 64), (8 + 4096) + 4 + (8 + 4096)),
    (Paired(), (6, 5, 3), (8 + 15) + 3 * 4 + (3 * 8 + 45)),
    (Paired(scale="record"), (6, 5, 3), (8 + 15) + 15 * 4 + (3 * 8 + 45)),
    (Paired(difference=Sign()), (2, 5, 3), (8 + 15) + 4 + (20 + 2)),
    (EXACT, (2, 5, 3), 60 + 4 + 60),
    # 64 rows: 6 columns of 6 bits each, one low and high, 6 levels of a byte
    (Chain(), (64, 64), 64 * 36 // 8 + 8 + 64 * 6),
]
choice: TypeAdapter[Any] = TypeAdapter(CODECS.choice("none"))


def test_sizes() -> None:
    for codec, shape, size in SIZES:
        assert codec.size(shape) == size, (codec, shape)
        assert len(codec.encode(torch.randn(shape))) == size, (codec, shape)


def test_a_configuration_chooses() -> None:
    halves = {"name": "none", "dtype": "bfloat16"}
    rows: list[tuple[dict[str, Any], Any]] = [
        ({}, NoCompression()),
        ({"dtype": "float16"}, NoCompression(dtype="float16")),
        ({"name": "uniform", "bits": 4}, Uniform(bits=4)),
        ({"name": "sign"}, Sign()),
        ({"name": "paired"}, Paired()),
        (
            {"name": "paired", "midpoint": halves, "difference": {"name": "sign"}},
            Paired(midpoint=NoCompression(dtype="bfloat16"), difference=Sign()),
        ),
        (
            {"name": "chain", "codecs": [{"name": "top-k", "fraction": 0.5}, {"name": "sign"}]},
            Chain(codecs=(TopK(fraction=0.5), Sign())),
        ),
    ]
    for tree, codec in rows:
        assert choice.validate_python(tree) == codec, tree
        assert choice.validate_python(codec.model_dump(mode="json")) == codec, tree
        assert hash(codec) == hash(choice.validate_python(tree)), tree


def test_other_options_are_refused() -> None:
    few = "codecs; it needs at least two"
    rows: list[tuple[dict[str, Any], str]] = [
        ({"name": "zip"}, ""),
        ({"name": "sign", "bits": 8}, ""),
        ({"name": "uniform", "bits": 3}, ""),
        ({"name": "uniform", "bits": "few"}, ""),
        ({"name": "uniform", "scale": "column"}, ""),
        ({"name": "uniform", "bit": 8}, ""),
        *(({"name": "top-k", "fraction": x}, "") for x in (0, -0.1, 1.1, float("nan"), True)),
        ({"name": "paired", "difference": {"name": "paired"}}, ""),
        ({"name": "paired", "midpoint": {"name": "chain"}}, ""),
        ({"name": "chain", "codecs": [{"name": "top-k"}, {"name": "chain"}]}, ""),
        ({"name": "chain", "codecs": ()}, f"0 {few}"),
        ({"name": "chain", "codecs": (TopK(),)}, f"1 {few}"),
        ({"name": "chain", "codecs": (Uniform(), TopK())}, "'uniform' selects nothing"),
        ({"name": "chain", "codecs": (TopK(), Sign(), Uniform())}, "'sign' selects nothing"),
    ]
    for tree, words in rows:
        refused(tree, ValidationError, choice.validate_python, tree, match=words)


@each(
    "bits, numbers, gain",
    [(2, 100, 1.01), (2, 4096, 1.06), (2, 65536, 1.18), (1, 4096, 2.83), (4, 65536, 1.0)],
)
def test_the_gain_of_few_levels_grows_with_the_array(bits: int, numbers: int, gain: float) -> None:
    """docs/codecs.md, Gain: the ends move apart, by levels written out in float64 as well."""
    generator, found, by_hand = np.random.default_rng(0), [], []
    codec, steps = Uniform(bits=bits), 2**bits - 1
    for _ in range(max(10, 100_000 // numbers)):
        x = generator.standard_normal(numbers).astype(np.float32)
        sent = codec.decode(codec.encode(torch.from_numpy(x)), (numbers,)).numpy()
        wide, low = x.astype(np.float64), float(x.min())
        width = float(x.max()) - low
        levels = np.round((wide - low) / width * steps) / steps * width + low
        found.append(float(wide @ sent / (wide @ wide)))
        by_hand.append(float(wide @ levels / (wide @ wide)))
    assert np.allclose(found, by_hand, atol=1e-5)
    assert float(np.mean(found)) == pytest.approx(gain, rel=0.02)
