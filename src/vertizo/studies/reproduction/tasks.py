"""Work that is no training run of a comparison: each piece in a process, its figures kept.

What is finished is a JSON file of its own, so that the same command goes on after Ctrl-C.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertizo.core.errors import Interrupted, RunError
from vertizo.run import checkpoint
from vertizo.studies.comparison import Standing
from vertizo.studies.processes import processes

Figures = Mapping[str, Any]


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
    tasks: Sequence[Task],
    folder: Path,
    jobs: int,
    report: Callable[[Standing], None] | None = None,
) -> dict[str, Figures]:
    """Do what is not done yet, each in a fresh process, and keep figures in a folder by name.

    Raises:
        UserError: a task failed; what is finished is kept.
        Interrupted: stopped; what is finished is kept.
    """
    left = [task for task in tasks if not task.file(folder).is_file()]
    try:
        if left:
            _do(left, len(tasks), folder, jobs, report)
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None
    return {task.name: json.loads(task.file(folder).read_text("utf-8")) for task in tasks}


def _do(
    left: Sequence[Task],
    total: int,
    folder: Path,
    jobs: int,
    report: Callable[[Standing], None] | None,
) -> None:
    finished = total - len(left)
    with processes(jobs) as pool:
        for ended in pool.make((task.file(folder), task.function, task.arguments) for task in left):
            if ended is not None:
                file, future = ended
                figures = future.result()
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    checkpoint.write_atomically(file, json.dumps(figures).encode())
                except OSError as error:
                    raise RunError(f"{file} cannot be written: {error.strerror}") from None
                finished += 1
            elif report is not None:
                report(Standing(finished, total, finished / total))
