"""A feature holder's side of an alignment, and what an alignment gives every party."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, cast, get_args

import numpy as np

from vertizo.core.errors import ConfigError, DataError, MalformedError, RunError
from vertizo.core.text.messages import one_line
from vertizo.data.alignment import fingerprint, in_order
from vertizo.network.alignment import messages
from vertizo.network.alignment.blinding import PIECE, POINT, Curve, cut, salted_hashes
from vertizo.network.alignment.messages import pieces, size_of
from vertizo.network.transport.base import Channel

Method = Literal["private", "hashed"]
Progress = Callable[[float, str], None]
"""Called with the share that is done, from 0 to 1, and the work under way."""
_Expected = TypeVar("_Expected", bound=messages.Message)


@dataclass(frozen=True)
class Alignment:
    """The records that all parties have."""

    keys: tuple[str, ...]
    """Keys of those records, in canonical order."""
    own: int
    """Number of records of this party."""
    others: Mapping[str, int]
    """Number of records of other parties, as far as this party was told."""
    pairwise: Mapping[str, int]
    """At the label holder: how many of its records each feature holder has; else empty."""
    parties: int
    """Number of parties that took part."""
    method: Method
    fingerprint: str
    """Digest of the keys in order and the federation's name, 64 hex digits; the same at all."""

    def revealed(self) -> list[str]:
        """Sentences on what was shown to whom, a line each."""
        if self.pairwise:
            listed = ", ".join(
                f"{name} has {self.others[name]:,} records, {shared:,} of them among yours"
                for name, shared in self.pairwise.items()
            )
            first = f"You, the label holder, learned which of your records each has: {listed}."
        else:
            further = ", also those that another party lacks" if self.parties > 2 else ""
            first = (
                "The label holder learned how many records you have, and which of its own you "
                f"have{further}."
            )
        who = "Each feature holder" if self.pairwise else "You"
        total = self.own if self.pairwise else self.others.get("the label holder", 0)
        everyone = "both" if self.parties == 2 else f"all {self.parties}"
        lines = [
            first,
            f"{who} learned how many records the label holder has ({total:,}), and which records "
            f"{everyone} parties have.",
        ]
        if self.method == "hashed":
            lines.append(
                "NOT PRIVATE: the label holder got salted hashes of all keys. By trying out "
                "identifiers it can find out everything in a feature holder's column, not just "
                "what both have. The method private prevents that."
            )
        return lines


def check_method(method: str) -> Method:
    """Return ``method`` if it is known; else raise ConfigError."""
    if method not in get_args(Method):
        raise ConfigError(f"the method of an alignment is {method!r}; it must be private or hashed")
    return cast(Method, method)


def check_keys(keys: Sequence[str]) -> None:
    """Raise DataError unless there are keys, not too many, and none of them twice."""
    if not keys:
        raise DataError("there are no keys to align")
    if len(keys) > messages.MOST_KEYS:
        raise DataError(f"{len(keys)} keys to align; at most {messages.MOST_KEYS} are possible")
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
    """Take part as a feature holder, until all parties agree; the channel stays open.

    The keys are canonical (`vertizo.data.alignment.keys_of`), each once; method and federation are
    the label holder's.

    Raises:
        ConfigError: the method's extra is missing.
        DataError: no keys; or it ended for all, as when no record is common to all.
        RunError: refused, or the label holder's answers make no sense.
    """
    check_keys(keys)
    start, count = os.urandom(16), len(keys)
    curve = Curve(federation) if check_method(method) == "private" else None
    begin = messages.Begin(messages.VERSION, federation, method, start, count)
    welcome = _ask(channel, begin, messages.Welcome)
    points: list[bytes] = []
    for part in cut(keys, PIECE):
        points += salted_hashes(welcome.salt, part) if curve is None else curve.blind(part)
        progress(len(points) / count / 2, "blinding own keys")
    # Sorted by what cannot be read, so that the order tells nothing of the keys.
    order = sorted(range(count), key=points.__getitem__)
    for piece, sent in enumerate(cut([points[place] for place in order], PIECE)):
        _ask(channel, messages.Own(start, piece, b"".join(sent)), messages.Taken)
    if curve is not None:
        _raise(channel, curve, start, welcome.count, progress)
    progress(1.0, "waiting for the others")
    outcome = _ask(channel, messages.Finish(start), messages.Outcome)
    common = in_order(keys[order[place]] for place in _places(outcome, count))
    found = fingerprint(federation, common)
    if _ask(channel, messages.Confirm(start, found), messages.Agreed).fingerprint != found:
        raise RunError("the label holder did not arrive at the same records as this party")
    return Alignment(
        keys=common,
        own=count,
        others={"the label holder": welcome.count},
        pairwise={},
        parties=welcome.parties,
        method=method,
        fingerprint=found.hex(),
    )


def _raise(channel: Channel, curve: Curve, start: bytes, count: int, progress: Progress) -> None:
    """Multiply the label holder's points by this party's secret, and send them back."""
    total = pieces(count)
    seen: set[bytes] = set()
    for piece in range(total):
        points = _ask(channel, messages.Fetch(start, piece), messages.Piece).points
        if len(points) != POINT * size_of(piece, count):
            raise RunError(f"the label holder sent {len(points)} bytes as piece {piece}")
        try:
            raised = curve.again(points)
        except MalformedError as error:
            raise RunError(f"the label holder's piece {piece} is wrong: {error}") from None
        seen.update(raised)
        if len(seen) != min(count, (piece + 1) * PIECE):
            raise RunError(f"the label holder sent one record twice, by its piece {piece}")
        _ask(channel, messages.Raised(start, piece, b"".join(raised)), messages.Taken)
        progress(0.5 + (piece + 1) / total / 2, "blinding the label holder's keys")


def _ask(channel: Channel, ask: messages.Ask, expected: type[_Expected]) -> _Expected:
    try:
        answer = messages.decode_answer(channel.ask(messages.encode(ask)))
    except MalformedError as error:
        raise RunError(f"the label holder answered with {one_line(str(error))}") from None
    if isinstance(answer, messages.Failed):
        raise DataError(one_line(answer.reason))
    if isinstance(answer, messages.Refused):
        raise RunError(f"the label holder refused: {one_line(answer.reason)}")
    if not isinstance(answer, expected):
        raise RunError(
            f"the label holder answered {type(ask).__name__} with {type(answer).__name__}, "
            f"not {expected.__name__}"
        )
    return answer


def _places(outcome: messages.Outcome, count: int) -> list[int]:
    """The places of the bits that are set; RunError if there are not as many as announced."""
    bits = outcome.bits
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    places: list[int] = flags.nonzero()[0].tolist()
    fits = len(bits) == -(-count // 8) and (not places or places[-1] < count)
    if not fits or len(places) != outcome.common or not places:
        raise RunError(
            f"the label holder's outcome has {len(places)} bits set in {len(bits)} bytes, "
            f"for {outcome.common} common records of {count}"
        )
    return places
