"""The label holder's side of an alignment: it takes all sets, and tells what is common to them.

The alignment as a whole::

    from        to          when
    gathering   found       every member's set is compared, and some record is common (`_compare`)
    found       agreed      every member has confirmed the fingerprint (`_settle`)
    gathering   failed      no record is common, or `wait` ran out of patience (`_end`)
    found       failed      a member found another fingerprint, or `wait` ran out of patience
    any         crashed     an error in the thread: members are told, and `wait` raises it

Each member's set has states of its own (`vertizo.network.alignment.messages.MemberSet`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Condition

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
from vertizo.core.text.messages import one_line
from vertizo.data.alignment import fingerprint, in_order
from vertizo.network.alignment import messages
from vertizo.network.alignment.blinding import PIECE, Curve, cut, salted_hashes
from vertizo.network.alignment.member import Alignment, Method, check_keys, check_method
from vertizo.network.alignment.messages import MemberSet, pieces
from vertizo.network.transport.base import Answer

CRASHED = messages.encode(messages.Failed("the label holder's program failed"))


class AligningService:
    """A `Service` that aligns the records of all members with the label holder's.

    The outcome is told for one set of each member. Until then a member may begin again with another
    set, as after a crash, and learns nothing by it; afterwards another set is refused. The keys are
    canonical (`vertizo.data.alignment.keys_of`), each once; members must name the same method and
    federation.

    Raises:
        ConfigError: no members, one twice, an unknown method, or the method's extra is missing.
        DataError: no keys, too many, or one twice.
    """

    largest_ask = messages.LARGEST_ASK

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
        self.members = tuple(members)
        self._keys = list(keys)
        self._method = check_method(method)
        self._federation = federation
        self._sets: dict[str, MemberSet] = {}
        self._refusals: dict[str, str] = {}
        """Member → the reason, if its last ask was refused."""
        self._broken: dict[str, str] = {}
        """Member → why its set was dropped while it was worked on."""
        self._points: list[bytes] = []
        """The label holder's points, in the order of ``_keys`` once all are there."""
        self._curve = Curve(federation) if method == "private" else None
        self._salt = b"" if self._curve else os.urandom(32)
        self._ready = self._over = False
        self._found: Alignment | None = None
        self._failure: VertizoError | None = None
        self._told = ""
        """Words for members on the failure; ``{count}`` is the number of the member's keys."""
        self._crash: Exception | None = None
        self._changed = Condition()  # guards what is below, and tells of every change
        self._open: dict[str, tuple[bytes, Answer]] = {}
        self._connected: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="alignment")
        for part in cut(self._keys, PIECE):
            self._do(partial(self._blind, part))
        self._do(self._sort)

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        """Take in an ask, as a `Service` does; it is answered now or later."""
        with self._changed:
            self._connected.add(member)
            self._open[member] = (frame, answer)
        self._do()

    def gone(self, member: str) -> None:
        """Forget the open ask of a member whose connection was lost or closed."""
        with self._changed:
            self._connected.discard(member)
            self._open.pop(member, None)
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, after which nothing is answered."""
        self._thread.shutdown(cancel_futures=True)

    def wait(
        self,
        waiting: Callable[[Mapping[str, str]], None] | None = None,
        *,
        every: float = 10.0,
        patience: float | None = None,
        grace: float = 5.0,
    ) -> Alignment:
        """Wait until all parties agree; return the alignment.

        ``waiting`` is told who is `missing` each ``every`` seconds. After ``patience`` seconds the
        alignment is given up. At the end members have ``grace`` seconds to hear of it and go.

        DataError if no record is common to all, RunError if the parties do not agree or are late.
        """
        end = math.inf if patience is None else time.monotonic() + patience
        while not self._wait_for(lambda: self._over, min(every, end - time.monotonic())):
            missing = self.missing()
            if time.monotonic() >= end:
                listed = ", ".join(f"{name} ({state})" for name, state in missing.items())
                late = RunError(f"no alignment in {patience:g} s; waited for {listed or 'nobody'}")
                self._do(partial(self._end, late, "not all parties came in time"))
                if not self._wait_for(lambda: self._over, grace):
                    raise late
            elif waiting is not None and missing:
                waiting(missing)
        self._wait_for(lambda: not self._connected, grace)
        if self._failure is not None:
            raise self._failure
        assert self._found is not None
        return self._found

    def missing(self) -> dict[str, str]:
        """Members that the others wait for, and what each was last seen doing."""
        states: dict[str, str] = {}
        for member in self.members:
            theirs = self._sets.get(member)
            if member in self._refusals:
                states[member] = f"was refused: {self._refusals[member]}"
            elif theirs is None:
                states[member] = "has not come"
            elif self._found is not None:
                if not theirs.confirmed:
                    states[member] = "has not confirmed"
            elif not theirs.waits:
                states[member] = f"has sent {100 * theirs.share:.0f} %"
        return states

    def _wait_for(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Wait for something; return whether it came in time. Raises an error of the thread."""
        with self._changed:
            there = self._changed.wait_for(lambda: self._crash or reached(), max(0.0, seconds))
        if self._crash is not None:
            raise self._crash
        return bool(there)

    def _settle(self) -> None:
        """Find the outcome once all sets are compared, and end once all have confirmed it."""
        if self._over or not self._ready or len(self._sets) < len(self.members):
            return
        sets = self._sets.values()
        if self._found is None and all(theirs.is_compared for theirs in sets):
            self._compare()
        elif self._found is not None and all(theirs.confirmed for theirs in sets):
            self._over = True

    def _end(self, failure: VertizoError, told: str) -> None:
        """End without a result, unless the alignment is over already."""
        if not self._over:
            self._failure, self._told, self._over = failure, told, True

    # ---- one thread answers and works, so that neither needs a lock

    def _do(self, job: Callable[[], None] = lambda: None) -> None:
        """Queue a job for the thread, which also answers open asks."""
        with suppress(RuntimeError):  # closed
            self._thread.submit(self._turn, job)

    def _turn(self, job: Callable[[], None]) -> None:
        """Answer open asks and do one job, so that no ask waits for more than one job."""
        try:
            if self._crash is None:
                self._answer_open()
                job()
                self._settle()
                self._answer_open()
        except Exception as error:  # a mistake of ours must end the wait as well
            self._crash = error
        if self._crash is not None:
            self._answer_open()
        with self._changed:
            self._changed.notify_all()

    def _answer_open(self) -> None:
        with self._changed:
            asks = list(self._open.items())
        for member, ask in asks:
            frame, reply = ask
            answer = CRASHED if self._crash else self._answer_frame(member, frame)
            if answer is None:
                continue
            with self._changed:
                if self._open.get(member) is ask:
                    del self._open[member]
            with suppress(Exception):  # a member that cannot be reached asks again
                reply(answer)

    def _blind(self, keys: Sequence[str]) -> None:
        self._points += self._curve.blind(keys) if self._curve else salted_hashes(self._salt, keys)

    def _sort(self) -> None:
        """Sort points and keys by the points, so that the order tells nothing of the keys."""
        order = sorted(range(len(self._points)), key=self._points.__getitem__)
        self._points = [self._points[place] for place in order]
        self._keys = [self._keys[place] for place in order]
        self._ready = True

    def _raise(self, member: str, theirs: MemberSet, points: bytes) -> None:
        if self._curve is None or self._sets.get(member) is not theirs:
            return
        try:
            theirs.compare(self._curve.again(points))
        except MalformedError as error:
            del self._sets[member]
            self._broken[member] = self._refuse(member, error).reason

    def _compare(self) -> None:
        places = {
            member: theirs.matches(self._points if self._curve is None else theirs.mine)
            for member, theirs in self._sets.items()
        }
        common = set(range(len(self._keys))).intersection(*places.values())
        shared = {member: len(places[member]) for member in self.members}
        counts = {member: self._sets[member].begin.count for member in self.members}
        if not common:
            listed = ", ".join(
                f"{member} {count} of which {shared[member]} are here"
                for member, count in counts.items()
            )
            line = (
                f"no record is common to all {len(self.members) + 1} parties: the label holder has "
                f"{len(self._keys)}, {{}}; do the columns of identifiers hold the same kind of key?"
            )
            self._end(DataError(line.format(listed)), line.format("this party {count}"))
            return
        for member, theirs in self._sets.items():
            theirs.mark(places[member][place] for place in common)
        keys = in_order(self._keys[place] for place in common)
        self._found = Alignment(
            keys=keys,
            own=len(self._keys),
            others=counts,
            pairwise=shared,
            parties=len(self.members) + 1,
            method=self._method,
            fingerprint=fingerprint(self._federation, keys).hex(),
        )

    def _answer_frame(self, member: str, frame: bytes) -> bytes | None:
        try:
            answer = self._answer(member, messages.decode_ask(frame))
        except (WireError, RefusedError) as error:
            answer = self._refuse(member, error)
        else:
            self._refusals.pop(member, None)
        return None if answer is None else messages.encode(answer)

    def _refuse(self, member: str, error: Exception) -> messages.Refused:
        reason = one_line(str(error))
        if member in self.members:
            self._refusals[member] = reason
        return messages.Refused(reason)

    def _answer(self, member: str, ask: messages.Ask) -> messages.Answer | None:
        """The answer, or None to hold the ask; WireError or RefusedError if it is refused."""
        if member not in self.members:
            raise UnknownPartyError(f"{member!r} is no member of this federation")
        if isinstance(ask, messages.Begin):
            return self._begin(member, ask)
        theirs = self._sets.get(member)
        if theirs is None or theirs.begin.start != ask.start:
            raise ConflictError(
                self._broken.get(member)
                or "this alignment is not known here, as after a restart; begin again"
            )
        if self._failure is not None:
            return messages.Failed(self._told.format(count=theirs.begin.count))
        match ask:
            case messages.Own(_, piece, points):
                new = theirs.own.take(piece, points)
                if self._curve is None:
                    theirs.compared += new
                elif new:
                    self._do(partial(self._raise, member, theirs, points))
                return messages.Taken()
            case messages.Fetch(_, piece):
                return self._fetch(piece)
            case messages.Raised(_, piece, points):
                theirs.mine += theirs.raised.take(piece, points)
                return messages.Taken()
            case messages.Finish():
                theirs.finish()
                found = self._found
                return None if found is None else messages.Outcome(len(found.keys), theirs.bits)
            case messages.Confirm(_, print_):
                return self._confirm(member, theirs, print_)

    def _fetch(self, piece: int) -> messages.Answer | None:
        if self._curve is None or piece >= pieces(len(self._keys)):
            raise ConflictError(f"piece {piece} of the label holder's points: there is none")
        part = self._points[piece * PIECE : (piece + 1) * PIECE]
        return messages.Piece(b"".join(part)) if self._ready else None

    def _begin(self, member: str, ask: messages.Begin) -> messages.Answer:
        for what, given, ours in (
            ("version", ask.version, messages.VERSION),
            ("federation", ask.federation, self._federation),
            ("method", ask.method, self._method),
        ):
            if given != ours:
                raise ConflictError(
                    f"{what} of the alignment is {given!r} there and {ours!r} at the label holder"
                )
        before = self._sets.get(member)
        if before is None or before.begin != ask:
            if before is not None and before.begin.start == ask.start:
                raise ConflictError("this start was made with another number of keys")
            if self._found is not None or self._failure is not None:
                raise ConflictError(
                    "the outcome was found for one set of each party, and this is another; "
                    "align anew at all parties"
                )
            self._sets[member] = MemberSet(ask, len(self._keys) if self._curve else 0)
            self._broken.pop(member, None)
        return messages.Welcome(len(self._keys), len(self.members) + 1, self._salt)

    def _confirm(self, member: str, theirs: MemberSet, print_: bytes) -> messages.Answer | None:
        if self._found is None:
            raise ConflictError("there is no outcome yet to confirm")
        if print_.hex() == self._found.fingerprint:
            theirs.confirmed = True
            return messages.Agreed(print_) if self._over else None
        if theirs.confirmed:
            raise ConflictError("another fingerprint was confirmed")
        line = (
            f"{member} did not arrive at the same records as the label holder: it does not "
            "have the keys that it sent, or does not name them as the label holder does"
        )
        self._end(RunError(line), "the parties did not arrive at the same records")
        return messages.Failed(self._told)
