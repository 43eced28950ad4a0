"""Work that is no training run of a comparison: each piece in a process, its figures kept.

What is finished is a JSON file of its own, so that the same command goes on after Ctrl-C.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertizo.core.errors import Interrupted, RunError
from vertizo.run import checkpoint
from vertizo.studies.comparison import Standing
from vertizo.studies.engines import end_with_parent

Figures = Mapping[str, Any]
Report = Callable[[Standing], None]


@dataclass(frozen=True)
class Task:
    """A call that a process can make, and what its figures are called."""

    name: str
    function: Callable[..., Figures]
    """Of a module, so that another process finds it."""
    arguments: tuple[Any, ...]
    """Plain values."""

    def file(self, folder: Path) -> Path:
        """Where its figures are kept; another one for other arguments."""
        said = json.dumps([self.function.__name__, *self.arguments], sort_keys=True, default=str)
        digest = hashlib.sha256(said.encode()).hexdigest()[:12]
        return folder / "tasks" / f"{self.name}-{digest}.json"


def results(
    tasks: Sequence[Task], folder: Path, jobs: int, report: Report | None = None
) -> dict[str, Figures]:
    """Do what is not done yet: name → figures.

    Args:
        tasks: of different names.
        folder: where figures are kept.
        jobs: at a time, each in a fresh process.
        report: called about twice a second.

    Raises:
        UserError: a task failed; what is finished is kept.
        Interrupted: stopped; what is finished is kept.
    """
    left = [task for task in tasks if not task.file(folder).is_file()]
    if left:
        try:
            _do(left, len(tasks), folder, jobs, report)
        except KeyboardInterrupt:
            raise Interrupted("stopped") from None
    return {task.name: json.loads(task.file(folder).read_text("utf-8")) for task in tasks}


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    end_with_parent()


def _do(left: Sequence[Task], total: int, folder: Path, jobs: int, report: Report | None) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs,
        mp_context=context,
        initializer=_begin,
        max_tasks_per_child=1,
    ) as pool:
        futures = {pool.submit(task.function, *task.arguments): task for task in left}
        going = set(futures)
        try:
            while going:
                done, going = wait(going, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    _keep(futures[future].file(folder), future.result())
                if report is not None:
                    finished = total - len(going)
                    report(Standing(finished, total, finished / total))
        except BrokenProcessPool:
            raise RunError(
                "a process was killed, by lack of memory perhaps; the same command goes on with "
                "what is not finished"
            ) from None
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _keep(file: Path, figures: Figures) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomically(file, json.dumps(figures).encode())
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror}") from None
