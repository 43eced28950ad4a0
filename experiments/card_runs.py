"""The papers at their own size, on a graphics card that is at hand for minutes at a time.

Takes what is next on a list (``card/list.yaml``), in order of worth, for so many minutes. The same
command goes on where the last one stopped: finished runs are not made again, and what was begun
goes on from its last checkpoint. A line of the list works in ``OUT/NAME``; its result is
``OUT/NAME.json``, its messages are in ``OUT/NAME.log``.

A machine that is given back takes its disk along. An ``--archive`` has everything that is small:
it is unpacked where OUT is not there, and written anew after each line. Checkpoints of finished
runs, and those above 8 MB, are not in it: a large run that was stopped begins anew. Nor do finished
runs keep those above 8 MB: VFL-Cascaded's table of CIFAR-10 is 12 GB of a disk of 64.

Run: ``python experiments/card_runs.py --minutes 9 [--archive FILE] [--only A,B] [--show]``
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

LIST = Path(__file__).parent / "card" / "list.yaml"
SMALL = 8 * 10**6
"""Bytes up to which a file is archived."""
LOOKING = 5.0
"""Seconds after which what finished runs leave behind is looked for again."""
STOPPING = 60
"""Seconds that a command has to save its state once it was told to stop."""
INTERRUPTED = 130


@dataclass(frozen=True)
class Line:
    """A command of the list."""

    name: str
    minutes: float
    """Of its longest run."""
    run: str
    at_once: int = 1
    """Runs at a time, where one leaves most of the card idle."""

    def command(self, folder: Path, device: str) -> list[str]:
        """With its folder and device."""
        words = [sys.executable, "-m", "vertizo", *shlex.split(self.run), "--json"]
        words += ["--jobs", str(self.at_once), "--runs-per-card", str(self.at_once)]
        return [*words, "--set", f"device={device}", "--out", str(folder)]


def lines(path: Path, only: Sequence[str] = ()) -> list[Line]:
    """Those of a list, or of these names; ValueError for an unknown one, or a list that is none."""
    try:
        found = [Line(**each) for each in yaml.safe_load(path.read_text("utf-8"))]
    except (yaml.YAMLError, TypeError):
        raise ValueError(f"{path}: lines with name, minutes and run were expected") from None
    if unknown := set(only) - {line.name for line in found}:
        raise ValueError(f"{', '.join(sorted(unknown))}: {path} has no such line")
    return [line for line in found if not only or line.name in only]


def state(line: Line, out: Path) -> str:
    """What is known of a line."""
    if (out / f"{line.name}.json").exists():
        return "done"
    runs = [*(out / line.name).rglob("config.yaml")]
    finished = sum((run.parent / "summary.json").exists() for run in runs)
    return f"{finished} of {len(runs)} runs that were begun" if runs else ""


def advance(line: Line, out: Path, device: str, seconds: float) -> int:
    """Run a line for so long; return its exit code, `INTERRUPTED` where it was stopped."""
    result, made = out / f"{line.name}.json", out / f"{line.name}.part"
    with made.open("wb") as found, (out / f"{line.name}.log").open("ab") as said:
        command = line.command(out / line.name, device)
        with subprocess.Popen(command, stdout=found, stderr=said) as process:
            try:
                code = waited(process, seconds, out / line.name)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                try:
                    code = process.wait(STOPPING)
                except subprocess.TimeoutExpired:
                    process.kill()
                    code = INTERRUPTED
    if code == 0:
        made.replace(result)
    else:
        made.unlink()
    return code


def waited(process: subprocess.Popen[bytes], seconds: float, folder: Path) -> int:
    """Wait for a command that works in a folder, and clear that meanwhile; its exit code.

    TimeoutExpired if it takes longer.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > LOOKING:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOKING)
        clear(folder)
    return process.wait(max(0.0, left))


def clear(folder: Path) -> None:
    """Remove large checkpoints of finished runs."""
    for path in folder.rglob("checkpoints/*"):
        with suppress(FileNotFoundError):  # written under another name, just now
            if path.stat().st_size > SMALL and has_ended(path):
                path.unlink()


def has_ended(path: Path) -> bool:
    """Whether a file is a checkpoint of a run that is over."""
    return path.parent.name == "checkpoints" and (path.parents[1] / "summary.json").exists()


def kept(out: Path) -> Iterator[Path]:
    """The files that an archive has."""
    for path in sorted(out.rglob("*")):
        if not path.is_file() or path.stat().st_size > SMALL:
            continue
        if not has_ended(path):
            yield path


def pack(out: Path, archive: Path) -> None:
    """Write what is small of a folder to an archive, in one step."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(archive.name + ".part")
    with tarfile.open(part, "w:gz") as made:
        for path in kept(out):
            made.add(path, path.relative_to(out))
    part.replace(archive)


def unpack(archive: Path, out: Path) -> None:
    """Restore a folder from an archive, if that is there and the folder is not; ValueError where
    it is no archive."""
    if not archive.exists() or out.exists():
        return
    part = out.with_name(out.name + ".part")
    try:
        with tarfile.open(archive) as made:
            made.extractall(part, filter="data")
    except (tarfile.TarError, EOFError):
        shutil.rmtree(part, ignore_errors=True)
        raise ValueError(f"{archive} is no whole archive of such runs") from None
    part.rename(out)


def main() -> None:
    """Do what the command line says; what is wrong is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="to work for; 9")
    parser.add_argument("--out", type=Path, default=Path("runs") / "card", metavar="DIR")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="of what is small in OUT")
    parser.add_argument("--only", default="", metavar="A,B", help="lines of the list")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="in place of ours")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the list")
    parser.add_argument("--show", action="store_true", help="say what is done, and run nothing")
    asked = parser.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    try:
        wanted = lines(asked.list, [name for name in asked.only.split(",") if name])
        if asked.archive is not None:
            unpack(asked.archive, asked.out)
        asked.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A shell's background ignores SIGINT, and so would all that is begun here and told to stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failed = 0
    for line in wanted:
        left = end - time.monotonic()
        if not asked.show and state(line, asked.out) != "done" and left > 60 * line.minutes:
            started = time.monotonic()
            code = advance(line, asked.out, asked.device, left)
            took = (time.monotonic() - started) / 60
            print(f"{line.name}: exit code {code} after {took:.1f} minutes", flush=True)
            if code not in (0, INTERRUPTED):
                failed, log = 1, asked.out / f"{line.name}.log"
                print(f"{log}: {log.read_text('utf-8').strip().rpartition(chr(10))[2]}", flush=True)
            if asked.archive is not None:
                pack(asked.out, asked.archive)
    for line in wanted:
        print(f"{line.name:<22} {line.minutes:>4g} min  {state(line, asked.out)}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
