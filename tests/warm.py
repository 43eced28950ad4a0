"""Processes of the command line, and of studies, that need not import PyTorch first.

Importing it and scikit-learn takes some six seconds of a core, which a test that kills thirty
processes pays thirty times. These are forked from one process that has imported everything and done
nothing. They otherwise begin as ``python -m vertizo`` does; tests of the very start use that.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen, TimeoutExpired
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(  # the one list of all tests: a process has one such server
    [
        "torch",
        "sklearn.linear_model",
        "sklearn.metrics",
        "vertizo.cli.main",
        "vertizo.network.transport.grpc",
        "vertizo.network.serving.joining",
        "vertizo.network.serving.predicting",
        "vertizo.network.serving.serving",
        "vertizo.ops.scoring.scorer",
        "vertizo.run.loop.training",
    ]
)


class Forked(ForkServerProcess):
    """With the environment that the test has when it begins, and not its first test's."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class Forks(ForkServerContext):
    """In place of the context of `vertizo.lab.processes`."""

    Process = Forked


class Process:
    """As much of `subprocess.Popen` as tests need; its output is added to a file."""

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        place: Path | None = None,
    ) -> None:
        log.touch()
        given = list(words), log, dict(environment or os.environ), place or Path.cwd()
        self._process = CONTEXT.Process(target=_begin, args=given)
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float) -> int:
        """Its exit code; TimeoutExpired where it does not end."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise TimeoutExpired("vertizo", seconds)
        return self._process.exitcode

    def kill(self) -> None:
        if self._process.exitcode is None:
            self._process.kill()

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None and self.pid is not None:
            os.kill(self.pid, number)


def cold(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Popen[bytes]:
    """A process of its own from the first instruction on."""
    command = [sys.executable, "-m", "vertizo", *words]
    with log.open("ab") as file:
        return Popen(command, stdin=DEVNULL, stdout=file, stderr=STDOUT, env=dict(environment))


def _begin(words: list[str], log: Path, environment: dict[str, str], place: Path) -> None:
    """Become ``python -m vertizo WORDS`` in a place, its output at the end of a file."""
    # What all are forked from may have been started by a pool of `vertizo.lab.processes`, whose
    # children never see Ctrl-C.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(said, stream)
    for folder in environment.get("PYTHONPATH", "").split(os.pathsep):
        if (first := Path(folder) / "sitecustomize.py").is_file():
            exec(first.read_text(), {})  # as Python does
    sys.argv = ["vertizo", *words]
    # Open files of the first process are none of this one's.
    sys.stdin = Path(os.devnull).open()  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    runpy.run_module("vertizo", run_name="__main__")
