"""Callers, who may ask for scores: a file of names, digests of keys, and rates.

A key is 32 random bytes as text, shown once; the file has its SHA-256, from which nobody can
compute the key. The file is read again when it changes, so that removing an entry shuts a caller
out. While it cannot be read, nobody is served.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from vertizo.config.error_lines import explain, read_yaml, write_yaml
from vertizo.core.errors import ConfigError
from vertizo.core.options import Options
from vertizo.core.system import file_mark
from vertizo.network.serving.options import Name
from vertizo.run.results import checkpoint

PREFIX = "vertizo_"
"""Prefix of keys, by which a leaked one is recognised."""


class Caller(Options):
    """One program, or one person."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the key, in hexadecimal digits."""
    requests: int = Field(default=100, ge=1)
    """Most requests in a second."""
    records: int = Field(default=10_000, ge=1)
    """Most records in a second."""


class Callers(Options):
    """The file."""

    callers: dict[Name, Caller] = Field(default_factory=dict)


def load(path: Path) -> Callers:
    """Read the file; ConfigError if it is no file of callers."""
    tree = read_yaml(path)
    try:
        found = Callers.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, Callers)}") from None
    names: dict[str, str] = {}
    for name, caller in found.callers.items():
        if (other := names.setdefault(caller.key, name)) != name:
            raise ConfigError(f"{path}: {other!r} and {name!r} have the same key")
    return found


def add(path: Path, name: str, requests: int, records: int, *, replace: bool = False) -> str:
    """Write a caller into the file, which is made if missing; return the new key.

    Raises:
        ConfigError: it is no file of callers, or has the name already and ``replace`` is false.
    """
    known = load(path) if path.exists() else Callers()
    if name in known.callers and not replace:
        raise ConfigError(f"{path} has {name!r} already; --replace gives it a new key")
    key = PREFIX + secrets.token_urlsafe(32)
    try:
        caller = Caller(key=digest(key), requests=requests, records=records)
        found = Callers.model_validate({"callers": {**known.callers, name: caller}})
    except ValidationError as error:
        raise ConfigError(explain(error, Callers)) from None
    content = write_yaml(found.model_dump(mode="json"))
    checkpoint.write_atomically(path, content.encode(), 0o600)
    return key


def digest(key: str) -> str:
    """The SHA-256 of a key, in hexadecimal digits, as the file has it."""
    return hashlib.sha256(key.encode()).hexdigest()


class KnownCallers:
    """The callers of a file as it is now; ConfigError if it cannot be read at the start."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ConfigError(
                f"scoring.callers is {path}, which is missing; `vertizo api-key NAME {path}` "
                "makes it"
            )
        self._path = path
        self._mark = file_mark(self._path)
        self._problem = ""
        self._take(load(path))

    def find(self, key: str) -> tuple[str, Caller] | None:
        """The caller with that key; None for nobody, ConfigError while the file is unreadable."""
        if (mark := file_mark(self._path)) != self._mark:
            self._mark = mark
            try:
                self._take(load(self._path))
            except ConfigError as error:
                self._problem = str(error)
        if self._problem:
            raise ConfigError(self._problem)
        return self._by_digest.get(digest(key))  # of a digest, the time it takes tells nothing

    def _take(self, found: Callers) -> None:
        self._problem = ""
        self._by_digest = {one.key: (name, one) for name, one in found.callers.items()}
