from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from vertizo.core.errors import MalformedError, OversizedError, TruncatedError, WireError
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Batch, Message, Query, Reply, Upload

CODEC = NoCompression()
WIDTH_EDGES = [0, 2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**63 - 1]

record_ids = st.sampled_from(WIDTH_EDGES) | st.integers(0, 2**63 - 1)
clients = st.sampled_from([0, 127, 128, 2**31 - 1]) | st.integers(0, 2**31 - 1)
numbers = st.sampled_from([0, 2**32, 2**63 - 1]) | st.integers(0, 2**63 - 1)
floats = st.floats(width=32)
purposes = st.sampled_from(["table", "validation", "test"])


@st.composite
def id_batches(draw: st.DrawFn, rows: int) -> Tensor:
    return torch.tensor(draw(st.lists(record_ids, min_size=rows, max_size=rows)), dtype=torch.int64)


@st.composite
def numbers_of(draw: st.DrawFn, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(draw(arrays.arrays(np.float32, shape, elements=floats)))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    rows, dim, points = draw(st.integers(0, 5)), draw(st.integers(0, 4)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from([Query, Reply, Upload, Batch]))
    if kind is Query:
        values = draw(numbers_of((points, rows, dim)))
        return Query(draw(clients), draw(numbers), draw(id_batches(rows)), values)
    if kind is Reply:
        shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        return Reply(draw(clients), draw(numbers), draw(numbers_of(shape)))
    if kind is Upload:
        values = draw(numbers_of((1, rows, dim)))
        return Upload(draw(clients), draw(purposes), draw(id_batches(rows)), values)
    return Batch(draw(numbers), draw(id_batches(rows)))


def same(a: Message, b: Message) -> bool:
    return type(a) is type(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.numpy().tobytes() == y.numpy().tobytes()
        if isinstance(x, Tensor)
        else type(x) is type(y) and x == y
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


EXAMPLES: dict[str, Message] = {
    "query": Query(3, 300, torch.tensor([5, 70_000]), torch.randn(2, 2, 3)),
    "reply": Reply(3, 300, torch.randn(2, 3)),
    "upload": Upload(3, "test", torch.tensor([5, 300]), torch.randn(1, 2, 3)),
    "batch": Batch(300, torch.tensor([5, 300])),
}
each_kind = pytest.mark.parametrize("kind", EXAMPLES)


def frame_of(message: Message) -> bytes:
    return bytes(wire.encode(message, CODEC))


def framed(body: bytes) -> bytes:
    return wire.HEADER.pack(wire.MAGIC, wire.VERSION, 0, len(body)) + body


def fields_of(message: Message) -> list[Any]:
    return list(msgspec.msgpack.decode(frame_of(message)[wire.HEADER.size :]))


def refuse(frame: bytes, kind: type[WireError] = WireError, **options: int) -> None:
    with pytest.raises(kind):
        wire.decode(frame, CODEC, **options)


@contextmanager
def little_memory(room: int = 48 * 2**20) -> Iterator[None]:
    """Allocations beyond ``room`` bytes fail inside."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the address space is limited on Linux only")
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@given(message=messages())
@settings(deadline=None, max_examples=300)
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    assert same(wire.decode(frame_of(message), CODEC), message)


@given(message=messages(), other=messages())
@settings(deadline=None)
def test_frames_are_a_function_of_the_message(message: Message, other: Message) -> None:
    assert frame_of(message) == frame_of(message)
    assert (frame_of(message) == frame_of(other)) == same(message, other)


@given(message=messages())
@settings(deadline=None)
def test_what_was_decoded_does_not_share_the_frames_memory(message: Message) -> None:
    frame = bytearray(frame_of(message))
    decoded = wire.decode(frame, CODEC)
    frame[:] = bytes(len(frame))
    assert same(decoded, message)


@pytest.mark.parametrize(
    ("largest", "width"),
    [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32 - 1, 4), (2**32, 8)],
)
def test_ids_take_the_narrowest_width(largest: int, width: int) -> None:
    few = Batch(0, torch.tensor([largest] * 10))
    more = Batch(0, torch.tensor([largest] * 30))
    assert len(frame_of(more)) - len(frame_of(few)) == 20 * width
    assert same(wire.decode(frame_of(few), CODEC), few)


def test_an_array_adds_its_codecs_bytes_and_no_more() -> None:
    def size(rows: int, codec: NoCompression) -> int:
        return len(wire.encode(Reply(0, 0, torch.zeros(rows)), codec))

    assert size(60, CODEC) - size(20, CODEC) == 40 * 4
    half = NoCompression(dtype="float16")
    assert size(120, half) - size(20, half) == 100 * 2


@given(message=messages())
@settings(deadline=None)
def test_a_frame_is_little_more_than_its_content(message: Message) -> None:
    content = sum(
        value.numel() * (4 if value.is_floating_point() else 8)
        for value in vars(message).values()
        if isinstance(value, Tensor)
    )
    assert len(frame_of(message)) <= content + 64


def test_the_overhead_of_a_usual_round_is_a_few_dozen_bytes() -> None:
    asked = Query(6, 10_000, torch.arange(59_936, 60_000), torch.zeros(2, 64, 64))
    assert len(frame_of(asked)) - 2 * 64 * 64 * 4 - 64 * 2 <= 40
    assert len(frame_of(Reply(6, 10_000, torch.zeros(1)))) - 4 <= 20


@each_kind
def test_the_header_is_as_documented(kind: str) -> None:
    frame = frame_of(EXAMPLES[kind])
    magic, version, reserved, length = struct.unpack_from("<2sBBI", frame)
    assert (magic, version, reserved, length) == (b"VZ", 1, 0, len(frame) - 8)


@each_kind
def test_a_frame_cut_anywhere_is_truncated(kind: str) -> None:
    frame = frame_of(EXAMPLES[kind])
    for size in range(len(frame)):
        refuse(frame[:size], TruncatedError)


@each_kind
def test_a_body_cut_anywhere_is_refused_though_its_header_fits(kind: str) -> None:
    body = frame_of(EXAMPLES[kind])[8:]
    for size in range(len(body)):
        refuse(framed(body[:size]), MalformedError)


@each_kind
def test_bytes_after_the_end_are_refused(kind: str) -> None:
    frame = frame_of(EXAMPLES[kind])
    for more in (b"\0", b"\xc0", frame):
        refuse(frame + more, MalformedError)
        refuse(framed(frame[8:] + more), MalformedError)


@each_kind
def test_every_flipped_bit_of_the_header_is_refused(kind: str) -> None:
    frame = frame_of(EXAMPLES[kind])
    for bit in range(8 * wire.HEADER.size):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        refuse(bytes(changed))


@each_kind
def test_a_flipped_bit_is_refused_or_makes_another_message(kind: str) -> None:
    message = EXAMPLES[kind]
    frame = frame_of(message)
    refused = 0
    for bit in range(8 * wire.HEADER.size, 8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = wire.decode(bytes(changed), CODEC)
        except WireError:
            refused += 1
        else:
            assert not same(found, message)
    assert refused > 20


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ((b"VX", 1, 0), MalformedError),
        ((b"\0\0", 1, 0), MalformedError),
        ((b"VZ", 0, 0), MalformedError),
        ((b"VZ", 2, 0), MalformedError),
        ((b"VZ", 255, 0), MalformedError),
        ((b"VZ", 1, 1), MalformedError),
    ],
)
def test_another_magic_or_version_is_refused(
    header: tuple[bytes, int, int], kind: type[WireError]
) -> None:
    body = frame_of(EXAMPLES["query"])[8:]
    refuse(wire.HEADER.pack(*header, len(body)) + body, kind)


def test_an_announced_length_over_the_limit_is_refused_before_the_bytes_are_there() -> None:
    refuse(wire.HEADER.pack(b"VZ", 1, 0, wire.MAX_BODY + 1), OversizedError)
    refuse(wire.HEADER.pack(b"VZ", 1, 0, 2**32 - 1), OversizedError)
    refuse(wire.HEADER.pack(b"VZ", 1, 0, wire.MAX_BODY), TruncatedError)


def test_a_receiver_may_set_a_lower_limit() -> None:
    frame = frame_of(EXAMPLES["query"])
    assert same(wire.decode(frame, CODEC, max_body=len(frame) - 8), EXAMPLES["query"])
    refuse(frame, OversizedError, max_body=len(frame) - 9)


def test_the_limit_holds_for_decoded_arrays_as_well() -> None:
    """A codec may make a large array of few bytes: the limit is checked before it does."""

    class Zeros:
        def encode(self, array: Tensor) -> memoryview:
            return memoryview(b"")

        def decode(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
            return torch.zeros(shape)

    reply = Reply(0, 0, torch.zeros(100))
    frame = wire.encode(reply, Zeros())
    assert same(wire.decode(frame, Zeros(), max_body=400), reply)
    with pytest.raises(OversizedError):
        wire.decode(frame, Zeros(), max_body=399)


JUNK: list[Any] = [
    None,
    True,
    -1,
    -(2**63),
    1.5,
    float("nan"),
    "",
    "1",
    "table ",
    b"x",
    [],
    [1],
    [1, -2, 3],
    [1, 2.0, 3],
    [1, 2, 3, 4],
    {},
    {"client": 1},
    2**63,
    2**64 - 1,
    msgspec.msgpack.Ext(1, b"x" * 6),
]


@each_kind
@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: f"{junk!r:.20}")
def test_a_field_of_another_kind_or_out_of_range_is_refused(kind: str, junk: Any) -> None:
    fields = fields_of(EXAMPLES[kind])
    for index in range(len(fields)):
        changed = [*fields[:index], junk, *fields[index + 1 :]]
        refuse(framed(msgspec.msgpack.encode(changed)), MalformedError)
    assert same(wire.decode(framed(msgspec.msgpack.encode(fields)), CODEC), EXAMPLES[kind])


@each_kind
def test_missing_and_additional_fields_are_refused(kind: str) -> None:
    fields = fields_of(EXAMPLES[kind])
    for changed in (fields[:-1], [*fields, 0], [*fields, None], fields[1:], [], {"a": fields}, 7):
        refuse(framed(msgspec.msgpack.encode(changed)), MalformedError)


@pytest.mark.parametrize("tag", [0, 5, 100, 255, 2**31])
def test_an_unknown_kind_is_refused(tag: int) -> None:
    refuse(framed(msgspec.msgpack.encode([tag, *fields_of(EXAMPLES["query"])[1:]])), MalformedError)


def raw_query(
    *, ids: bytes = b"\1\2", width: int = 1, shape: tuple[int, ...] = (1, 2, 1), data: int = 8
) -> bytes:
    return framed(msgspec.msgpack.encode([1, 0, 0, width, ids, list(shape), bytes(data)]))


def test_the_raw_query_of_these_tests_is_valid() -> None:
    expected = Query(0, 0, torch.tensor([1, 2]), torch.zeros(1, 2, 1))
    assert same(wire.decode(raw_query(), CODEC), expected)


@pytest.mark.parametrize("width", [0, 3, 5, 16, 2**31 - 1])
def test_an_id_width_that_is_none_is_refused(width: int) -> None:
    refuse(raw_query(width=width), MalformedError)


def test_ids_that_are_no_multiple_of_their_width_are_refused() -> None:
    for width in (2, 4, 8):
        refuse(raw_query(ids=b"\1" * (width + 1), width=width), MalformedError)


@pytest.mark.parametrize(("width", "letter"), [(1, "B"), (2, "H"), (4, "I"), (8, "Q")])
def test_ids_are_little_endian(width: int, letter: str) -> None:
    ids = [1, 2 ** (8 * width - 1) - 2]
    packed = struct.pack(f"<2{letter}", *ids)
    message = wire.decode(raw_query(ids=packed, width=width), CODEC)
    assert message.ids.tolist() == ids
    assert packed in frame_of(message)


def test_ids_beyond_the_range_of_int64_are_refused() -> None:
    good = struct.pack("<QQ", 1, 2**63 - 1)
    assert wire.decode(raw_query(ids=good, width=8), CODEC).ids.tolist() == [1, 2**63 - 1]
    refuse(raw_query(ids=struct.pack("<QQ", 1, 2**63), width=8), MalformedError)
    refuse(raw_query(ids=b"\xff" * 16, width=8), MalformedError)


def test_ids_and_rows_must_agree() -> None:
    refuse(raw_query(ids=b"\1"), MalformedError)
    refuse(raw_query(ids=b"\1\2\3"), MalformedError)
    refuse(raw_query(ids=b""), MalformedError)


HUGE = 2**31 - 1


@pytest.mark.parametrize(
    "shape",
    [(HUGE, 2, HUGE), (1, HUGE, HUGE), (HUGE, HUGE, HUGE), (1, 2, 2**26), (1, HUGE, 1)],
    ids=str,
)
def test_an_announced_array_over_the_limit_is_refused(shape: tuple[int, int, int]) -> None:
    with little_memory():
        refuse(raw_query(shape=shape), OversizedError)


@pytest.mark.parametrize("shape", [(1, 2, 3 * 10**7), (3 * 10**7, 2, 1)], ids=str)
def test_an_announced_array_without_its_bytes_takes_no_memory(shape: tuple[int, ...]) -> None:
    with little_memory():
        refuse(raw_query(shape=shape), MalformedError)


@pytest.mark.parametrize("shape", [(HUGE, 0, HUGE), (0, 0, HUGE), (HUGE, 0, 2)], ids=str)
def test_empty_arrays_of_absurd_shapes_are_harmless(shape: tuple[int, int, int]) -> None:
    """Their size is zero whatever their other sides are; NumPy refuses some of them."""
    frame = raw_query(ids=b"", shape=shape, data=0)
    with little_memory():
        try:
            message = wire.decode(frame, CODEC)
        except WireError:
            return
        assert isinstance(message, Query)
        assert message.embeddings.shape == shape


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of 2³² − 1 elements
        b"\xdd\xff\xff\xff\xff" * 50,
        b"\xdf\xff\xff\xff\xff",  # a map of as many
        b"\xdb\xff\xff\xff\xff",  # text of as many bytes
        b"\xc6\xff\xff\xff\xff",  # bytes of as many
        b"\xc9\xff\xff\xff\xff\x01",  # an extension of as many
        b"\x97\x01\x00\x00\x01\xc6\xff\xff\xff\xff",  # a query with IDs of as many bytes
        b"\x95\x02\x00\x00\xdd\xff\xff\xff\xff\x01",  # a reply of as many sides
        b"\x91" * 200_000,  # arrays within arrays
        b"\x95\x02\x00\x00" + b"\x91" * 200_000,
        b"\x81" * 200_000,
        b"\xc1",  # never used in MessagePack
        b"",
    ],
    ids=lambda body: body[:12].hex() or "empty",
)
def test_hostile_lengths_and_nesting_are_refused_without_memory(body: bytes) -> None:
    with little_memory():
        refuse(framed(body), MalformedError)


@pytest.mark.parametrize("purpose", [b"\xa1\xff", b"\xa4tes\xff", b"\xa5table\xff", b"\xa0"])
def test_a_purpose_that_is_no_text_is_refused(purpose: bytes) -> None:
    refuse(framed(b"\x97\x03\x00" + purpose + b"\x01\xc4\x00\x93\x01\x00\x01\xc4\x00"))


@given(garbage=st.binary(max_size=300))
@example(b"VZ\x01\x00\x00\x00\x00\x00")
@settings(deadline=None, max_examples=500)
def test_garbage_is_refused(garbage: bytes) -> None:
    refuse(garbage)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | purposes
    | st.binary(max_size=16),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(fields=st.lists(values, max_size=8), tag=st.integers(0, 5))
@settings(deadline=None, max_examples=150)
def test_well_formed_bodies_of_other_content_are_refused(fields: list[Any], tag: int) -> None:
    try:
        message = wire.decode(framed(msgspec.msgpack.encode([tag, *fields])), CODEC)
    except WireError:
        return
    assert isinstance(message, Message)


@st.composite
def mutated_bodies(draw: st.DrawFn) -> bytes:
    body = bytearray(frame_of(draw(st.sampled_from(list(EXAMPLES.values()))))[8:])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        until = draw(st.integers(at, min(at + 6, len(body))))
        body[at:until] = draw(st.binary(max_size=6))
    return bytes(body)


@given(body=mutated_bodies())
@settings(deadline=None, max_examples=500)
def test_mutated_bodies_are_refused_or_messages(body: bytes) -> None:
    try:
        message = wire.decode(framed(body), CODEC)
    except WireError:
        return
    assert isinstance(message, Message)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import os; os.environ['BOMB'] = 'went off'",)


def test_no_pickle_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOMB", "quiet")
    pickle.loads(pickle.dumps(Bomb()))
    assert os.environ["BOMB"] == "went off"
    monkeypatch.setenv("BOMB", "quiet")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        bomb = pickle.dumps(Bomb(), protocol)
        refuse(bomb)
        refuse(framed(bomb))
        for message in EXAMPLES.values():
            fields = fields_of(message)
            for index in range(len(fields)):
                for form in (bomb, msgspec.msgpack.Ext(index, bomb)):
                    changed = [*fields[:index], form, *fields[index + 1 :]]
                    with suppress(WireError):  # as record IDs they are bytes like others
                        wire.decode(framed(msgspec.msgpack.encode(changed)), CODEC)
    assert os.environ["BOMB"] == "quiet"
