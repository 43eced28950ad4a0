"""Where a system lacks what Unix has, all works but ledgers, which say so in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vertizo import __file__ as package

PRIVATE = Path(__file__).parents[2] / "examples" / "private_replies.yaml"
UNIX = ("fcntl", "resource")
ELSEWHERE = f"""\
import os, signal, sys
for name in {UNIX!r}:
    sys.modules[name] = None
del os.sched_getaffinity, os.O_CLOEXEC, os.O_NOFOLLOW, signal.pthread_sigmask
from vertizo.cli.main import main
main()
"""
"""A program like ``vertizo`` on a system that lacks them."""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    options = {"capture_output": True, "text": True, "cwd": folder, "env": environment}
    return subprocess.run([sys.executable, "-c", ELSEWHERE, *arguments], **options, check=False)


def test_no_module_of_unix_is_imported_beside_the_one_place() -> None:
    found = [
        path.name
        for path in Path(package).parent.rglob("*.py")
        if re.search(rf"^\s*(import|from) ({'|'.join(UNIX)})\b", path.read_text("utf-8"), re.M)
    ]
    assert not found, f"{found}: use vertizo.core.system"


@pytest.mark.full
def test_without_locks_runs_are_trained_and_ledgers_refused(tmp_path: Path) -> None:
    sets = [
        word
        for key in ("data.limit=60", "batch_size=9", "epochs=2", "checkpoint_seconds=0")
        for word in ("--set", key)
    ]
    trained = run(tmp_path, "train", "--out", "run", *sets)
    assert trained.returncode == 0, trained.stderr
    assert "peak memory" not in trained.stdout
    assert trained.stderr.count("cannot be locked") == 1
    assert (tmp_path / "run" / "summary.json").is_file()

    refused = run(tmp_path, "privacy", "ledger", "create", "ledger", str(PRIVATE))
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("vertizo: a ledger needs locks of files")
    assert not (tmp_path / "ledger").exists()
