"""Messages of an alignment: asks of a feature holder, and answers of the label holder.

A message is MessagePack of one of the structs below, fields in order; msgspec checks every type and
length. All asks but the first name the start that they belong to, and pieces are numbered, so that
a repeated ask is recognised. `MemberSet` is what one feature holder has sent so far.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, TypeVar

import msgspec

from vertizo.core.errors import ConflictError, MalformedError, OversizedError
from vertizo.network.alignment.blinding import HASH, PIECE, POINT, cut

VERSION = 2
MOST_KEYS = 2**25
"""Most keys of one party; a bit for each is 4 MiB."""
LARGEST_ASK = PIECE * POINT + 1024

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_KEYS)]
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST_KEYS // PIECE)]
Start = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
"""Random bytes that a feature holder draws each time that it begins."""
Points = Annotated[bytes, msgspec.Meta(max_length=PIECE * POINT)]
Fingerprint = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[str, msgspec.Meta(max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of asks and answers."""


class Begin(Message, frozen=True, tag=1):
    """The asker takes part, with ``count`` keys."""

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
    """The asker wants a piece of the label holder's points."""

    start: Start
    piece: Number


class Raised(Message, frozen=True, tag=4):
    """The piece that was fetched, multiplied by the asker's secret as well."""

    start: Start
    piece: Number
    points: Points


class Finish(Message, frozen=True, tag=5):
    """The asker has sent everything; answered once all members have."""

    start: Start


class Confirm(Message, frozen=True, tag=6):
    """The fingerprint of the common records; answered once all members have confirmed."""

    start: Start
    fingerprint: Fingerprint


class Welcome(Message, frozen=True, tag=1):
    """Numbers of the label holder's keys and of parties, and the salt of hashes (or empty)."""

    count: Count
    parties: int
    salt: Annotated[bytes, msgspec.Meta(max_length=32)]


class Taken(Message, frozen=True, tag=2):
    """A piece was received."""


class Piece(Message, frozen=True, tag=3):
    """A piece of the label holder's points."""

    points: Points


class Outcome(Message, frozen=True, tag=4):
    """The asker's points that every party has: one bit for each point, lowest bit first."""

    common: Count
    bits: Annotated[bytes, msgspec.Meta(max_length=MOST_KEYS // 8)]


class Agreed(Message, frozen=True, tag=5):
    """All parties have records of this fingerprint."""

    fingerprint: Fingerprint


class Refused(Message, frozen=True, tag=6):
    """The ask is not accepted; others may be."""

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
    """Decode an ask; OversizedError or MalformedError if it is none."""
    if len(frame) > LARGEST_ASK:
        raise OversizedError(f"{len(frame)} bytes; an ask has at most {LARGEST_ASK}")
    return _decode(_asks, frame)


def decode_answer(frame: bytes) -> Answer:
    """Decode an answer; MalformedError if it is none."""
    return _decode(_answers, frame)


def _decode(decoder: msgspec.msgpack.Decoder[_Decoded], frame: bytes) -> _Decoded:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"no message of an alignment: {error}") from None


def pieces(count: int) -> int:
    """The number of pieces in which ``count`` keys are sent."""
    return -(-count // PIECE)


def size_of(piece: int, count: int) -> int:
    """The number of keys in piece ``piece`` of ``count`` keys."""
    return max(0, min(PIECE, count - piece * PIECE))


class Pieces:
    """Takes the pieces of a set in order; a repeated piece must be the same as before.

    Error messages call the set ``what``. It has ``count`` elements of ``width`` bytes, which must
    be sorted without repeats if ``ascending``.
    """

    def __init__(self, what: str, width: int, count: int, *, ascending: bool = False) -> None:
        self.total = pieces(count)
        self._what, self._width, self._count = what, width, count
        self._ascending = ascending
        self._digests: list[bytes] = []
        self._last = b""

    @property
    def taken(self) -> int:
        """Number of pieces that have come."""
        return len(self._digests)

    def take(self, piece: int, points: bytes) -> list[bytes]:
        """Take a piece and return its elements; none if it had come before.

        MalformedError for a wrong length or order, ConflictError if it is not the next one or is
        not what it was before.
        """
        digest = hashlib.sha256(points).digest()
        if piece < self.taken:
            if self._digests[piece] != digest:
                raise ConflictError(f"piece {piece} of {self._what} is not what it was")
            return []
        if piece > self.taken:
            raise ConflictError(f"piece {piece} of {self._what} came where {self.taken} is next")
        expected = self._width * size_of(piece, self._count)
        if not expected or len(points) != expected:
            raise MalformedError(f"piece {piece} has {len(points)} bytes, not {expected}")
        parts = list(cut(points, self._width))
        if self._ascending and not all(a < b for a, b in pairwise([self._last, *parts])):
            raise MalformedError(f"piece {piece} of a set is not sorted, or has an element twice")
        self._last = parts[-1]
        self._digests.append(digest)
        return parts


class MemberSet:
    """What one feature holder has sent since it last began.

    It multiplies ``theirs`` points of the label holder and sends them back; 0 for hashes. Its
    states::

        from       to         when
        sending    waiting    all pieces of both sets have come (`finish`)
        waiting    compared   the label holder has multiplied its points as well (`compare`);
                              hashes are compared as they came
        compared   marked     all members are compared; bits say what is common (`mark`)
        marked     confirmed  it found the label holder's fingerprint as well

    A member that begins again gets a new set.
    """

    def __init__(self, begin: Begin, theirs: int) -> None:
        self.begin = begin
        width = POINT if theirs else HASH
        self.own = Pieces("its own keys", width, begin.count, ascending=True)
        self.raised = Pieces("the label holder's keys", POINT, theirs)
        self.compared: list[bytes] = []
        """Its own points as they are compared, in its order."""
        self.mine: list[bytes] = []
        """The label holder's points as they came back, in the label holder's order."""
        self.waits = False
        """Whether it has sent everything."""
        self.bits = b""
        """A bit for each of its points: whether it is common to all; empty until that is known."""
        self.confirmed = False
        """Whether it has found the same records as the label holder."""

    @property
    def share(self) -> float:
        """The share of all pieces that have come, from 0 to 1."""
        return (self.own.taken + self.raised.taken) / (self.own.total + self.raised.total)

    @property
    def is_compared(self) -> bool:
        """Whether everything was sent, and its points are ready to be compared."""
        return self.waits and len(self.compared) == self.begin.count

    def compare(self, points: Sequence[bytes]) -> None:
        """Add the next of its points as they are compared; MalformedError if two became one."""
        self.compared += points
        whole = len(self.compared) == self.begin.count
        if whole and len(set(self.compared)) != self.begin.count:
            raise MalformedError("two of its own elements are one record")

    def finish(self) -> None:
        """Note that everything was sent.

        ConflictError if pieces are missing, MalformedError if an element came twice.
        """
        if self.waits:
            return
        own, raised = self.own, self.raised
        if (own.taken, raised.taken) != (own.total, raised.total):
            raise ConflictError(
                f"{own.taken} and {raised.taken} pieces were sent of {own.total} "
                f"and {raised.total}; finish when all are"
            )
        if len(set(self.mine)) != len(self.mine):
            raise MalformedError("two of the label holder's elements came back as one")
        self.waits = True

    def matches(self, mine: Sequence[bytes]) -> dict[int, int]:
        """Place of a common point at the label holder → its place at the member."""
        places = {point: place for place, point in enumerate(mine)}
        return {places[own]: place for place, own in enumerate(self.compared) if own in places}

    def mark(self, places: Iterable[int]) -> None:
        """Set the bits of its points that are common to all."""
        bits = bytearray(-(-self.begin.count // 8))
        for place in places:
            bits[place // 8] |= 1 << place % 8
        self.bits = bytes(bits)
