"""Wings: parts that are built on the core and tell it what they add, ours and somebody else's.

A package names a `Wing` as an entry point of the group ``vertizo.wings``. The core imports none of
them before somebody asks for what it lacks, or for a whole list.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from vertizo.core.errors import ConfigError


@dataclass(frozen=True)
class Wing:
    """What a wing adds. Objects are named ``module:name``, and imported when they are used."""

    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Words of a command → its line in the list, and the function that is run."""
    lists: Mapping[str, str] = field(default_factory=dict)
    """What ``vertizo list`` is asked for → a function that yields names and lines."""
    schemas: Mapping[str, str] = field(default_factory=dict)
    """A kind of file, for ``vertizo schema`` → a function that makes its JSON schema."""
    monitors: Mapping[str, str] = field(default_factory=dict)
    """What is watched of a party → a context manager of an address and of what is watched."""


@cache
def wings() -> tuple[Wing, ...]:
    """All that are installed, in the order of their names.

    ConfigError where one cannot be imported, or is none.
    """
    found = []
    for point in sorted(entry_points(group="vertizo.wings"), key=lambda point: point.name):
        try:
            wing = point.load()
        except Exception as error:
            raise ConfigError(f"the wing {point.name!r} cannot be imported: {error}") from error
        if not isinstance(wing, Wing):
            raise ConfigError(f"the wing {point.name!r} is {point.value}, which is no Wing")
        found.append(wing)
    return tuple(found)


def watched(what: str, address: str | None, *subject: Any) -> AbstractContextManager[Any]:
    """Let others watch a party at an address while this lasts; nothing where there is none.

    ConfigError where no wing does that.
    """
    if address is None:
        return nullcontext()
    for wing in wings():
        if what in wing.monitors:
            made: AbstractContextManager[Any] = object_at(wing.monitors[what])(address, *subject)
            return made
    raise ConfigError(f"federation has an address for {what!r}, which no installed wing watches")


def object_at(path: str) -> Any:
    """What a wing names ``module:name``."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
