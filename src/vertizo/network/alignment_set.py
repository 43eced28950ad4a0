"""What one feature holder has sent to an alignment since it last began."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

from vertizo.core.errors import ConflictError, MalformedError
from vertizo.network.alignment_messages import Begin, pieces, size_of
from vertizo.network.blinding import HASH, POINT, cut


class MemberSet:
    """Takes pieces in their order; a piece that is sent again must be what it was.

    Args:
        begin: what the member said at first.
        theirs: how many points of the label holder it multiplies and sends back; 0 for hashes.

    Attributes:
        compared: its own points as they are compared, in its order.
        mine: the label holder's points as they came back, in the label holder's order.
        waits: everything was sent.
        bits: which of its points are common to all, once that is known.
        confirmed: it has the records that the label holder has.
    """

    def __init__(self, begin: Begin, theirs: int) -> None:
        self.begin = begin
        self.compared: list[bytes] = []
        self.mine: list[bytes] = []
        self.waits = False
        self.bits = b""
        self.confirmed = False
        self._theirs = theirs
        self._own: list[bytes] = []  # SHA-256 of each piece, as below
        self._raised: list[bytes] = []
        self._last = b""

    @property
    def share(self) -> float:
        """How much of all was sent, from 0 to 1."""
        whole = pieces(self.begin.count) + pieces(self._theirs)
        return (len(self._own) + len(self._raised)) / whole

    @property
    def is_compared(self) -> bool:
        """Everything was sent and worked through."""
        return self.waits and len(self.compared) == self.begin.count

    def own(self, piece: int, points: bytes) -> bool:
        """Whether this piece of the member's own set is new.

        Raises:
            MalformedError: of a wrong length, or not sorted.
            ConflictError: out of turn, or not what it was.
        """
        width = POINT if self._theirs else HASH
        if not _is_new(self._own, "its own keys", piece, points):
            return False
        _check_length(piece, points, width, self.begin.count)
        parts = [self._last, *cut(points, width)]
        if not all(former < latter for former, latter in pairwise(parts)):
            raise MalformedError(f"piece {piece} of a set is not sorted, or has an element twice")
        self._last = parts[-1]
        self._own.append(hashlib.sha256(points).digest())
        return True

    def raised(self, piece: int, points: bytes) -> None:
        """A piece of the label holder's points, multiplied by the member.

        Raises:
            MalformedError: of a wrong length.
            ConflictError: out of turn, or not what it was.
        """
        if not _is_new(self._raised, "the label holder's keys", piece, points):
            return
        _check_length(piece, points, POINT, self._theirs)
        self._raised.append(hashlib.sha256(points).digest())
        self.mine += cut(points, POINT)

    def finish(self) -> None:
        """Everything was sent.

        Raises:
            ConflictError: it was not.
            MalformedError: an element came back twice.
        """
        if self.waits:
            return
        whole = pieces(self.begin.count), pieces(self._theirs)
        if (len(self._own), len(self._raised)) != whole:
            raise ConflictError(
                f"{len(self._own)} and {len(self._raised)} pieces were sent of {whole[0]} "
                f"and {whole[1]}; finish when all are"
            )
        if len(set(self.mine)) != len(self.mine):
            raise MalformedError("two of the label holder's elements came back as one")
        self.waits = True

    def matches(self, mine: Sequence[bytes]) -> dict[int, int]:
        """The places of the label holder's points that the member has, and where it has them."""
        places = {point: place for place, point in enumerate(mine)}
        found: dict[int, int] = {}
        for theirs, point in enumerate(self.compared):
            place = places.get(point)
            if place is not None:
                found[place] = theirs
        return found

    def mark(self, places: Iterable[int]) -> None:
        """Set the bits of its points that are common to all."""
        bits = bytearray(-(-self.begin.count // 8))
        for place in places:
            bits[place // 8] |= 1 << place % 8
        self.bits = bytes(bits)


def _is_new(former: list[bytes], what: str, piece: int, points: bytes) -> bool:
    if piece < len(former):
        if former[piece] != hashlib.sha256(points).digest():
            raise ConflictError(f"piece {piece} of {what} is not what it was")
        return False
    if piece > len(former):
        raise ConflictError(f"piece {piece} of {what} came where {len(former)} is next")
    return True


def _check_length(piece: int, points: bytes, width: int, count: int) -> None:
    expected = width * size_of(piece, count)
    if not expected or len(points) != expected:
        raise MalformedError(f"piece {piece} has {len(points)} bytes, not {expected}")
