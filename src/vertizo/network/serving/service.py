"""What serving a job, predicting and scoring share: members ask, and some fall silent."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from threading import Event, RLock

from vertizo.core.errors import RefusedError, WireError
from vertizo.core.messages import Alarm
from vertizo.core.version import VERSION
from vertizo.network.serving import frames
from vertizo.network.serving.options import ServeOptions
from vertizo.network.serving.terms import check_hello
from vertizo.network.transport.base import Answer, Rest
from vertizo.network.transport.versions import named

AGAIN_SECONDS = 10.0
"""For members to ask, where all was over at the start; they try again within a second."""
TOLD = 10
"""Refusals of one member that people are told of one by one."""


class MemberService(ABC):
    """Answers the members' asks one at a time, and knows when each was last heard.

    A service says what an ask changes (`_take`) and what a member that waits is told (`_offer`).
    The clock is one that nobody sets: a change of the time of day means nothing here.
    """

    def __init__(self, served: ServeOptions, notice: Callable[[str], None]) -> None:
        self.members = tuple(served.members)
        self.run = ""
        """The name of the run folder that is served, or whose model is used, once it is open."""
        self.finished = Event()
        """Whether all is done and every member was told, as far as they are there."""
        self._notice = notice
        self._patience = served.patience
        self._lock = RLock()
        self._pending: dict[int, Answer] = {}
        self._told: set[int] = set()
        self._heard = [time.monotonic()] * len(self.members)
        self._waited_since: dict[int, float] = {}
        self._named: set[int] = set()
        self._met: set[int] = set()
        self._refused = [0] * len(self.members)

    def _meet(self, client: int, hello: frames.Hello, federation: str) -> None:
        """Find that a member can be spoken to; RefusedError if not. Name another version once."""
        member = self.members[client]
        check_hello(hello, federation, member)
        other = hello.version not in ("", VERSION)
        if other and client not in self._met:
            self._met.add(client)
            self._notice(f"{member} runs {named(hello.version)}, this is vertizo {VERSION}")

    @abstractmethod
    def _take(self, client: int, frame: bytes) -> None:
        """Act on a member's ask, and answer it if it need not wait.

        WireError or RefusedError: it was refused, and nothing was changed.
        """

    @abstractmethod
    def _offer(self, client: int) -> None:
        """Answer a member that waits for something to do, if there is something."""

    def _offer_all(self) -> None:
        for client in list(self._pending):
            self._offer(client)

    def ask(self, member: str, frame: bytes, answer: Answer) -> Rest | None:
        """As of a `vertizo.network.transport.base.Service`."""
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
        """Tell a member why not, and people, though not each time for a flood of it."""
        self._refused[client] += 1
        times = self._refused[client]
        if times <= TOLD or times % 1000 == 0:
            often = "" if times <= TOLD else f", {times:,} times"
            self._notice(Alarm(f"{self.members[client]} was refused{often}: {words}"))
        self._answer(client, frames.Refusal(words))

    def gone(self, member: str) -> None:
        """As of a `vertizo.network.transport.base.Service`."""
        with self._lock:
            self._pending.pop(self.members.index(member), None)

    def silences(self) -> dict[str, float]:
        """Seconds since each member did something that is needed, or since the start."""
        now = time.monotonic()
        return {m: now - heard for m, heard in zip(self.members, self._heard, strict=True)}

    def refusals(self) -> dict[str, int]:
        """How many asks of each member were refused."""
        return dict(zip(self.members, self._refused, strict=True))

    def _answer(self, client: int, *parts: frames.Frame | bytes) -> None:
        """Answer a member's open ask, if there is one."""
        take = self._pending.pop(client, None)
        if take is not None:
            take(b"".join(p if isinstance(p, bytes) else frames.encode(p) for p in parts))

    def _tell_end(self, client: int, *, done: bool = True) -> None:
        """A member was told that all is over; ``done`` is whether nothing is left to do here."""
        self._told.add(client)
        if done and self._all_told:
            self.finished.set()

    @property
    def _all_told(self) -> bool:
        return len(self._told) == len(self.members)

    def _hear(self, client: int) -> bool:
        """Note a sign of life; whether the member had been named as silent."""
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
        """Who is silent, and waited for, for longer than is patient; names of those new to it."""
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
