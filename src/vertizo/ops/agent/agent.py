"""The base of both agents: a loop that keeps jobs' processes in step with their states.

The loop reads the store and acts on what it finds; nothing that it needs is only in memory. So an
agent may be killed at any moment, and goes on when it is started again.

What the end of a process means (`_note_end`):

==================  =============================================================================
end                 what follows
==================  =============================================================================
code 0              its outcome is ``finished``
failed              its outcome is ``failed``, with its last line
another has it      the other process is ended; of a kind `TOGETHER`, the outcome is ``broken``
the agent asked it  nothing
killed otherwise    it is started again after a pause, and fails after `MOST_DEATHS` without
                    progress; of a kind `TOGETHER`, the outcome is ``broken``: all begin anew
==================  =============================================================================
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

from vertizo.core.errors import ConfigError, RunError, UserError
from vertizo.ops.agent.children import PROCESS, Children, Ended, end_left_over, left_by
from vertizo.ops.agent.jobs.store import Job, Store
from vertizo.ops.agent.launch import TAKEN

TICK = 0.2
"""Seconds between two looks at the jobs."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0
"""Seconds until a process that died is started again: doubled each time, up to the longest."""
MOST_DEATHS = 20
"""Deaths of a process without progress in between, after which its job has failed."""
STRAY_PAUSE = 2.0
"""Seconds until a process is started whose folder a former agent's process held."""
KILLED = ", as when memory runs out"
TOGETHER = ("align", "predict")
"""Kinds of job without checkpoints: when one party's process dies, all begin anew."""
LASTING = ("score",)
"""Kinds of job without an end: they take no other job's place, and wait for members."""


class Agent(ABC):
    """Drives the jobs of one party; see `LabelHolder` and `Member`.

    ``notice`` takes a line for people.
    """

    def __init__(self, store: Store, notice: Callable[[str], None]) -> None:
        self.store = store
        self.notice = notice
        self._children = Children()
        self._not_before: dict[str, float] = {}
        """Job → when its next process may start."""

    def take_up(self) -> None:
        """End processes that a killed agent left behind; RunError if one does not end."""
        jobs = [job for job in self.store.open_jobs() if job.state == "running"]
        end_left_over(self.store.folder_of(job.name) for job in self.store.open_jobs())
        for job in jobs:
            begun = (self.store.folder_of(job.name) / PROCESS).exists()
            if begun and job.offer.kind in TOGETHER and not job.outcome:
                self.store.conclude(job.name, job.attempt, "broken", "the agent was started again")
            self.notice(f"{job.name} is taken up again")

    def run(self, stopped: Event) -> None:
        """Look at all jobs again and again until it is stopped; then end all processes."""
        try:
            while not stopped.wait(TICK):
                try:
                    self.tick()
                except UserError as error:  # as of a full disk: a service waits for its mending
                    self.notice(f"{error}; trying again in {LONGEST_PAUSE:g} s")
                    stopped.wait(LONGEST_PAUSE)
        finally:
            self._children.stop_all()

    def tick(self) -> None:
        """Note ended processes, change states, and start and stop processes accordingly."""
        for ended in self._children.ended():
            self._note_end(ended)
        self.consider(self.store.open_jobs())
        wanted = {job.name: job for job in self.store.open_jobs() if _is_wanted(job)}
        attempts = self._children.attempts()
        for name, attempt in attempts.items():
            if name not in wanted or wanted[name].attempt != attempt:
                self._children.stop(name)
        for name, job in wanted.items():
            if name not in attempts and time.monotonic() >= self._not_before.get(name, 0.0):
                self._start(job)

    @abstractmethod
    def consider(self, jobs: Sequence[Job]) -> None:
        """Change the states of jobs that are due for it."""

    @abstractmethod
    def words_of(self, job: Job, folder: Path) -> list[str]:
        """The command of a job's process; ConfigError if it cannot be had."""

    def _start(self, job: Job) -> None:
        folder = self.store.folder_of(job.name)
        try:
            self._children.start(job.name, job.attempt, folder, self.words_of(job, folder))
        except ConfigError as error:
            self._fail(job, str(error))
        except RunError as error:  # of the machine, such as a full disk: other jobs go on
            self._not_before[job.name] = time.monotonic() + LONGEST_PAUSE
            self.notice(f"{job.name}: {error}; trying again in {LONGEST_PAUSE:g} s")

    def _note_end(self, ended: Ended) -> None:
        job = self.store.job(ended.job)
        if job is None or not _is_wanted(job) or job.attempt != ended.attempt:
            return
        if ended.code == 0:
            self._not_before.pop(job.name, None)
            self.store.conclude(job.name, job.attempt, "finished")
        elif ended.failed:
            self._fail(job, ended.line or f"its process ended with exit code {ended.code}")
        elif ended.code == TAKEN:  # by one that was not there yet when left-over ones were ended
            self._end_stray(job)
            if job.offer.kind in TOGETHER:  # others may have met it
                self.store.conclude(job.name, job.attempt, "broken", "a process was left over")
        elif not ended.asked:
            self._note_death(job, ended)

    def _note_death(self, job: Job, ended: Ended) -> None:
        """Start a process again in a while that was killed or stopped by somebody else.

        Its job fails after `MOST_DEATHS` deaths without progress, such as for want of memory.
        """
        deaths = self.store.die(job.name, left_by(self.store.folder_of(job.name)))
        how = f"by signal {-ended.code}" if ended.code < 0 else f"with exit code {ended.code}"
        if deaths >= MOST_DEATHS:
            last = f"its process ended {deaths} times without getting on, at last {how}"
            self._fail(job, f"{last}{KILLED if ended.code == -signal.SIGKILL else ''}")
            return
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (deaths - 1))
        self._not_before[job.name] = time.monotonic() + pause
        words = f"its process ended {how}; it is started again in {pause:g} s"
        self.store.note(job.name, words)
        self.notice(f"{job.name}: {words}")
        if job.offer.kind in TOGETHER:
            self.store.conclude(job.name, job.attempt, "broken", f"its process ended {how}")

    def _end_stray(self, job: Job) -> None:
        """Ask a former agent's process that holds the job's folder to end, every `STRAY_PAUSE`."""
        now = time.monotonic()
        if now >= self._not_before.get(job.name, 0.0):
            self._children.end_stray(self.store.folder_of(job.name))
            self._not_before[job.name] = now + STRAY_PAUSE

    def _fail(self, job: Job, line: str) -> None:
        self.store.conclude(job.name, job.attempt, "failed", line)
        self.notice(f"{job.name} failed: {line}")


def _is_wanted(job: Job) -> bool:
    """Whether a process of this party should work on a job."""
    return job.state == "running" and not job.outcome
