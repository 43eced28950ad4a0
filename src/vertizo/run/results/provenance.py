"""What a figure comes from: time, commit, versions, processor and files.

A run keeps it as ``provenance.json`` in its folder.
"""

from __future__ import annotations

import hmac
import platform
import secrets
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from vertizo.core import kernels
from vertizo.core.digests import sha256_of as of_file
from vertizo.core.errors import DataError
from vertizo.core.version import VERSION

NAME = "provenance.json"
PACKAGES = ("torch", "numpy", "scipy", "cryptography", "grpcio")
"""Those that randomness, numbers and messages depend on."""
_KINDS = {"cpu family": "family", "model": "model"}
"""What Linux tells of a processor, and how we call it."""
CODE = Path(__file__).parents[1]
"""The package's own folder."""


def now() -> str:
    """By this machine's clock, in UTC, as ISO 8601 in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def begun(files: Iterable[Path | None]) -> dict[str, Any]:
    """Of a run that begins now: ``started``, ``versions``, ``commit``, ``processor``, ``files``.

    ``files`` holds the SHA-256 of each file, and ``key`` what `sealed` takes.

    Raises:
        DataError: a file cannot be read.
    """
    return {
        "started": now(),
        "versions": versions(),
        "commit": commit(),
        "processor": processor(),
        "files": digests(files),
        "key": secrets.token_hex(32),
    }


def digests(files: Iterable[Path | None]) -> dict[str, str]:
    """The SHA-256 of each file, by its name, or its path where two have that name; DataError where
    one cannot be read."""
    there = [path for path in files if path is not None]
    names = [path.name for path in there]
    keys = [path.name if names.count(path.name) == 1 else str(path) for path in there]
    return {key: _digest(path) for key, path in zip(keys, there, strict=True)}


def sealed(digest: str, key: str) -> str:
    """A file's SHA-256 as others may see it: its HMAC-SHA256 by a run's key, both as they are kept.

    The plain one would tell a label to whoever knows all the rest of the file, by trying.
    """
    return hmac.digest(key.encode(), digest.encode(), "sha256").hex()


def _digest(path: Path) -> str:
    """`sha256_of`, once for a file as it is: a comparison asks for each of its runs."""
    try:
        now = path.stat()
    except OSError:
        return sha256_of(path)  # which says why
    return _digest_as_of(path, now.st_mtime_ns, now.st_size, now.st_ino)


@lru_cache(maxsize=16)
def _digest_as_of(path: Path, *_: int) -> str:
    return sha256_of(path)


def versions() -> dict[str, str]:
    """This package's, Python's, the system's, and those of packages that results depend on."""
    found = {"vertizo": VERSION, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"system": f"{platform.system()} {platform.machine()}"}


@cache
def commit() -> str:
    """The commit of this package's checkout as the process first asked, with a + where tracked
    files had changed since; empty where the package is not run from its checkout."""
    ask = ("git", "-C", str(CODE), "describe", "--always", "--dirty=+", "--exclude=*")
    root = ("git", "-C", str(CODE), "rev-parse", "--show-toplevel")
    try:
        here, said = (
            subprocess.run(each, capture_output=True, text=True, check=True).stdout.strip()
            for each in (root, ask)
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    # An installation may lie within somebody's own checkout.
    return said if Path(here) / "src" / CODE.name == CODE else ""


@cache
def processor() -> str:
    """The processor as the operating system calls it, and what decides how arithmetic rounds on it:
    its family and model, which instructions PyTorch takes, and how the kernels add."""
    named: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            named.setdefault(key.strip(), value.strip())
    facts = [f"{word} {named[key]}" for key, word in _KINDS.items() if key in named]
    facts.append(torch.backends.cpu.get_cpu_capability())
    facts.append(f"{kernels.lanes()} lanes" if kernels.COMPILED else "no kernels")
    return f"{named.get('model name', platform.machine())} ({', '.join(facts)})"


def sha256_of(path: Path) -> str:
    """What ``sha256sum`` prints for a file; DataError where it cannot be read."""
    try:
        return of_file(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
