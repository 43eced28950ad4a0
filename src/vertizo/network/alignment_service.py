"""The label holder's side of an alignment: takes in all sets, and tells what is common to them.

One thread does it all (`vertizo.network.alignment_desk`): it answers asks, and blinds keys while
there are none.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence

from vertizo.core.errors import (
    ConfigError,
    ConflictError,
    DataError,
    MalformedError,
    RefusedError,
    RunError,
    UnknownPartyError,
    VertizoError,
    WireError,
)
from vertizo.data.alignment import fingerprint, in_order
from vertizo.network.aligning import Alignment, Method, check_keys, check_method
from vertizo.network.alignment_desk import Desk
from vertizo.network.alignment_messages import (
    LARGEST_ASK,
    VERSION,
    Agreed,
    Answer,
    Ask,
    Begin,
    Confirm,
    Failed,
    Fetch,
    Finish,
    Outcome,
    Own,
    Piece,
    Raised,
    Refused,
    Taken,
    Welcome,
    decode_ask,
    encode,
    one_line,
    pieces,
)
from vertizo.network.alignment_set import MemberSet
from vertizo.network.blinding import HASH, PIECE, POINT, Curve, cut, salted_hashes
from vertizo.network.transport import Answer as Reply

Waiting = Callable[[Mapping[str, str]], None]
"""Called with the names of those that are waited for, and what each was last seen doing."""


class AligningService:
    """A `Service` that aligns the records of all members with the label holder's.

    The outcome is told once, for one set of each member: until then a member may begin again with
    another set, as after a crash, and learns nothing by it; afterwards another set is refused.

    Args:
        members: the feature holders.
        keys: the label holder's, canonical (`vertizo.data.alignment.keys_of`), each once.
        method: ``private`` or ``hashed``.
        federation: its name; members must give the same.

    Raises:
        ConfigError: no members, one twice, an unknown method, or the method's extra is missing.
        DataError: no keys, too many, or one twice.
    """

    largest_ask = LARGEST_ASK

    def __init__(
        self,
        members: Sequence[str],
        keys: Sequence[str],
        method: Method = "private",
        *,
        federation: str,
    ) -> None:
        if not members or len(set(members)) != len(members):
            raise ConfigError(f"members is {list(members)}; name one or more, each once")
        check_keys(keys)
        self._members = tuple(members)
        self._keys = list(keys)
        self._method: Method = check_method(method)
        self._federation = federation
        self._sets: dict[str, MemberSet] = {}
        self._refusals: dict[str, str] = {}
        """What each was told last, where that was a refusal."""
        self._broken: dict[str, str] = {}
        """Why the set of a member was dropped while it was worked on."""
        self._points: list[bytes] = []
        """The label holder's, in the order of ``_keys`` once all are there."""
        self._curve = Curve(federation) if method == "private" else None
        self._salt = b"" if self._curve else os.urandom(32)
        self._ready = False
        self._result: Alignment | None = None
        self._agreed = False
        self._failure: VertizoError | None = None
        self._said: Callable[[int], str] = str
        """What a member with so many keys is told of it."""

        crashed = encode(Failed("the label holder's program failed"))
        self._desk = Desk(self._answer_frame, self._settle, crashed)
        for piece in range(pieces(len(keys))):
            self._desk.do(self._blinding(piece))
        self._desk.do(self._sort)
        self._desk.open()

    @property
    def members(self) -> tuple[str, ...]:
        """Who may ask."""
        return self._members

    @property
    def result(self) -> Alignment | None:
        """What all parties agreed on; None while they have not."""
        return self._result if self._agreed else None

    def ask(self, member: str, frame: bytes, answer: Reply) -> None:
        """As of a `Service`."""
        self._desk.ask(member, frame, answer)

    def gone(self, member: str) -> None:
        """As of a `Service`."""
        self._desk.gone(member)

    def wait(
        self,
        waiting: Waiting | None = None,
        *,
        every: float = 10.0,
        patience: float | None = None,
        grace: float = 5.0,
    ) -> Alignment:
        """What all parties agreed on, once they have.

        Args:
            waiting: told regularly who is missing.
            every: seconds between that.
            patience: seconds until it is given up; None waits forever.
            grace: seconds that members have at the end to hear of it and go.

        Raises:
            DataError: no record is common to all.
            RunError: the parties do not agree, or not all came in time.
        """
        end = math.inf if patience is None else time.monotonic() + patience
        while not self._desk.wait_for(self._over, max(0.0, min(every, end - time.monotonic()))):
            missing = self.missing()
            if time.monotonic() >= end:
                self._give_up(missing, patience, grace)
            elif waiting is not None and missing:
                waiting(missing)
        self._desk.wait_until_left(grace)
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        return self._result

    def _give_up(self, missing: Mapping[str, str], patience: float | None, grace: float) -> None:
        listed = ", ".join(f"{name} ({state})" for name, state in missing.items())
        late = RunError(f"no alignment in {patience:g} s; waited for {listed or 'nobody'}")
        self._desk.do(lambda: self._end(late, lambda _: "not all parties came in time"))
        if not self._desk.wait_for(self._over, grace):
            raise late

    def missing(self) -> dict[str, str]:
        """The members that have not done all they can, and what each was last seen doing."""
        found: dict[str, str] = {}
        for member in self._members:
            held = self._sets.get(member)
            if member in self._refusals:
                found[member] = f"was refused: {self._refusals[member]}"
            elif held is None:
                found[member] = "has not come"
            elif self._result is not None:
                if not held.confirmed:
                    found[member] = "has not confirmed"
            elif not held.waits:
                found[member] = f"has sent {100 * held.share:.0f} %"
        return found

    def close(self) -> None:
        """End the thread; nothing is answered any more."""
        self._desk.close()

    def _over(self) -> bool:
        return self._agreed or self._failure is not None

    def _settle(self) -> None:
        """Find the outcome once everything is there, and the end once all have confirmed it."""
        if self._over() or not self._ready or len(self._sets) < len(self._members):
            return
        sets = self._sets.values()
        if self._result is None and all(held.is_compared for held in sets):
            self._compare()
        elif self._result is not None and all(held.confirmed for held in sets):
            self._agreed = True

    def _end(self, failure: VertizoError, said: Callable[[int], str]) -> None:
        """Without a result, unless there is one already."""
        if not self._over():
            self._failure, self._said = failure, said

    # ---- work

    def _blinding(self, piece: int) -> Callable[[], None]:
        def job() -> None:
            keys = self._keys[piece * PIECE : (piece + 1) * PIECE]
            if self._curve is not None:
                self._points += self._curve.blind(keys)
            else:
                self._points += salted_hashes(self._salt, keys)

        return job

    def _sort(self) -> None:
        """By what cannot be read, so that the order tells nothing of the keys."""
        order = sorted(range(len(self._points)), key=self._points.__getitem__)
        self._points = [self._points[place] for place in order]
        self._keys = [self._keys[place] for place in order]
        self._ready = True

    def _raising(self, member: str, held: MemberSet, points: bytes) -> Callable[[], None]:
        def job() -> None:
            assert self._curve is not None
            if self._sets.get(member) is not held:
                return
            try:
                held.compared += cut(self._curve.again(points), POINT)
            except MalformedError as error:
                del self._sets[member]
                self._broken[member] = self._refusal(member, error).reason

        return job

    def _compare(self) -> None:
        found = {
            member: held.matches(self._points if self._curve is None else held.mine)
            for member, held in self._sets.items()
        }
        common = set(range(len(self._keys))).intersection(*found.values())
        pairwise = {member: len(found[member]) for member in self._members}
        if not common:
            listed = ", ".join(
                f"{member} {self._sets[member].begin.count} of which {shared} are here"
                for member, shared in pairwise.items()
            )
            self._end(
                DataError(self._nothing(listed)),
                lambda theirs: self._nothing(f"this party {theirs}"),
            )
            return
        for member, held in self._sets.items():
            held.mark(found[member][own] for own in common)
        keys = in_order(self._keys[place] for place in common)
        self._result = Alignment(
            keys=keys,
            own=len(self._keys),
            others={member: self._sets[member].begin.count for member in self._members},
            pairwise=pairwise,
            parties=len(self._members) + 1,
            method=self._method,
            fingerprint=fingerprint(self._federation, keys).hex(),
        )

    def _nothing(self, others: str) -> str:
        return (
            f"no record is common to all {len(self._members) + 1} parties: the label holder has "
            f"{len(self._keys)}, {others}; do the columns of identifiers hold the same kind of key?"
        )

    # ---- answers

    def _answer_frame(self, member: str, frame: bytes) -> bytes | None:
        try:
            answer = self._answer(member, decode_ask(frame))
        except (WireError, RefusedError) as error:
            answer = self._refusal(member, error)
        else:
            self._refusals.pop(member, None)
        return None if answer is None else encode(answer)

    def _refusal(self, member: str, error: Exception) -> Refused:
        reason = one_line(str(error))
        if member in self._members:
            self._refusals[member] = reason
        return Refused(reason)

    def _answer(self, member: str, ask: Ask) -> Answer | None:
        """The answer, or None to hold the ask.

        Raises:
            WireError, RefusedError: it is refused; nothing was changed.
        """
        if member not in self._members:
            raise UnknownPartyError(f"{member!r} is no member of this federation")
        if isinstance(ask, Begin):
            return self._begin(member, ask)
        held = self._sets.get(member)
        if held is None or held.begin.start != ask.start:
            raise ConflictError(
                self._broken.get(member)
                or "this alignment is not known here, as after a restart; begin again"
            )
        if self._failure is not None:
            return Failed(self._said(held.begin.count))
        match ask:
            case Own(_, piece, points):
                return self._own(member, held, piece, points)
            case Fetch(_, piece):
                return self._fetch(piece)
            case Raised(_, piece, points):
                held.raised(piece, points)
                return Taken()
            case Finish():
                held.finish()
                if self._result is None:
                    return None
                return Outcome(len(self._result.keys), held.bits)
            case Confirm(_, print_):
                return self._confirm(member, held, print_)

    def _begin(self, member: str, ask: Begin) -> Answer:
        own = (VERSION, self._federation, self._method)
        for what, theirs, ours in zip(
            ("version", "federation", "method"),
            (ask.version, ask.federation, ask.method),
            own,
            strict=True,
        ):
            if theirs != ours:
                raise ConflictError(
                    f"{what} of the alignment is {theirs!r} there and {ours!r} at the label holder"
                )
        held = self._sets.get(member)
        if held is None or held.begin != ask:
            if held is not None and held.begin.start == ask.start:
                raise ConflictError("this start was made with another number of keys")
            if self._result is not None or self._failure is not None:
                raise ConflictError(
                    "the outcome was found for one set of each party, and this is another; "
                    "align anew at all parties"
                )
            theirs = 0 if self._curve is None else len(self._keys)
            self._sets[member] = MemberSet(ask, theirs)
            self._broken.pop(member, None)
        return Welcome(len(self._keys), len(self._members) + 1, self._salt)

    def _own(self, member: str, held: MemberSet, piece: int, points: bytes) -> Answer:
        if held.own(piece, points):
            if self._curve is None:
                held.compared += cut(points, HASH)
            else:
                self._desk.do(self._raising(member, held, points))
        return Taken()

    def _fetch(self, piece: int) -> Answer | None:
        if self._curve is None or piece >= pieces(len(self._keys)):
            raise ConflictError(f"piece {piece} of the label holder's points: there is none")
        if not self._ready:
            return None
        return Piece(b"".join(self._points[piece * PIECE : (piece + 1) * PIECE]))

    def _confirm(self, member: str, held: MemberSet, found: bytes) -> Answer | None:
        if self._result is None:
            raise ConflictError("there is no outcome yet to confirm")
        if found.hex() == self._result.fingerprint:
            held.confirmed = True
            return Agreed(found) if self._agreed else None
        if held.confirmed:
            raise ConflictError("another fingerprint was confirmed")
        self._end(
            RunError(
                f"{member} did not arrive at the same records as the label holder: it does not "
                "have the keys that it sent, or does not name them as the label holder does"
            ),
            lambda _: "the parties did not arrive at the same records",
        )
        return Failed(self._said(held.begin.count))
