"""When a run was begun, by which versions, from which files: ``provenance.json`` of its folder."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import file_digest
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vertizo.core.errors import DataError
from vertizo.core.version import VERSION

NAME = "provenance.json"
PACKAGES = ("torch", "numpy", "scipy", "cryptography", "grpcio")
"""Those that randomness, numbers and messages depend on."""


def now() -> str:
    """By this machine's clock, in UTC, as ISO 8601 in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def begun(files: Iterable[Path | None]) -> dict[str, Any]:
    """Of a run that begins now: ``started``, ``versions``, and the SHA-256 of each file.

    Raises:
        DataError: a file cannot be read.
    """
    return {
        "started": now(),
        "versions": versions(),
        "files": {path.name: sha256_of(path) for path in files if path is not None},
    }


def versions() -> dict[str, str]:
    """This package's, Python's, the system's, and those of packages that results depend on."""
    found = {"vertizo": VERSION, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"system": f"{platform.system()} {platform.machine()}"}


def sha256_of(path: Path) -> str:
    """What ``sha256sum`` prints for a file; DataError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
