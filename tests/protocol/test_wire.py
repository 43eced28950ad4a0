from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests import same as state
from tests.refusals import refused
from tests.rows import examples
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
purposes = st.sampled_from(["train", "validation", "test"])


@st.composite
def messages(draw: st.DrawFn) -> Message:
    rows, dim, points = draw(st.integers(0, 5)), draw(st.integers(0, 4)), draw(st.integers(0, 3))

    def ids() -> Tensor:
        return torch.tensor(
            draw(st.lists(record_ids, min_size=rows, max_size=rows)), dtype=torch.int64
        )

    def array(*shape: int) -> Tensor:
        return torch.from_numpy(draw(arrays.arrays(np.float32, shape, elements=floats)))

    kind = draw(st.sampled_from([Query, Reply, Upload, Batch]))
    if kind is Query:
        return Query(draw(clients), draw(numbers), ids(), array(points, rows, dim))
    if kind is Reply:
        shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        return Reply(draw(clients), draw(numbers), array(*shape))
    if kind is Upload:
        return Upload(draw(clients), draw(purposes), ids(), array(1, rows, dim))
    return Batch(draw(numbers), ids())


def same(a: Message, b: Message) -> bool:
    return type(a) is type(b) and state.same(vars(a), vars(b))


EXAMPLES: dict[str, Message] = {
    "query": Query(3, 300, torch.tensor([5, 70_000]), torch.randn(2, 2, 3)),
    "reply": Reply(3, 300, torch.randn(2, 3)),
    "upload": Upload(3, "test", torch.tensor([5, 300]), torch.randn(1, 2, 3)),
    "batch": Batch(300, torch.tensor([5, 300])),
}


def frame_of(message: Message) -> bytes:
    return bytes(wire.encode(message, CODEC))


def framed(body: bytes) -> bytes:
    return wire.HEADER.pack(wire.MAGIC, wire.VERSION, 0, len(body)) + body


def fields_of(message: Message) -> list[Any]:
    return list(msgspec.msgpack.decode(frame_of(message)[wire.HEADER.size :]))


def refuse(
    frame: bytes, kind: type[WireError] = WireError, case: object = "", **options: int
) -> None:
    refused(case or frame[:40], kind, wire.decode, frame, CODEC, **options)


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
@settings(deadline=None, max_examples=examples(300))
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    """In little more than its content; what was decoded does not share the frame's memory."""
    frame = bytearray(frame_of(message))
    decoded = wire.decode(frame, CODEC)
    assert same(decoded, message)
    tensors = [value for value in vars(message).values() if isinstance(value, Tensor)]
    content = sum(each.numel() * (4 if each.is_floating_point() else 8) for each in tensors)
    assert len(frame) <= content + 64
    frame[:] = bytes(len(frame))
    assert same(decoded, message)


@given(message=messages(), other=messages())
def test_frames_are_a_function_of_the_message(message: Message, other: Message) -> None:
    assert frame_of(message) == frame_of(message)
    assert (frame_of(message) == frame_of(other)) == same(message, other)


def test_ids_take_the_narrowest_width() -> None:
    for width, *edges in ((1, 0, 255), (2, 256, 65_535), (4, 65_536, 2**32 - 1), (8, 2**32)):
        for largest in edges:
            few = Batch(0, torch.tensor([largest] * 10))
            more = Batch(0, torch.tensor([largest] * 30))
            assert len(frame_of(more)) - len(frame_of(few)) == 20 * width, largest
            assert same(wire.decode(frame_of(few), CODEC), few), largest


def test_an_array_adds_its_codecs_bytes_and_no_more() -> None:
    def size(rows: int, codec: NoCompression) -> int:
        return len(wire.encode(Reply(0, 0, torch.zeros(rows)), codec))

    assert size(60, CODEC) - size(20, CODEC) == 40 * 4
    half = NoCompression(dtype="float16")
    assert size(120, half) - size(20, half) == 100 * 2


def test_the_overhead_of_a_usual_round_is_a_few_dozen_bytes() -> None:
    asked = Query(6, 10_000, torch.arange(59_936, 60_000), torch.zeros(2, 64, 64))
    assert len(frame_of(asked)) - 2 * 64 * 64 * 4 - 64 * 2 <= 40
    assert len(frame_of(Reply(6, 10_000, torch.zeros(1)))) - 4 <= 20


def test_the_header_is_as_documented() -> None:
    for kind, message in EXAMPLES.items():
        frame = frame_of(message)
        assert struct.unpack_from("<2sBBI", frame) == (b"VZ", 1, 0, len(frame) - 8), kind
        body = frame[8:]
        for header in ((b"VX", 1, 0), (b"\0\0", 1, 0), (b"VZ", 0, 0), (b"VZ", 2, 0)):
            refuse(wire.HEADER.pack(*header, len(body)) + body, MalformedError, header)
        for header in ((b"VZ", 255, 0), (b"VZ", 1, 1)):
            refuse(wire.HEADER.pack(*header, len(body)) + body, MalformedError, header)


def test_what_is_cut_or_goes_on_is_refused() -> None:
    for kind, message in EXAMPLES.items():
        frame = frame_of(message)
        for size in range(len(frame)):
            refuse(frame[:size], TruncatedError, (kind, size))
        for size in range(len(frame) - 8):  # its header fits
            refuse(framed(frame[8 : 8 + size]), MalformedError, (kind, size))
        for more in (b"\0", b"\xc0", frame):
            refuse(frame + more, MalformedError, (kind, more))
            refuse(framed(frame[8:] + more), MalformedError, (kind, more))


def test_a_flipped_bit_is_refused_or_makes_another_message() -> None:
    """In the header it is always refused."""
    for kind, message in EXAMPLES.items():
        frame = frame_of(message)
        outcomes = []
        for bit in range(8 * len(frame)):
            changed = bytearray(frame)
            changed[bit // 8] ^= 1 << bit % 8
            try:
                found = wire.decode(bytes(changed), CODEC)
            except WireError:
                outcomes.append("refused")
            else:
                outcomes.append("taken")
                assert not same(found, message), (kind, bit)
        header = 8 * wire.HEADER.size
        assert set(outcomes[:header]) == {"refused"}, kind
        assert outcomes[header:].count("refused") > 20, kind


def test_an_announced_length_over_the_limit_is_refused_before_the_bytes_are_there() -> None:
    """A receiver may set a lower limit."""
    frame = frame_of(EXAMPLES["query"])
    assert same(wire.decode(frame, CODEC, max_body=len(frame) - 8), EXAMPLES["query"])
    refuse(frame, OversizedError, max_body=len(frame) - 9)
    refuse(wire.HEADER.pack(b"VZ", 1, 0, wire.MAX_BODY + 1), OversizedError)
    refuse(wire.HEADER.pack(b"VZ", 1, 0, 2**32 - 1), OversizedError)
    refuse(wire.HEADER.pack(b"VZ", 1, 0, wire.MAX_BODY), TruncatedError)


def test_the_limit_holds_for_decoded_arrays_as_well() -> None:
    """A codec may make a large array of few bytes: the limit is checked before it does."""
    zeros: Any = SimpleNamespace(
        encode=lambda array: memoryview(b""), decode=lambda data, shape: torch.zeros(shape)
    )
    reply = Reply(0, 0, torch.zeros(100))
    frame = wire.encode(reply, zeros)
    assert same(wire.decode(frame, zeros, max_body=400), reply)
    with pytest.raises(OversizedError):
        wire.decode(frame, zeros, max_body=399)


JUNK: list[Any] = [
    *(None, True, -1, -(2**63), 1.5, float("nan"), 2**63, 2**64 - 1),
    *("", "1", "table ", b"x", msgspec.msgpack.Ext(1, b"x" * 6)),
    *([], [1], [1, -2, 3], [1, 2.0, 3], [1, 2, 3, 4], {}, {"client": 1}),
]


def test_fields_that_are_of_another_kind_missing_or_too_many_are_refused() -> None:
    for kind, message in EXAMPLES.items():
        fields = fields_of(message)
        assert same(wire.decode(framed(msgspec.msgpack.encode(fields)), CODEC), message)
        for junk, index in product(JUNK, range(len(fields))):
            changed = [*fields[:index], junk, *fields[index + 1 :]]
            refuse(framed(msgspec.msgpack.encode(changed)), MalformedError, (kind, index, junk))
        for other in (fields[:-1], [*fields, 0], [*fields, None], fields[1:], [], {"a": fields}, 7):
            refuse(framed(msgspec.msgpack.encode(other)), MalformedError, (kind, other))
        for tag in (0, 5, 100, 255, 2**31):
            refuse(framed(msgspec.msgpack.encode([tag, *fields[1:]])), MalformedError, (kind, tag))


def raw_query(
    *, ids: bytes = b"\1\2", width: int = 1, shape: tuple[int, ...] = (1, 2, 1), data: int = 8
) -> bytes:
    return framed(msgspec.msgpack.encode([1, 0, 0, width, ids, list(shape), bytes(data)]))


def test_record_ids_that_are_none_are_refused() -> None:
    for width in (0, 3, 5, 16, 2**31 - 1):
        refuse(raw_query(width=width), MalformedError, width)
    for width in (2, 4, 8):  # no multiple of it
        refuse(raw_query(ids=b"\1" * (width + 1), width=width), MalformedError, width)
    for ids in (b"\1", b"\1\2\3", b""):  # not as many as rows
        refuse(raw_query(ids=ids), MalformedError, ids)
    good = struct.pack("<QQ", 1, 2**63 - 1)
    assert wire.decode(raw_query(ids=good, width=8), CODEC).ids.tolist() == [1, 2**63 - 1]
    for ids in (struct.pack("<QQ", 1, 2**63), b"\xff" * 16):  # beyond the range of int64
        refuse(raw_query(ids=ids, width=8), MalformedError, ids)


def test_ids_are_little_endian() -> None:
    expected = Query(0, 0, torch.tensor([1, 2]), torch.zeros(1, 2, 1))
    assert same(wire.decode(raw_query(), CODEC), expected)
    for width, letter in ((1, "B"), (2, "H"), (4, "I"), (8, "Q")):
        ids = [1, 2 ** (8 * width - 1) - 2]
        packed = struct.pack(f"<2{letter}", *ids)
        message = wire.decode(raw_query(ids=packed, width=width), CODEC)
        assert message.ids.tolist() == ids, width
        assert packed in frame_of(message), width


HUGE = 2**31 - 1


def test_announced_arrays_take_no_memory() -> None:
    over = [(HUGE, 2, HUGE), (1, HUGE, HUGE), (HUGE, HUGE, HUGE), (1, 2, 2**26), (1, HUGE, 1)]
    with little_memory():
        for shape in over:
            refuse(raw_query(shape=shape), OversizedError, shape)
        for shape in ((1, 2, 3 * 10**7), (3 * 10**7, 2, 1)):  # without their bytes
            refuse(raw_query(shape=shape), MalformedError, shape)


def test_empty_arrays_of_absurd_shapes_are_harmless() -> None:
    """Their size is zero whatever their other sides are; NumPy refuses some of them."""
    with little_memory():
        for shape in ((HUGE, 0, HUGE), (0, 0, HUGE), (HUGE, 0, 2)):
            with suppress(WireError):
                message = wire.decode(raw_query(ids=b"", shape=shape, data=0), CODEC)
                assert isinstance(message, Query), shape
                assert message.embeddings.shape == shape


def test_hostile_lengths_and_nesting_are_refused_without_memory() -> None:
    bodies = [
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
    ]
    with little_memory():
        for body in bodies:
            refuse(framed(body), MalformedError, body[:12].hex())


def test_a_purpose_that_is_no_text_is_refused() -> None:
    for purpose in (b"\xa1\xff", b"\xa4tes\xff", b"\xa5table\xff", b"\xa0"):
        body = b"\x97\x03\x00" + purpose + b"\x01\xc4\x00\x93\x01\x00\x01\xc4\x00"
        refuse(framed(body), case=purpose)


@given(garbage=st.binary(max_size=300))
@example(b"VZ\x01\x00\x00\x00\x00\x00")
@settings(deadline=None, max_examples=examples(500))
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


@st.composite
def mutated_bodies(draw: st.DrawFn) -> bytes:
    body = bytearray(frame_of(draw(st.sampled_from(list(EXAMPLES.values()))))[8:])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        until = draw(st.integers(at, min(at + 6, len(body))))
        body[at:until] = draw(st.binary(max_size=6))
    return bytes(body)


others = st.builds(
    lambda tag, fields: msgspec.msgpack.encode([tag, *fields]),
    st.integers(0, 5),
    st.lists(values, max_size=8),
)


@given(body=mutated_bodies() | others)
@settings(deadline=None, max_examples=examples(1000))
def test_bodies_of_other_content_are_refused_or_messages(body: bytes) -> None:
    with suppress(WireError):
        assert isinstance(wire.decode(framed(body), CODEC), Message)


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
