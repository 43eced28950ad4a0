"""What scripts that make a paper's figure share: their options, and where figures go."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from vertizo.core import system
from vertizo.core.errors import Interrupted, UserError
from vertizo.lab.commands.studies import bar, conclude
from vertizo.lab.reproduction.outcome import Outcome, Picture
from vertizo.lab.reproduction.runs import Task, results
from vertizo.lab.reproduction.study import Study

Tree = dict[str, Any]
Do = Callable[[Mapping[Any, Task]], tuple[dict[Any, Mapping[str, Any]], dict[str, Any]]]
"""Does what is not done yet: figures of tasks by their keys, and what made them."""


def make(
    name: str,
    script: str,
    form: Callable[[bool], Study],
    run: Callable[[bool, int, Do], Outcome],
    draw: Callable[[Sequence[Picture], Path], None],
    *,
    apart: bool = False,
) -> None:
    """Make a study as the command line says; what is wrong is one line and exit code 2.

    Args:
        name: of its files.
        script: the file of the script that makes it.
        form: its words, of the full or of the quick form.
        run: what it finds, given whether it is quick, its seeds, and what does its tasks.
        draw: its pictures into one file.
        apart: whether each task has a process of its own, alone, as memory is measured.
    """
    here = Path(script)
    parser = argparse.ArgumentParser(description=form(False).title)
    parser.add_argument("--quick", action="store_true", help="the small form, in minutes")
    parser.add_argument("--seeds", type=int, metavar="N", help="in place of the study's")
    parser.add_argument("--out", type=Path, default=here.with_name("results"), metavar="DIR")
    if not apart:
        parser.add_argument("--jobs", type=int, metavar="N", help="at a time; one per core")
    asked = parser.parse_args()
    study, jobs = form(asked.quick), None if apart else asked.jobs
    seeds = asked.seeds or study.seeds
    folder = Path("runs") / (f"{name}-quick" if asked.quick else name)
    command = ["python", f"experiments/{here.name}", *(["--quick"] if asked.quick else [])]
    for option, value in (("--seeds", asked.seeds), ("--jobs", jobs)):
        command += [option, str(value)] if value else []
    at_once = 1 if apart else jobs or system.cores()
    try:
        with bar(name, "tasks", Console(stderr=True)) as show:
            do = partial(results, folder=folder, jobs=at_once, report=show, reused=not apart)
            found = run(asked.quick, seeds, do)
        conclude(
            study,
            found,
            asked.out,
            name=name,
            command=shlex.join(command),
            quick=asked.quick,
            seeds=seeds,
            draw=draw,
        )
    except UserError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except Interrupted:
        parser.exit(130, "stopped; the same command goes on with what is not finished\n")
