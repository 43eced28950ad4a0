"""Logs of commands that work for hours: plain lines, or JSON for log collectors.

With ``--log-format json`` each line on standard error is one object, and standard output has
nothing but what ``--json`` asks for. The format is chosen before a command runs, so that a refused
configuration is reported in it too.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vertizo.core.text import strict_json
from vertizo.core.text.messages import Level, Throttle

if TYPE_CHECKING:
    from rich.console import Console

Format = Literal["text", "json"]


@dataclass
class _State:
    """The log's state in this process, which runs one command."""

    format: Format = "text"
    job: str | None = None
    party: str | None = None


_state = _State()


def reset() -> None:
    """Begin a command: set the log to plain text about no job."""
    if _state.format == "json":
        sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
        logging.getLogger().removeHandler(_handler)
    _state.__init__()  # type: ignore[misc]


def _choose(value: Format) -> Format:
    if value == "json" and _state.format != "json":
        _state.format = value
        logging.getLogger().addHandler(_handler)
        sys.excepthook = _crashed
        threading.excepthook = lambda crash: _crashed(
            crash.exc_type, crash.exc_value, crash.exc_traceback
        )
    return value


LogFormat = Annotated[
    Format,
    typer.Option(
        "--log-format",
        help="text, or json: an object a line, with time, level, job, party and message.",
        metavar="text|json",
        envvar="VERTIZO_LOG_FORMAT",
        show_envvar=True,
        is_eager=True,
        callback=_choose,
    ),
]


def about(job: str, party: str | None = None) -> None:
    """Name the federation, and this party if it is known, in all further lines."""
    _state.job, _state.party = job, party or _state.party


def errors() -> Console:
    """The console for what happens: standard error, or the JSON log."""
    return _console(errors=True)


def results() -> Console:
    """The console for results: standard output, or the JSON log."""
    return _console(errors=False)


def _console(*, errors: bool) -> Console:
    from rich.console import Console

    from vertizo.cli.console import JsonLines

    return JsonLines(write) if _state.format == "json" else Console(stderr=errors)


def end(line: str, *, failed: bool) -> None:
    """Write the last line of a command that was refused or stopped."""
    if _state.format == "json":
        write("error" if failed else "info", line)
    else:
        print(f"vertizo: {line}", file=sys.stderr)


def write(level: Level, message: str, **more: str) -> None:
    """Write one JSON line, in one call, so that lines of several threads do not mix."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"time": time, "level": level, "job": _state.job, "party": _state.party}
    line |= {"message": message, **more}
    sys.stderr.write(strict_json.text(line) + "\n")
    sys.stderr.flush()


class _Handler(logging.Handler):
    """Writes records of Python's own logging as JSON lines."""

    def emit(self, record: logging.LogRecord) -> None:
        write("error" if record.levelno >= logging.ERROR else "warning", record.getMessage())


class _Throttled(logging.Filter):
    """Leaves out lines that come too often; those of one template count together."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = Throttle()

    def filter(self, record: logging.LogRecord) -> bool:
        shown = self._throttle(f"{record.name}: {record.msg}", record.getMessage())
        if shown is None:
            return False
        record.msg, record.args = shown, ()
        return True


_handler = _Handler(logging.WARNING)
for _one in (_handler, logging.lastResort):  # the latter where there is no other, in plain text
    if _one is not None:
        _one.addFilter(_Throttled())


def _crashed(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    """Write an unexpected error as one JSON line, with its traceback as a field."""
    text = "".join(traceback.format_exception(kind, error, trace))
    write("error", f"{kind.__name__}: {error}", traceback=text)
