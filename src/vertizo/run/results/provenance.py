"""Provenance: the time, commit, versions, processor and files that figures come from.

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
"""Packages that randomness, numbers and messages depend on."""
_KINDS = {"cpu family": "family", "model": "model"}
"""Linux's name of a fact about the processor → our word."""
CODE = Path(__file__).parents[2]
"""The package's own folder."""


def now() -> str:
    """The time by this machine's clock, in UTC, as ISO 8601 in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def begun(files: Iterable[Path | None]) -> dict[str, Any]:
    """The provenance of a run that begins now, as ``provenance.json`` has it.

    ``files`` holds the SHA-256 of each file, and ``key`` a new random key for `sealed`.

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
    """A file's SHA-256 as others may see it: HMAC-SHA256 of the hex digest under a run's key.

    The digest itself would tell a label to whoever knows the rest of the file, by trying values.
    """
    return hmac.digest(key.encode(), digest.encode(), "sha256").hex()


def _digest(path: Path) -> str:
    """`sha256_of`, cached until the file changes, since a comparison asks in each of its runs."""
    try:
        now = path.stat()
    except OSError:
        return sha256_of(path)  # which says why
    return _digest_as_of(path, now.st_mtime_ns, now.st_size, now.st_ino)


@lru_cache(maxsize=16)
def _digest_as_of(path: Path, *_: int) -> str:
    return sha256_of(path)


def versions() -> dict[str, str]:
    """Versions of this package, Python, the system, and the packages that results depend on."""
    found = {"vertizo": VERSION, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"system": f"{platform.system()} {platform.machine()}"}


@cache
def commit() -> str:
    """The commit of this package's checkout, with a + if tracked files had changed, as of the
    first call; empty if the package is not run from its checkout."""
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
    """The processor's name, and what decides how arithmetic rounds on it: its family and model, the
    instructions that PyTorch uses, and how the kernels add."""
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
    """The SHA-256 of a file, in hexadecimal; DataError if it cannot be read."""
    try:
        return of_file(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
