"""Run calls in processes of this machine, for comparisons, searches and studies."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any, Generic, TypeVar

from vertizo.core.errors import RunError, UserError
from vertizo.lab import cards

KILLED = (
    "the process of a run was killed, by lack of memory perhaps; the same command goes on with "
    "what is not finished"
)
CONTEXT = multiprocessing.get_context("spawn")
"""Context that spawns: a forked child would inherit the parent's threads and peak memory."""
Key = TypeVar("Key")


class Pool(Generic[Key]):
    """A pool of running calls, each with a key; made by `processes`."""

    def __init__(
        self, executor: ProcessPoolExecutor, room: int, places: Sequence[int] = ()
    ) -> None:
        self._executor = executor
        self.room = min(room, len(places)) if places else room
        self.going: dict[Future[Any], Key] = {}
        self._free = [*places]
        self._cards: dict[Future[Any], int] = {}

    def start(self, key: Key, function: Callable[..., Any], *arguments: Any) -> None:
        """Begin a call. Ctrl-C reaches its process only through this process (`processes`)."""
        card = self._free.pop(0) if self._free else None
        with _ctrl_c_waits():
            future = self._executor.submit(_make, card, function, *arguments)
        self.going[future] = key
        if card is not None:
            self._cards[future] = card

    def make(
        self, calls: Iterable[tuple[Key, Callable[..., Any], tuple[Any, ...]]]
    ) -> Iterator[tuple[Key, Future[Any]] | None]:
        """Yield (key, future) of each call as it ends, and None about twice a second.

        A call is taken from the iterable only when a process is free: an executor would begin
        queued calls even when it is told to stop.
        """
        waiting = iter(calls)
        while True:
            for key, function, arguments in islice(waiting, self.room - len(self.going)):
                self.start(key, function, *arguments)
            if not self.going:
                return
            done, _ = wait(self.going, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                if (card := self._cards.pop(future, None)) is not None:
                    self._free.append(card)
                yield self.going.pop(future), future
            yield None


class Inline(Pool[Key]):
    """A pool that makes each call in this process, as it is started."""

    def __init__(self) -> None:
        self.going, self.room, self._cards = {}, 1, {}

    def start(self, key: Key, function: Callable[..., Any], *arguments: Any) -> None:
        """Make the call now; a `UserError` is stored in its future."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except UserError as error:
            future.set_exception(error)
        self.going[future] = key


@contextmanager
def processes(
    jobs: int, *, reused: bool = False, places: Sequence[int] = ()
) -> Iterator[Pool[Any]]:
    """Yield a pool of processes that end with this process, for ``jobs`` calls at a time.

    Each call has one of the ``places`` on graphics cards, and waits for a free one
    (`vertizo.lab.cards`); none are needed where there are none.

    An exception inside interrupts the running calls once, on which a run leaves a checkpoint. A
    second Ctrl-C kills them. A `UserError` waits for them to finish. RunError if a process was
    killed.

    If ``reused``, a process makes one call after another, which saves the seconds that starting one
    takes; else each call has its own process, and so its own peak memory.
    """
    reader, writer = CONTEXT.Pipe(duplex=False)
    with (
        reader,
        writer,
        ProcessPoolExecutor(
            jobs,
            mp_context=CONTEXT,
            initializer=_begin,
            initargs=(reader,),
            max_tasks_per_child=None if reused else 1,
        ) as executor,
    ):
        try:
            yield Pool(executor, jobs, places)
        except BrokenProcessPool:
            raise RunError(KILLED) from None
        except UserError:  # of one call: those that are going are finished first
            raise
        except BaseException:
            writer.close()
            try:
                executor.shutdown(wait=True, cancel_futures=True)
            except KeyboardInterrupt:
                for child in multiprocessing.active_children():
                    child.kill()
                raise
            raise


class _Call:
    """The call of this child process, which its parent may interrupt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going = self._stopped = False

    def make(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            self._going = True
        try:
            return function(*arguments)
        finally:
            with self._lock:
                self._going = False

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._going:
                _thread.interrupt_main()


_call = _Call()


def _make(card: int | None, function: Callable[..., Any], *arguments: Any) -> Any:
    with cards.taken(card):
        return _call.make(function, *arguments)


def _begin(stop: Connection) -> None:
    """Watch the parent in a thread: interrupt the call when it closes its pipe.

    When the parent has ended, this process ends at once: nobody would collect its work.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait_for([stop])
        _call.stop()
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, name="heed-parent", daemon=True).start()


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Hold Ctrl-C back in this process, and in the children and threads that begin inside.

    Children inherit the signal mask, for good. This process replaces its handler as well: another
    of its threads, which has no mask, may take the signal, and a child whose start is interrupted
    finds half of what it was to read.
    """
    held_back: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    # only the main thread may set handlers, and only it would be interrupted
    replaced = threading.current_thread() is threading.main_thread() and callable(before)
    if replaced:
        signal.signal(signal.SIGINT, lambda number, _: held_back.append(number))
    masks = hasattr(signal, "pthread_sigmask")  # Windows has none
    if masks:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if replaced:
            signal.signal(signal.SIGINT, before)
        if held_back:
            signal.raise_signal(signal.SIGINT)
