"""The records that every party has, found without showing the others.

The label holder runs an `AligningService` (`vertizo.network.alignment_service`), every feature
holder calls `align_with`.

Method "private": both blind their keys on a curve (`vertizo.network.blinding`). A feature holder
sends its points, and multiplies those of the label holder by its own secret; the label holder
multiplies those of the feature holder and compares. So it learns which of its keys the other has;
the feature holder only ever sees points that it cannot read. Method "hashed" compares salted
hashes instead and hides nothing from the label holder.

When all members have come so far, each is told by one bit for each point of its own whether that
record is common to all parties. No key is ever sent. At the end all compare a fingerprint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from vertizo.core.errors import ConfigError, DataError, MalformedError, RunError
from vertizo.data.alignment import fingerprint, in_order
from vertizo.network.alignment_messages import (
    MOST_KEYS,
    VERSION,
    Agreed,
    Ask,
    Begin,
    Confirm,
    Failed,
    Fetch,
    Finish,
    Message,
    Outcome,
    Own,
    Piece,
    Raised,
    Refused,
    Taken,
    Welcome,
    decode_answer,
    encode,
    one_line,
    pieces,
    size_of,
)
from vertizo.network.blinding import PIECE, POINT, Curve, salted_hashes
from vertizo.network.transport import Channel

Method = Literal["private", "hashed"]
Progress = Callable[[float, str], None]
"""Called with the share that is done, from 0 to 1, and what is being done."""
_Expected = TypeVar("_Expected", bound=Message)


@dataclass(frozen=True)
class Alignment:
    """The records that all parties have.

    Attributes:
        keys: of those records, in canonical order.
        own: how many records this party has.
        others: how many the others have, as far as this party was told.
        pairwise: how many of the label holder's records each feature holder has; known to the
            label holder alone, empty elsewhere.
        parties: how many took part.
        method: how sets were compared.
        fingerprint: of the keys in their order and the federation's name, 64 hex digits; the same
            at all parties.
    """

    keys: tuple[str, ...]
    own: int
    others: Mapping[str, int]
    pairwise: Mapping[str, int]
    parties: int
    method: Method
    fingerprint: str


def check_method(method: str) -> Method:
    """``method`` if there is one of that name.

    Raises:
        ConfigError: there is none.
    """
    for known in get_args(Method):
        if method == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"the method of an alignment is {method!r}; it must be private or hashed")


def check_keys(keys: Sequence[str]) -> None:
    """Raises DataError unless there are keys, not too many, and none of them twice."""
    if not keys:
        raise DataError("there are no keys to align")
    if len(keys) > MOST_KEYS:
        raise DataError(f"{len(keys)} keys to align; at most {MOST_KEYS} are possible")
    if len(set(keys)) != len(keys):
        raise DataError(f"{len(keys) - len(set(keys))} of {len(keys)} keys occur more than once")


def align_with(
    channel: Channel,
    keys: Sequence[str],
    method: Method = "private",
    *,
    federation: str,
    progress: Progress = lambda _, __: None,
) -> Alignment:
    """Take part as a feature holder, until all parties agree.

    Args:
        channel: to the label holder; stays open.
        keys: canonical (`vertizo.data.alignment.keys_of`), each once.
        method: as the label holder's.
        federation: its name, as the label holder has it.
        progress: is told how far this party is.

    Raises:
        ConfigError: the method's extra is missing.
        DataError: no keys; or it ended for all, as when no record is common to all.
        RunError: refused, or the label holder's answers make no sense.
    """
    check_keys(keys)
    return _Member(channel, keys, check_method(method), federation, progress).align()


class _Member:
    def __init__(
        self,
        channel: Channel,
        keys: Sequence[str],
        method: Method,
        federation: str,
        progress: Progress,
    ) -> None:
        self._channel = channel
        self._keys = keys
        self._method = method
        self._federation = federation
        self._progress = progress
        self._curve = Curve(federation) if method == "private" else None
        self._start = os.urandom(16)

    def align(self) -> Alignment:
        begin = Begin(VERSION, self._federation, self._method, self._start, len(self._keys))
        welcome = self._ask(begin, Welcome)
        points = self._points(welcome.salt)
        # Sorted by what cannot be read, so that the order tells nothing of the keys.
        order = sorted(range(len(points)), key=points.__getitem__)
        self._send([points[place] for place in order])
        if self._curve is not None:
            self._raise(self._curve, welcome.count)
        self._progress(1.0, "waiting for the others")
        outcome = self._ask(Finish(self._start), Outcome)
        common = in_order(self._keys[order[place]] for place in _places(outcome, len(order)))
        found = fingerprint(self._federation, common)
        if self._ask(Confirm(self._start, found), Agreed).fingerprint != found:
            raise RunError("the label holder did not arrive at the same records as this party")
        return Alignment(
            keys=common,
            own=len(self._keys),
            others={"the label holder": welcome.count},
            pairwise={},
            parties=welcome.parties,
            method=self._method,
            fingerprint=found.hex(),
        )

    def _points(self, salt: bytes) -> list[bytes]:
        def done(keys: int) -> None:
            self._progress(keys / len(self._keys) / 2, "blinding own keys")

        if self._curve is not None:
            return self._curve.blind(self._keys, done)
        return salted_hashes(salt, self._keys, done)

    def _send(self, points: Sequence[bytes]) -> None:
        for piece in range(pieces(len(points))):
            part = b"".join(points[piece * PIECE : (piece + 1) * PIECE])
            self._ask(Own(self._start, piece, part), Taken)

    def _raise(self, curve: Curve, count: int) -> None:
        total = pieces(count)
        for piece in range(total):
            points = self._ask(Fetch(self._start, piece), Piece).points
            if len(points) != POINT * size_of(piece, count):
                raise RunError(f"the label holder sent {len(points)} bytes as piece {piece}")
            try:
                raised = curve.again(points)
            except MalformedError as error:
                raise RunError(f"the label holder's piece {piece} is wrong: {error}") from None
            self._ask(Raised(self._start, piece, raised), Taken)
            self._progress(0.5 + (piece + 1) / total / 2, "blinding the label holder's keys")

    def _ask(self, ask: Ask, expected: type[_Expected]) -> _Expected:
        try:
            answer = decode_answer(self._channel.ask(encode(ask)))
        except MalformedError as error:
            raise RunError(f"the label holder answered with {one_line(str(error))}") from None
        if isinstance(answer, Failed):
            raise DataError(one_line(answer.reason))
        if isinstance(answer, Refused):
            raise RunError(f"the label holder refused: {one_line(answer.reason)}")
        if not isinstance(answer, expected):
            raise RunError(
                f"the label holder answered {type(ask).__name__} with {type(answer).__name__}, "
                f"not {expected.__name__}"
            )
        return answer


def _places(outcome: Outcome, count: int) -> list[int]:
    """Which bits are set.

    Raises:
        RunError: another number than announced.
    """
    places = list(_set_bits(outcome.bits))
    fits = len(outcome.bits) == -(-count // 8) and (not places or places[-1] < count)
    if not fits or len(places) != outcome.common or not places:
        raise RunError(
            f"the label holder's outcome has {len(places)} bits set in {len(outcome.bits)} bytes, "
            f"for {outcome.common} common records of {count}"
        )
    return places


def _set_bits(bits: bytes) -> Iterator[int]:
    for place, byte in enumerate(bits):
        if byte:
            for bit in range(8):
                if byte >> bit & 1:
                    yield 8 * place + bit
