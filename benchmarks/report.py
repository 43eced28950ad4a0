"""What all benchmarks share: one thread, ways in turn, medians of ratios, and the files they leave.

A file of results says on what kind of machine, with which versions and by which command its figures
came about. Its ``summary`` holds the lines that `summary.py` puts into one table.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import vertizo
from vertizo.run.results.provenance import commit, processor

Rounds = Callable[[], int]
"""Makes some rounds and says how many."""
Figures = Mapping[str, float]
"""One figure for each way, measured one right after the other."""


def one_core() -> None:
    """Keep this process and its children on the core it runs on: one thread at a time, whoever
    starts more. Linux only."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {ctypes.CDLL(None).sched_getcpu()})


def rate(rounds: Rounds, seconds: float) -> float:
    """Rounds per CPU second of all threads of this process, over about ``seconds``."""
    count, started = 0, time.process_time()
    while (spent := time.process_time() - started) < seconds:
        count += rounds()
    return count / spent


def in_turn(ways: Mapping[str, Callable[[], float]], repeats: int) -> list[Figures]:
    """Measure every way once, ``repeats`` times; every second time in reverse order."""
    order = list(ways)
    return [
        {name: ways[name]() for name in (reversed(order) if k % 2 else order)}
        for k in range(repeats)
    ]


def rates(ways: Mapping[str, Rounds], seconds: float, repeats: int) -> list[Figures]:
    """Rounds per CPU second of every way, in turn, after half as long to warm up."""
    for way in ways.values():
        rate(way, seconds / 2)
    return in_turn({name: partial(rate, way, seconds) for name, way in ways.items()}, repeats)


def median(measured: Sequence[Figures], name: str) -> float:
    """The median of one way's figures."""
    return statistics.median(each[name] for each in measured)


def median_ratio(measured: Sequence[Figures], one: str, other: str) -> float:
    """The median of the ratios of two ways, each of one repetition."""
    return statistics.median(each[one] / each[other] for each in measured)


def facts(packages: Sequence[str] = ("torch", "numpy")) -> dict[str, Any]:
    """The kind of machine and the versions, of these packages where they are installed."""
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "vertizo": vertizo.__version__,
    }
    if made := commit():
        found["commit"] = made
    if "torch" in packages:
        import torch

        found["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def parser(text: str | None, *, seconds: float, repeats: int) -> argparse.ArgumentParser:
    """The options that timed benchmarks have in common.

    Args:
        text: of the module; its first line is shown.
        seconds, repeats: unless given.
    """
    made = plain_parser(text)
    made.add_argument("--seconds", type=float, default=seconds, help="of each measurement")
    made.add_argument("--repeats", type=int, default=repeats, help="the median of so many is shown")
    return made


def plain_parser(text: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks have in common."""
    made = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    made.add_argument("--json", type=Path, help="write the figures to this file as well")
    made.add_argument("--note", help="to be kept with the figures, e.g. that others used the cores")
    return made


def of_its_own(script: str, *arguments: str) -> dict[str, Any]:
    """What a script prints as JSON for ``--measure`` and these, in a process of its own."""
    command = [sys.executable, script, "--measure", *arguments]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def line(what: str, figure: str, beside: str = "") -> dict[str, str]:
    """A line of the summary: what, its figure, and what that is held against."""
    return {"what": what, "figure": figure, "beside": beside}


def command() -> str:
    """This process's command, without where figures are put."""
    script, *given = sys.argv
    kept, skip = [], False
    for word in given:
        if not skip and not word.startswith("--json="):
            kept.append(word)
        skip = word == "--json"
        if skip:
            kept.pop()
    return shlex.join([f"benchmarks/{Path(script).name}", *kept])


def write(
    options: argparse.Namespace,
    results: Mapping[str, Any],
    summary: Sequence[Mapping[str, str]],
    packages: Sequence[str] = ("torch", "numpy"),
) -> None:
    """The file that ``--json`` names, if it names one.

    Args:
        options: of `parser`.
        results: the figures, beside the facts.
        summary: `line` for what is worth a line among all benchmarks.
        packages: whose versions are told.
    """
    if options.json is None:
        return
    note = {"note": options.note} if options.note else {}
    whole = {"command": command(), **facts(packages), **note, **results, "summary": list(summary)}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", "utf-8")
