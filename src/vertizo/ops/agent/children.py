"""The processes of an agent's jobs: starts them, ends them, finds them again after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vertizo.config.environment import PREFIX
from vertizo.core import system
from vertizo.core.errors import RunError
from vertizo.core.text.messages import one_line
from vertizo.network.serving.store import RECORD
from vertizo.ops.agent.launch import TAKEN
from vertizo.ops.scoring import LOOKED_UP
from vertizo.run.results import checkpoint

PROCESS = "process"
"""The file that a job's process holds locked."""
END_SECONDS = 20.0
"""Seconds until a process that was asked to end is killed."""
SCORED = "queries.jsonl"
"""File in which a process that scores logs its answers."""
LONGEST_LINE, LONGEST_LOG = 4096, 1 << 18
"""Bytes at a log's end that are searched for its last line, and for `LOOKED_UP`."""


@dataclass
class Child:
    """A job's process."""

    process: subprocess.Popen[bytes]
    folder: Path
    attempt: int
    asked: float | None = None
    """When it was asked to end."""


@dataclass(frozen=True)
class Ended:
    """The end of a job's process."""

    job: str
    attempt: int
    code: int
    line: str
    """The last line of its log, if it failed."""
    asked: bool
    """Whether the agent had asked it to end."""

    @property
    def failed(self) -> bool:
        """Whether it failed in a way that starting it again would not mend."""
        return self.code > 0 and self.code not in (TAKEN, 130)


class Children:
    """The running processes that this agent has started; used by one thread."""

    def __init__(self) -> None:
        self._children: dict[str, Child] = {}
        self._strays: dict[Path, float] = {}
        """Folder → when an orphan process there was first asked to end."""

    def attempts(self) -> dict[str, int]:
        """Job → the attempt that its process belongs to."""
        return {job: child.attempt for job, child in self._children.items()}

    def start(self, job: str, attempt: int, folder: Path, words: Sequence[str]) -> None:
        """Start a job's process; RunError if the system cannot."""
        launch = "vertizo.ops.agent.launch"
        command = [sys.executable, "-P", "-m", launch, str(folder / PROCESS)]
        with (
            checkpoint.telling(f"the process of {job} cannot be started"),
            (folder / "output").open("wb") as output,
            (folder / "log").open("ab") as log,
        ):
            process = subprocess.Popen(
                [*command, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                cwd=folder,
                env=environment(os.environ),
                start_new_session=True,  # Ctrl-C in a terminal is for the agent, which ends it
            )
        self._children[job] = Child(process, folder, attempt)

    def stop(self, job: str) -> None:
        """Ask a process to end; kill it if it was asked `END_SECONDS` ago."""
        child, now = self._children[job], time.monotonic()
        with suppress(ProcessLookupError):
            if child.asked is None:
                child.asked = now
                child.process.terminate()
            elif now - child.asked > END_SECONDS:
                child.process.kill()

    def end_stray(self, folder: Path) -> None:
        """Stop an orphan that holds a job folder; kill it after `END_SECONDS`.

        Its agent was killed when it had only just started it.
        """
        since = self._strays.setdefault(folder, time.monotonic())
        late = time.monotonic() - since > END_SECONDS
        _signal(folder, signal.SIGKILL if late else signal.SIGTERM)
        if late:
            del self._strays[folder]

    def ended(self) -> list[Ended]:
        """The processes that have ended since the last call, which are forgotten."""
        found = []
        for job, child in list(self._children.items()):
            code = child.process.poll()
            if code is not None:
                del self._children[job]
                line = last_line(child.folder / "log") if code > 0 else ""
                found.append(Ended(job, child.attempt, code, line, child.asked is not None))
        return found

    def stop_all(self) -> None:
        """End all processes, and wait until they have ended."""
        while self._children:
            for job in list(self._children):
                self.stop(job)
            time.sleep(0.05)
            self.ended()


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job's process: the agent's, without settings of vertizo."""
    apart = (PREFIX, "VERTIZO_LOG_FORMAT")
    return {name: value for name, value in own.items() if not name.startswith(apart)}


def last_line(log: Path) -> str:
    """The last line of a log, without the program's name; empty if there is none."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LONGEST_LINE))
        lines = file.read().decode(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("vertizo: ")] or lines
        return one_line(said[-1].removeprefix("vertizo: ")) if said else ""
    return ""


def left_by(folder: Path) -> str:
    """A trace of what a job's process has done so far, which changes if it makes progress.

    It has the first records of journals, whose checksums depend on the segment, and which a process
    that only starts does not write; the size of the log of scores; and where a member that scores
    said that it was of use. Alignments and predictions leave nothing until they end.
    """
    found = []
    for path in sorted((folder / "run" / "checkpoints").glob("journal-*.log")):
        with suppress(OSError), path.open("rb") as file:
            if first := file.read(RECORD.size).strip(b"\0"):
                found.append(f"{path.name} {first.hex()}")
    with suppress(OSError):
        found.append(f"{(folder / SCORED).stat().st_size} bytes")
    with suppress(OSError), (folder / "log").open("rb") as log:
        begin = max(0, log.seek(0, os.SEEK_END) - LONGEST_LOG)
        log.seek(begin)
        if (place := log.read().rfind(LOOKED_UP.encode())) >= 0:
            found.append(f"of use at {begin + place}")
    return "; ".join(found)


def end_left_over(folders: Iterable[Path]) -> None:
    """End the processes that a killed agent left in these folders.

    Raises:
        RunError: one does not end.
    """
    left = [folder for folder in folders if holder(folder)]
    for folder in left:
        _signal(folder, signal.SIGTERM)
    since = time.monotonic()
    while left := [folder for folder in left if holder(folder)]:
        if time.monotonic() - since > 2 * END_SECONDS:
            raise RunError(f"{left[0]} is in use by a process that does not end; end it by hand")
        if time.monotonic() - since > END_SECONDS:
            for folder in left:
                _signal(folder, signal.SIGKILL)
        time.sleep(0.1)


def holder(folder: Path) -> int:
    """The ID of the process that holds a job's folder; 0 for none, -1 if unknown."""
    try:
        handle = os.open(folder / PROCESS, os.O_RDWR | system.CLOSED_ON_EXEC)
    except FileNotFoundError:
        return 0
    try:
        system.lock(handle, wait=False)
    except BlockingIOError:
        text = os.read(handle, 32)
        return int(text) if text.isdigit() else -1  # it has only just locked it
    finally:
        os.close(handle)
    return 0


def _signal(folder: Path, number: signal.Signals) -> None:
    """Signal the process that holds the folder, by a pidfd if the system has them.

    A process ID may belong to another process by the time it is used; a pidfd does not.
    """
    process = holder(folder)
    if process <= 0:
        return
    with suppress(ProcessLookupError):
        if not hasattr(os, "pidfd_open"):
            os.kill(process, number)
            return
        handle = os.pidfd_open(process)
        try:
            if holder(folder) == process:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
