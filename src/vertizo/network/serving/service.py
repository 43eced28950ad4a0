"""The base of services that members ask: serving a job, predicting and scoring.

A member is in one of these states, by its open ask and by when it was last heard:

=========  =========  ============================================================================
from       to         when
=========  =========  ============================================================================
away       waiting    its ask arrives and is not answered at once (`ask`)
waiting    away       there is something for it to do (`_offer`), its ask is refused (`_refuse`),
                      or its connection is lost (`gone`)
any        silent     it is waited for and was not heard for `patience` seconds (`_silent`); it is
                      named to people once
silent     away       it is heard again (`_hear`)
any        told       it was told that all is over (`_tell_end`); once all were, the service is
                      `finished`
=========  =========  ============================================================================
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from threading import Event, RLock

from vertizo.core.errors import RefusedError, WireError
from vertizo.core.text.messages import Alarm
from vertizo.core.version import VERSION
from vertizo.network.serving import frames
from vertizo.network.serving.options import ServeOptions
from vertizo.network.transport.base import Answer, Rest
from vertizo.network.transport.versions import PROTOCOL, named, unlike

AGAIN_SECONDS = 10.0
"""Seconds for members to ask if the job is over at the start; they retry within a second."""
TOLD = 10
"""Refusals of one member that people are told of; later ones in thousands."""


class MemberService(ABC):
    """Answers the members' asks one at a time, and knows when each was last heard.

    A service says what an ask changes (`_take`) and what a member that waits is told (`_offer`).
    Times are of the monotonic clock, so that setting the time of day changes nothing.
    """

    def __init__(self, served: ServeOptions, notice: Callable[[str], None]) -> None:
        self.members = tuple(served.members)
        self.run = ""
        """The name of the run folder that is served, or whose model is used, once it is open."""
        self.finished = Event()
        """Set once all is done and every member that is still there was told."""
        self._notice = notice
        self._federation, self._patience = served.name, served.patience
        self._lock = RLock()
        self._pending: dict[int, Answer] = {}
        self._told: set[int] = set()
        self._heard = [time.monotonic()] * len(self.members)
        self._waited_since: dict[int, float] = {}
        self._named: set[int] = set()
        self._met: set[int] = set()
        self._refused = [0] * len(self.members)

    def _meet(self, client: int, hello: frames.Hello) -> None:
        """Check a member's hello; RefusedError if it does not fit. Note another version once."""
        member, ours = self.members[client], self._federation
        if hello.protocol != PROTOCOL:
            raise RefusedError(unlike(member, hello.protocol, hello.version))
        if hello.federation != ours:
            raise RefusedError(
                f"federation.name is {hello.federation!r}; the label holder's is {ours!r}"
            )
        other = hello.version not in ("", VERSION)
        if other and client not in self._met:
            self._met.add(client)
            self._notice(f"{member} runs {named(hello.version)}, this is vertizo {VERSION}")

    @abstractmethod
    def _take(self, client: int, frame: bytes) -> None:
        """Act on a member's ask, and answer it if it need not wait.

        WireError or RefusedError: the ask is refused, and nothing was changed.
        """

    @abstractmethod
    def _offer(self, client: int) -> None:
        """Answer a member that waits for something to do, if there is something."""

    def _offer_all(self) -> None:
        for client in list(self._pending):
            self._offer(client)

    def ask(self, member: str, frame: bytes, answer: Answer) -> Rest | None:
        """Take in an ask, as a `vertizo.network.transport.base.Service` does."""
        with self._lock:
            client = self.members.index(member)
            self._hear(client)
            self._pending[client] = answer
            try:
                self._take(client, frame)
            except (WireError, RefusedError) as error:
                self._refuse(client, str(error))
            else:
                self._offer_all()
        return None

    def _refuse(self, client: int, words: str) -> None:
        """Refuse a member's ask, and tell people so, though not each time in a flood of them."""
        self._refused[client] += 1
        times = self._refused[client]
        if times <= TOLD or times % 1000 == 0:
            often = "" if times <= TOLD else f", {times:,} times"
            self._notice(Alarm(f"{self.members[client]} was refused{often}: {words}"))
        self._answer(client, frames.Refusal(words))

    def gone(self, member: str) -> None:
        """Forget the open ask of a member whose connection was lost or closed."""
        with self._lock:
            self._pending.pop(self.members.index(member), None)

    def silences(self) -> dict[str, float]:
        """Seconds since each member did something that is needed, or since the start."""
        now = time.monotonic()
        return {m: now - heard for m, heard in zip(self.members, self._heard, strict=True)}

    def refusals(self) -> dict[str, int]:
        """Number of refused asks of each member."""
        return dict(zip(self.members, self._refused, strict=True))

    def _answer(self, client: int, *parts: frames.Frame | bytes) -> None:
        """Answer a member's open ask, if there is one."""
        take = self._pending.pop(client, None)
        if take is not None:
            take(b"".join(p if isinstance(p, bytes) else frames.encode(p) for p in parts))

    def _tell_end(self, client: int, *, done: bool = True) -> None:
        """Note that a member was told the end; ``done``: nothing else is left to do here."""
        self._told.add(client)
        if done and self._all_told:
            self.finished.set()

    @property
    def _all_told(self) -> bool:
        return len(self._told) == len(self.members)

    def _hear(self, client: int) -> bool:
        """Note a sign of life of a member; return whether it had been named as silent."""
        self._heard[client] = time.monotonic()
        self._waited_since.pop(client, None)
        named = client in self._named
        self._named.discard(client)
        return named

    def _was_over(self) -> None:
        """Say that the job is finished, and wait shortly for members that missed its end."""
        self._patience = min(self._patience, AGAIN_SECONDS)
        self._named.update(range(len(self.members)))  # nobody is waited for by name
        which = f"members that missed its end have {self._patience:g} s to ask"
        self._notice(f"the job is finished; {which}")

    def _is_long_silent(self, client: int) -> bool:
        return time.monotonic() - self._heard[client] > self._patience

    def _silent(self, waited_for: Iterable[int]) -> tuple[set[int], str]:
        """Members waited for and silent for longer than `patience`; names of the new ones."""
        now = time.monotonic()
        self._waited_since = {c: self._waited_since.get(c, now) for c in waited_for}
        silent = {
            client
            for client, since in self._waited_since.items()
            if self._is_long_silent(client) and now - since > self._patience
        }
        new = sorted(silent - self._named)
        self._named |= silent
        return silent, ", ".join(self.members[client] for client in new)
