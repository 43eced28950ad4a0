"""One thread that answers asks, and works where there are none.

So whatever answers needs no locks, long work does not keep a member waiting for more than a piece
of it, and asks that cannot be answered yet are held until they can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread

from vertizo.network.transport import Answer

Job = Callable[[], None]


class Desk:
    """Takes asks from any thread and has them answered in its own.

    Args:
        answer: the answer to a member's ask, or None where there is none yet.
        settle: called after each ask or job, before the asks that are held are looked at again.
        crashed: the answer to all once ``answer``, ``settle`` or a job raised something.
    """

    def __init__(
        self, answer: Callable[[str, bytes], bytes | None], settle: Job, crashed: bytes
    ) -> None:
        self._answer = answer
        self._settle = settle
        self._crashed = crashed
        self._changed = Condition()  # guards what is below
        self._arrived: dict[str, tuple[bytes, Answer]] = {}
        self._held: dict[str, tuple[bytes, Answer]] = {}
        self._jobs: deque[Job] = deque()
        self._here: set[str] = set()
        self._closed = False
        self._crash: Exception | None = None
        self._thread = Thread(target=self._work, name="alignment", daemon=True)

    def open(self) -> None:
        """Begin."""
        self._thread.start()

    def do(self, job: Job) -> None:
        """Have some work done, after what was given before."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        """As of a `Service`."""
        with self._changed:
            self._here.add(member)
            self._held.pop(member, None)
            self._arrived[member] = (frame, answer)
            self._changed.notify_all()
            crashed = self._crash is not None
        if crashed:
            answer(self._crashed)

    def gone(self, member: str) -> None:
        """As of a `Service`."""
        with self._changed:
            self._here.discard(member)
            self._held.pop(member, None)
            self._arrived.pop(member, None)
            self._changed.notify_all()

    def wait_for(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Whether that was reached in time; an error in the thread is raised here."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._crash or reached(), seconds)
            if self._crash is not None:
                raise self._crash
            return bool(found)

    def wait_until_left(self, seconds: float) -> None:
        """Until no member is connected, but no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: not self._here, seconds)

    def close(self) -> None:
        """End the thread; nothing is answered any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            while self._step():
                pass
        except Exception as error:  # a mistake of ours must end the wait as well
            with self._changed:
                self._crash = error
                left = {**self._held, **self._arrived}
                self._changed.notify_all()
            for _, reply in left.values():
                with suppress(Exception):
                    reply(self._crashed)

    def _step(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._arrived or self._jobs)
            if self._closed:
                return False
            member = next(iter(self._arrived), None)
            job = self._jobs.popleft() if member is None else None
            asked = {} if member is None else {member: self._arrived.pop(member)}
        if job is not None:
            job()
        self._consider(asked)
        self._settle()
        with self._changed:
            held, self._held = self._held, {}
            self._changed.notify_all()
        self._consider(held)
        return True

    def _consider(self, asks: dict[str, tuple[bytes, Answer]]) -> None:
        for member, (frame, reply) in asks.items():
            answer = self._answer(member, frame)
            if answer is not None:
                with suppress(Exception):  # a member that cannot be reached asks again
                    reply(answer)
                continue
            with self._changed:
                if member in self._here and member not in self._arrived:
                    self._held[member] = (frame, reply)
