"""Frames that members and the label holder exchange beside the parties' own messages.

A frame of the parties (`vertizo.protocol.wire`) travels as it is. Frames of this module have the
same header with a magic of their own, and a MessagePack body. An ask is one frame; an answer is one
or several in a row, and the member does what they say in that order.

===========  ==========  =======================================================================
asks         answers
===========  ==========  =======================================================================
`Hello`      `Terms`     what is to be trained, for the member to accept or not
`Ready`      `Todo`      once all members are ready
`Next`       `Todo`      once there is something to do
a query      a reply     and what is to be done next, if that is not simply the next query
an upload    `Noted`     a piece of what a `Send` asked for
`Sent`       `Todo`      after its last piece
`Found`      `Want`      for scores, once there is something to find; it begins with a `Ready`
===========  ==========  =======================================================================

A `Todo` is `Go`, `Send`, `Keep`, `Done` or the announcement of a synchronous round, which is one of
the parties' frames. Each ask may be answered by a `Refusal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from vertizo.core.errors import MalformedError, RefusedError, RunError, TruncatedError, WireError
from vertizo.core.version import VERSION
from vertizo.network.transport.versions import PROTOCOL as PROTOCOL
from vertizo.protocol import wire
from vertizo.protocol.messages import Purpose, WirePurpose
from vertizo.run.loop.traffic import rows_at_once

if TYPE_CHECKING:
    from vertizo.run.build.client import MadeClient

MAGIC = b"VC"
MAX_BODY = 2**20

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(max_length=200)]


class _Frame(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    pass


class Hello(_Frame, frozen=True, tag=1, forbid_unknown_fields=False):
    """A member's greeting; who it is, its certificate says.

    Later versions may add fields, which this one ignores, so that it can name the other version.
    """

    protocol: Count
    federation: Name
    version: Name = ""
    """The member's version of vertizo."""


class Terms(_Frame, frozen=True, tag=2):
    """The terms of a job: what is to be trained."""

    job: Name
    """Name of this run, to which a member's folder belongs."""
    index: Count
    """The member's number as a client, from 0."""
    members: tuple[Name, ...]
    settings: str
    """The configuration that all share, JSON."""
    own_tables: bool
    """Whether each party has a table of its own, or takes its part of a named data set."""
    choice: Count
    """Public seed of the choice of validation records."""
    shared: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    """Key of the randomness that the label holder and this member share."""
    trial: bool
    """Whether all randomness, secrets included, follows from ``choice``: for trying out."""


class Ready(_Frame, frozen=True, tag=3):
    """The member's party is made; its facts."""

    job: Name
    embedding_dim: Count
    records: tuple[Count, Count, Count]
    """Numbers of training, validation and test records."""
    fingerprint: Annotated[bytes, msgspec.Meta(max_length=32)]
    """Fingerprint of the records' keys in their order."""
    fitted: bool
    """Whether its features were scaled by statistics of the training records."""
    mixes_records: bool
    """Whether its model computes a record's embedding from others as well."""


class Next(_Frame, frozen=True, tag=4):
    """The member asks what there is to do."""

    job: Name


class Sent(_Frame, frozen=True, tag=5):
    """The member has sent all pieces of an upload."""

    job: Name
    purpose: WirePurpose
    number: Count


class Go(_Frame, frozen=True, tag=6):
    """The member may send queries, at its own pace."""


class Send(_Frame, frozen=True, tag=7):
    """The member is to upload the embeddings of one partition, and keep their parameters."""

    purpose: WirePurpose
    number: Count
    """The number of the evaluation."""
    model: Literal["now", "best"]


class Keep(_Frame, frozen=True, tag=8):
    """The parameters of evaluation ``number`` are the best so far."""

    number: Count


class Noted(_Frame, frozen=True, tag=9):
    """A piece of an upload arrived."""


class Done(_Frame, frozen=True, tag=10):
    """The job is over."""

    words: str
    """The privacy statement, in words."""
    best: Count | None
    """The evaluation whose parameters are the final model; None for the last parameters."""


class Refusal(_Frame, frozen=True, tag=11):
    """The ask is refused; repeating it will not help."""

    words: str


class Want(_Frame, frozen=True, tag=12):
    """The member is to look up records of these keys, for scores."""

    number: Count
    keys: tuple[Name, ...]


class Found(_Frame, frozen=True, tag=13):
    """The wanted records that a member has; an upload of their embeddings follows, if any."""

    job: Name
    number: Count
    places: tuple[Count, ...] | None
    """Their places among the keys, in order; None if the member's table could not be read."""


Ask = Hello | Ready | Next | Sent | Found
Todo = Go | Send | Keep | Done | Want
Frame = Ask | Terms | Todo | Noted | Refusal

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """Encode a frame of this module."""
    return framed(MAGIC, _encoder.encode(frame))


def framed(magic: bytes, body: bytes) -> bytes:
    """Put a header with that magic in front of a body."""
    return wire.HEADER.pack(magic, wire.VERSION, 0, len(body)) + body


def is_party_frame(frame: bytes) -> bool:
    """Whether a frame is a party's message, which is passed on as it is."""
    return frame[:2] == wire.MAGIC


def body_of(magic: bytes, frame: bytes) -> memoryview:
    """The body of one frame, or a WireError."""
    if len(frame) < wire.HEADER.size:
        raise TruncatedError(f"{len(frame)} bytes; a header alone has {wire.HEADER.size}")
    found, version, reserved, length = wire.HEADER.unpack_from(frame)
    if found != magic:
        raise MalformedError(f"a frame of {found!r}, which is none of ours")
    if version != wire.VERSION or reserved:
        raise MalformedError(wire.other_version(version, reserved))
    if length != len(frame) - wire.HEADER.size or length > MAX_BODY:
        raise MalformedError(f"a body of {length} bytes in a frame of {len(frame)}")
    return memoryview(frame)[wire.HEADER.size :]


def decode(frame: bytes) -> Frame:
    """Decode one frame of this module, or raise WireError."""
    body = body_of(MAGIC, frame)
    try:
        found: Frame = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a frame of ours: {error}") from None
    return found


def split(answer: bytes) -> Iterator[bytes]:
    """Yield the frames of an answer, in order; WireError if it ends within one."""
    start = 0
    while start < len(answer):
        if len(answer) - start < wire.HEADER.size:
            raise TruncatedError("an answer ends within a header")
        *_, length = wire.HEADER.unpack_from(answer, start)
        stop = start + wire.HEADER.size + length
        if stop > len(answer):
            raise TruncatedError("an answer ends within a frame")
        yield answer if stop - start == len(answer) else answer[start:stop]
        start = stop


# What a member makes of answers.


def expect(answer: bytes, *expected: type[Frame]) -> Any:
    """Decode an answer of an expected type; RunError for a refusal, WireError for anything else."""
    found = decode(answer)
    if isinstance(found, Refusal):
        raise RunError(f"the label holder refused: {found.words}")
    if not isinstance(found, expected):
        raise MalformedError(f"a {type(found).__name__}, which was not asked for")
    return found


def greet(ask: Callable[[bytes], bytes], federation: str) -> Terms:
    """Send a hello; return the label holder's terms, not yet accepted, or raise RunError."""
    terms: Terms = expect(ask(encode(Hello(PROTOCOL, federation, VERSION))), Terms)
    return terms


def upload(
    ask: Callable[[bytes], bytes],
    made: MadeClient,
    purpose: Purpose,
    rows: int,
    progress: Callable[[float], None] = lambda share: None,
) -> None:
    """Send a partition's embeddings piece by piece; ``progress`` gets the share that is sent."""
    at_once = rows_at_once(made.embedding_dim)
    for start in range(0, rows, at_once):
        stop = min(start + at_once, rows)
        expect(ask(made.party.upload(purpose, start, stop)), Noted)
        progress(stop / rows)


@contextmanager
def understood() -> Iterator[None]:
    """Turn errors on what the label holder sent into a RunError, which ends the job here."""
    try:
        yield
    except (WireError, RefusedError) as error:
        raise RunError(f"the label holder sent what this party cannot use: {error}") from None
