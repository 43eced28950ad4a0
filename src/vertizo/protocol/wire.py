"""Messages as bytes: framed, versioned, typed, limited in size.

A frame is eight bytes of header and a body::

    offset  size  meaning
    0       2     b"VZ"
    2       1     format version, 1
    3       1     reserved, 0
    4       4     length of the body, little endian

The body is MessagePack of one of the structs below, fields in order, no names; msgspec checks every
type and bound while it decodes, and nothing in it can name code to run. Record IDs take the
narrowest of 1, 2, 4 or 8 bytes each; where both sides know the order of records, a width of 0 says
that the number of a batch, little endian, is in their place. Arrays are what a codec made of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, overload

import msgspec
import numpy as np

from vertizo.core import kernels
from vertizo.core import version as release
from vertizo.core.errors import MalformedError, OversizedError, TruncatedError
from vertizo.core.plugins.lazy_import import torch
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.messages import Batch, Message, Query, Reply, Upload, WirePurpose

if TYPE_CHECKING:
    from torch import Tensor

    Order = Callable[[int | None, int], Tensor]
    """From a client (None in an announcement, which does not name it) and the number of a batch to
    the batch's record IDs, where both sides know them."""

VERSION = 1
HEADER = struct.Struct("<2sBBI")
MAGIC = b"VZ"
MAX_BODY = 256 * 2**20
"""Bytes of a body that are accepted unless a receiver sets a lower limit."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Small = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Struct(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    pass


class _Query(_Struct, frozen=True, tag=1):
    client: Small
    number: Count
    id_width: Small
    ids: memoryview
    shape: tuple[Small, Small, Small]
    data: memoryview


class _Reply(_Struct, frozen=True, tag=2):
    client: Small
    number: Count
    shape: Annotated[tuple[Small, ...], msgspec.Meta(max_length=3)]
    data: memoryview


class _Upload(_Struct, frozen=True, tag=3):
    client: Small
    purpose: WirePurpose
    id_width: Small
    ids: memoryview
    shape: tuple[Small, Small, Small]
    data: memoryview


class _Batch(_Struct, frozen=True, tag=4):
    number: Count
    id_width: Small
    ids: memoryview


class InProcessFrame:
    """A message for a receiver in the same process, encoded only if somebody asks for its bytes.

    Its length is that of its frame, and it is decoded to the very message: it stands for frames
    whose codec sends arrays as they are. Neither side may change an array that it handed over.
    """

    __slots__ = ("_codec", "_size", "message")

    def __init__(self, message: Query | Reply | Batch, codec: Codec) -> None:
        self.message = message
        self._codec = codec
        self._size = 0

    def __len__(self) -> int:
        if not self._size:
            self._size = size(self.message)
        return self._size

    def __bytes__(self) -> bytes:
        return encode(self.message, self._codec)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        return isinstance(other, bytes | InProcessFrame) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self))


Frame = bytes | InProcessFrame
"""What parties hand to each other."""
Encode = Callable[[Query | Reply | Batch, Codec], Frame]
"""Makes a frame of a message: `encode` or `InProcessFrame`."""

_Body = _Query | _Reply | _Upload | _Batch
_encoder = msgspec.msgpack.Encoder()
Kind = TypeVar("Kind", bound=Message)
_decoder = msgspec.msgpack.Decoder(_Body)


def encode(message: Message, codec: Codec) -> bytes:
    """The frame of a message; its arrays go through ``codec``."""
    frame = bytearray(HEADER.size)
    _encoder.encode_into(_struct_of(message, codec), frame, HEADER.size)
    HEADER.pack_into(frame, 0, MAGIC, VERSION, 0, len(frame) - HEADER.size)
    return bytes(frame)


def size(message: Query | Reply | Batch) -> int:
    """Bytes of the frame of a message whose arrays are sent as they are, without making it.

    Those of the frame with empty IDs and arrays, and what these add.
    """
    bare: _Body
    match message:
        case Query(client, number, ids, embeddings, batch):
            points, rows, dim = embeddings.shape
            bare = _Query(client, number, 0, NOTHING, (points, rows, dim), NOTHING)
            named = _width(ids) * rows if batch is None else len(_pack_number(batch))
            added = named, embeddings.nbytes
        case Reply(client, number, values):
            bare = _Reply(client, number, tuple(values.shape), NOTHING)
            added = 0, values.nbytes
        case Batch(number, ids, batch):
            bare = _Batch(number, 0, NOTHING)
            named = _width(ids) * len(ids) if batch is None else len(_pack_number(batch))
            added = named, 0
    total = HEADER.size + len(_encoder.encode(bare))
    for length in added:  # MessagePack says lengths of 2⁸ and more in 1 byte more, of 2¹⁶ in 3
        total += length + (0 if length < 2**8 else 1 if length < 2**16 else 3)
    return total


NOTHING = memoryview(b"")


def _struct_of(message: Message, codec: Codec) -> _Body:
    match message:
        case Query(client, number, ids, embeddings, batch):
            width, packed = _pack_ids(ids) if batch is None else (0, _pack_number(batch))
            data = codec.encode(embeddings.cpu())
            return _Query(client, number, width, packed, _three(embeddings), data)
        case Reply(client, number, values):
            return _Reply(client, number, tuple(values.shape), codec.encode(values.cpu()))
        case Upload(client, purpose, ids, embeddings):
            width, packed = _pack_ids(ids)
            data = codec.encode(embeddings)
            return _Upload(client, WirePurpose[purpose], width, packed, _three(embeddings), data)
        case Batch(number, ids, batch):
            width, packed = _pack_ids(ids) if batch is None else (0, _pack_number(batch))
            return _Batch(number, width, packed)


def is_upload(frame: bytes) -> bool:
    """Whether a frame says that it is an `Upload`; nothing of it is checked."""
    return frame[HEADER.size + 1 : HEADER.size + 2] == b"\x03"


def is_batch(frame: bytes) -> bool:
    """Whether a frame says that it is a `Batch`; nothing of it is checked."""
    return frame[HEADER.size + 1 : HEADER.size + 2] == b"\x04"


@overload
def decode(
    frame: Frame, codec: Codec, *, max_body: int = ..., order: Order | None = ...
) -> Message: ...


@overload
def decode(
    frame: Frame, codec: Codec, kind: type[Kind], *, max_body: int = ..., order: Order | None = ...
) -> Kind: ...


def decode(
    frame: Frame,
    codec: Codec,
    kind: type[Any] = object,
    *,
    max_body: int = MAX_BODY,
    order: Order | None = None,
) -> Any:
    """The message of exactly one frame, whose arrays went through ``codec``.

    Raises:
        TruncatedError: the frame ends before its announced length.
        OversizedError: the announced body, or an array once decoded, is over ``max_body`` bytes.
        MalformedError: anything else that is not a message of this version, and of that ``kind``.
    """
    message: Message
    if isinstance(frame, InProcessFrame):
        message = frame.message
    else:
        message = _parsed(frame, codec, max_body, order)
    if not isinstance(message, kind):
        one = "an Upload" if kind is Upload else f"a {kind.__name__}"
        raise MalformedError(f"a {type(message).__name__} where {one} was expected")
    return message


def _parsed(frame: bytes, codec: Codec, max_body: int, order: Order | None) -> Message:
    try:
        body: _Body = _decoder.decode(_body(frame, max_body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a message: {error}") from None
    match body:
        case _Query(client, number, width, ids, shape, data):
            found, batch = _records(ids, width, order, client)
            return Query(client, number, found, _rows(found, codec, data, shape, max_body), batch)
        case _Reply(client, number, shape, data):
            return Reply(client, number, _array(codec, data, shape, max_body))
        case _Upload(client, purpose, width, ids, shape, data):
            found = _unpack_ids(ids, width)
            return Upload(client, purpose.own, found, _rows(found, codec, data, shape, max_body))
        case _Batch(number, width, ids):
            return Batch(number, *_records(ids, width, order, None))


def _body(frame: bytes, max_body: int) -> memoryview:
    if len(frame) < HEADER.size:
        raise TruncatedError(f"{len(frame)} bytes; a header alone has {HEADER.size}")
    magic, version, reserved, length = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise MalformedError(f"the frame starts with {magic!r}, not {MAGIC!r}")
    if version != VERSION or reserved:
        raise MalformedError(other_version(version, reserved))
    if length > max_body:
        raise OversizedError(f"a body of {length} bytes; at most {max_body} are accepted")
    present = len(frame) - HEADER.size
    if present < length:
        raise TruncatedError(f"{present} bytes of a body that has {length}")
    if present > length:
        raise MalformedError(f"{present - length} bytes follow the end of the message")
    return memoryview(frame)[HEADER.size :]


def other_version(version: int, reserved: int) -> str:
    """The error line for a frame whose header is of another version."""
    return (
        f"format version {version}.{reserved} of messages; this is vertizo {release.VERSION}, "
        f"which speaks version {VERSION}.0: install the same version of vertizo at all parties"
    )


def _array(codec: Codec, data: memoryview, shape: tuple[int, ...], max_body: int) -> Tensor:
    size = 1
    for side in shape:
        size *= max(side, 1)  # an empty array of absurd sides is absurd as well
    if 4 * size > max_body:
        raise OversizedError(f"an array of shape {shape} is announced in {len(data)} bytes")
    return codec.decode(data, shape)


def _rows(
    ids: Tensor, codec: Codec, data: memoryview, shape: tuple[int, int, int], max_body: int
) -> Tensor:
    """Embeddings, a row for each of the IDs."""
    embeddings = _array(codec, data, shape, max_body)
    if ids.numel() != shape[1]:
        raise MalformedError(f"{ids.numel()} record IDs for {shape[1]} rows of embeddings")
    return embeddings


_WIDTHS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def _pack_ids(ids: Tensor) -> tuple[int, memoryview]:
    """Width in bytes, and the IDs; they must not be negative."""
    width = _width(ids)
    return width, ids.numpy().astype(_WIDTHS[width]).data.cast("B")


def _width(ids: Tensor) -> int:
    """Bytes that each record ID takes."""
    most = kernels.highest(np.ascontiguousarray(ids.numpy()))
    return 1 if most < 2**8 else 2 if most < 2**16 else 4 if most < 2**32 else 8


def _unpack_ids(data: memoryview, width: int) -> Tensor:
    dtype = _WIDTHS.get(width)
    if dtype is None or len(data) % width:
        raise MalformedError(f"record IDs of {width} bytes each in {len(data)} bytes")
    ids: np.ndarray[Any, np.dtype[np.int64]] = np.frombuffer(data, dtype).astype(np.int64)
    if width == 8 and ids.size and ids.min() < 0:
        raise MalformedError("record IDs of 2⁶³ and more")
    return torch.from_numpy(ids)


def _pack_number(number: int) -> memoryview:
    """A batch's number in as few bytes as hold it, at least one."""
    return memoryview(number.to_bytes(max(1, (number.bit_length() + 7) // 8), "little"))


def _records(
    data: memoryview, width: int, order: Order | None, client: int | None
) -> tuple[Tensor, int | None]:
    """Record IDs, and the number of a batch where it is in their place."""
    if width:
        return _unpack_ids(data, width), None
    batch = int.from_bytes(data, "little")
    if not 1 <= len(data) <= 8 or batch >= 2**63:
        raise MalformedError(f"the number of a batch in {len(data)} bytes")
    if order is None:
        raise MalformedError(f"batch {batch} in place of record IDs, whose order is not known here")
    return order(client, batch), batch


def _three(array: Tensor) -> tuple[int, int, int]:
    points, rows, dim = array.shape
    return points, rows, dim
