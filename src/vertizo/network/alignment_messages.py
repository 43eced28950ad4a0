"""What is said in an alignment: asks of a feature holder, answers of the label holder.

MessagePack of one of the structs below, fields in order; msgspec checks every type and length. All
asks but the first name the start that they belong to, and pieces are numbered, so that an ask that
is made again is known.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from vertizo.core.errors import MalformedError, OversizedError
from vertizo.network.blinding import PIECE, POINT

VERSION = 1
MOST_KEYS = 2**25
"""Keys that one party may have; a bit for each is 4 MiB."""
LARGEST_ASK = PIECE * POINT + 1024

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_KEYS)]
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST_KEYS // PIECE)]
Start = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
"""Drawn by a feature holder each time that it begins."""
Points = Annotated[bytes, msgspec.Meta(max_length=PIECE * POINT)]
Fingerprint = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[str, msgspec.Meta(max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of asks and answers."""


class Begin(Message, frozen=True, tag=1):
    """Who asks takes part, with so many keys."""

    version: int
    federation: Name
    method: Name
    start: Start
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_KEYS)]


class Own(Message, frozen=True, tag=2):
    """A piece of the asker's own points or hashes, sorted over all pieces."""

    start: Start
    piece: Number
    points: Points


class Fetch(Message, frozen=True, tag=3):
    """Asks for a piece of the label holder's points."""

    start: Start
    piece: Number


class Raised(Message, frozen=True, tag=4):
    """That piece, multiplied by the asker's secret as well."""

    start: Start
    piece: Number
    points: Points


class Finish(Message, frozen=True, tag=5):
    """Everything was sent; answered when all members have come so far."""

    start: Start


class Confirm(Message, frozen=True, tag=6):
    """The fingerprint of the records that were found; answered when all have confirmed."""

    start: Start
    fingerprint: Fingerprint


class Welcome(Message, frozen=True, tag=1):
    """The label holder's number of keys, of parties, and the salt of hashes (else empty)."""

    count: Count
    parties: int
    salt: Annotated[bytes, msgspec.Meta(max_length=32)]


class Taken(Message, frozen=True, tag=2):
    """A piece was received."""


class Piece(Message, frozen=True, tag=3):
    """A piece of the label holder's points."""

    points: Points


class Outcome(Message, frozen=True, tag=4):
    """Which of the asker's own points are in every party's set: one bit each, lowest first."""

    common: Count
    bits: Annotated[bytes, msgspec.Meta(max_length=MOST_KEYS // 8)]


class Agreed(Message, frozen=True, tag=5):
    """All parties have records of this fingerprint."""

    fingerprint: Fingerprint


class Refused(Message, frozen=True, tag=6):
    """An ask that is not accepted; others may be."""

    reason: Text


class Failed(Message, frozen=True, tag=7):
    """The alignment ended without a result, for all."""

    reason: Text


Ask = Begin | Own | Fetch | Raised | Finish | Confirm
Answer = Welcome | Taken | Piece | Outcome | Agreed | Refused | Failed

encode = msgspec.msgpack.Encoder().encode
_asks: msgspec.msgpack.Decoder[Ask] = msgspec.msgpack.Decoder(Ask)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_Decoded = TypeVar("_Decoded")


def decode_ask(frame: bytes) -> Ask:
    """An ask.

    Raises:
        OversizedError, MalformedError: it is none.
    """
    if len(frame) > LARGEST_ASK:
        raise OversizedError(f"{len(frame)} bytes; an ask has at most {LARGEST_ASK}")
    return _decode(_asks, frame)


def decode_answer(frame: bytes) -> Answer:
    """An answer.

    Raises:
        MalformedError: it is none.
    """
    return _decode(_answers, frame)


def _decode(decoder: msgspec.msgpack.Decoder[_Decoded], frame: bytes) -> _Decoded:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"no message of an alignment: {error}") from None


def one_line(text: str) -> str:
    """Words of another party, safe to show: one line of printable characters, not too long."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:900]


def pieces(count: int) -> int:
    """How many pieces that many keys are sent in."""
    return -(-count // PIECE)


def size_of(piece: int, count: int) -> int:
    """How many of the keys are in a piece."""
    return max(0, min(PIECE, count - piece * PIECE))
