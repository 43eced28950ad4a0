"""Processes that need not import PyTorch: forked from one that has it, and else as any other.

A process of a party takes seconds to start, nearly all of it for imports. Where hundreds are killed
and started again (`kills`), `Preloaded` lends a stand-in for Python: it asks a process that has
imported everything to fork, hands on its files and its signals, and ends as the fork does. The fork
runs the same modules with the same words, in a session of its own, and is nobody's thread.

Run: ``python benchmarks/preloaded.py SOCKET`` is that process.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Self

MODULES = (
    *("torch", "scipy.special", "dp_accounting", "fastapi", "uvicorn", "pandas", "polars"),
    *(f"vertizo.cli.{name}" for name in ("align", "parties", "predict")),
    *(f"vertizo.ops.commands.{name}" for name in ("agent", "score")),
    *(f"vertizo.network.serving.{name}" for name in ("serving", "joining", "predicting")),
    "vertizo.ops.figures",
    *(f"vertizo.ops.agent.{name}" for name in ("label_holder", "member", "preparing")),
    *(f"vertizo.ops.scoring.{name}" for name in ("scorer", "service", "http", "member")),
    *("vertizo.network.alignment.service", "vertizo.network.alignment.member"),
)
"""None starts a thread when it is imported, nor gRPC."""
STAND_IN = """#!{python} -SEs
import json, os, signal, socket, sys

signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
way = socket.socket(socket.AF_UNIX)
way.connect({place!r})
ask = {{"words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}}
socket.send_fds(way, [json.dumps(ask).encode() + b"\\n"], [0, 1, 2])
lines = way.makefile()
number = int(lines.readline())

def hand_on(which, _):
    try:
        os.kill(number, which)
    except ProcessLookupError:
        pass

signal.signal(signal.SIGTERM, hand_on)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGTERM}})
code = int(lines.readline() or -signal.SIGKILL)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code != -signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Spawned:
    """A fork, as `subprocess.Popen` has it."""

    def __init__(self, way: socket.socket) -> None:
        self._way, self._lines = way, way.makefile()
        self.pid = int(self._lines.readline())
        self._code: int | None = None

    def wait(self) -> int:
        """Until it has ended: its exit code, or the signal's number, negative."""
        if self._code is None:
            self._code = int(self._lines.readline() or -signal.SIGKILL)
            self._way.close()
        return self._code

    def kill(self) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Preloaded:
    """The process that forks, while it is entered; all that it forked for `spawn` ends with it."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / "preloaded"
        self.stand_in = folder / "python"

    def __enter__(self) -> Self:
        self._place.unlink(missing_ok=True)
        text = STAND_IN.format(python=sys.executable, place=str(self._place))
        self.stand_in.write_text(text)
        self.stand_in.chmod(0o755)
        command = [sys.executable, __file__, str(self._place), str(self.stand_in)]
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env={**os.environ, **one_thread}, preexec_fn=mortal
        )
        while not self._place.exists():
            assert self._process.poll() is None, "what has everything imported did not start"
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def spawn(self, words: Sequence[str], log: int) -> Spawned:
        """Run Python with these words; what it says goes to the file ``log``."""
        way = socket.socket(socket.AF_UNIX)
        way.connect(str(self._place))
        ask = {"words": list(words), "environment": dict(os.environ), "folder": str(Path.cwd())}
        with Path(os.devnull).open("rb") as nothing:
            content = json.dumps(ask | {"mortal": True}).encode() + b"\n"
            socket.send_fds(way, [content], [nothing.fileno(), log, log])
        return Spawned(way)


def mortal() -> None:
    """End with the process that started this one."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    place, stand_in = sys.argv[1:]
    for name in MODULES:
        import_module(name)
    assert threading.active_count() == 1, threading.enumerate()
    ended, ending = os.pipe()
    os.set_blocking(ending, False)
    signal.set_wakeup_fd(ending)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{place}.new")
    listener.listen(64)
    Path(f"{place}.new").rename(place)
    ways: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener.fileno(), ended], [], [])
        if listener.fileno() in ready:
            way, _ = listener.accept()
            content, files, _, _ = socket.recv_fds(way, 1 << 20, 3)
            while content and not content.endswith(b"\n"):
                content += way.recv(1 << 20)
            if not content:  # who asked was killed
                way.close()
                continue
            number = os.fork()
            if not number:
                os.close(ended)
                for other in (listener, way, *ways.values()):
                    other.close()
                become(json.loads(content), files, stand_in)
            for file in files:
                os.close(file)
            ways[number] = way
            tell(way, number)
        if ended in ready:
            os.read(ended, 4096)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                way = ways.pop(found[0])
                tell(way, os.waitstatus_to_exitcode(found[1]))
                way.close()


def tell(way: socket.socket, number: int) -> None:
    """A line to who asked, if it still lives."""
    with suppress(OSError):
        way.sendall(b"%d\n" % number)


def become(ask: dict[str, Any], files: Sequence[int], stand_in: str) -> NoReturn:
    """In the fork: be the process that was asked for, to its end."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        if ask.get("mortal"):
            mortal()
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)
        os.chdir(ask["folder"])
        os.environ.clear()
        os.environ.update(ask["environment"])
        random.seed()
        sys.executable = stand_in
        os.execv = instead  # type: ignore[assignment]
        run(ask["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def instead(_: str, words: Sequence[str]) -> NoReturn:
    """In place of `os.execv`: the same process goes on as another module."""
    run(words[1:])
    sys.exit(0)


def run(words: Sequence[str]) -> None:
    """``python WORDS``, where they name a module."""
    at = list(words).index("-m")
    sys.argv = [words[at + 1], *words[at + 2 :]]
    Path("/proc/self/comm").write_text("vertizo")
    sys.modules.pop(words[at + 1], None)  # as if nobody had imported it
    runpy.run_module(words[at + 1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
