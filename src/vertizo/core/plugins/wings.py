"""Wings: parts built on the core, of this package or another, which declare what they add.

A package names a `Wing` as an entry point of the group ``vertizo.wings``. The core imports them
only when somebody asks for something that it lacks, or for a whole list.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from vertizo.core.errors import ConfigError
from vertizo.core.plugins.imports import object_at


@dataclass(frozen=True)
class Wing:
    """What a wing adds to the core. Objects are named ``module:name`` and imported when used."""

    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Words of a command → its line in the list of commands, and the function that is run."""
    lists: Mapping[str, str] = field(default_factory=dict)
    """A kind for ``vertizo list`` → a function that yields names and lines."""
    schemas: Mapping[str, str] = field(default_factory=dict)
    """A kind of file, for ``vertizo schema`` → a function that makes its JSON schema."""
    monitors: Mapping[str, str] = field(default_factory=dict)
    """Something to watch of a party → a function of an address and of the object watched, which
    gives a context manager."""


@cache
def wings() -> tuple[Wing, ...]:
    """All installed wings by name; ConfigError if one cannot be imported, or is no `Wing`."""
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
    """Let others watch a party at an address inside the block; no-op if ``address`` is None.

    Raises:
        ConfigError: no installed wing watches that.
    """
    if address is None:
        return nullcontext()
    for wing in wings():
        if what in wing.monitors:
            made: AbstractContextManager[Any] = object_at(wing.monitors[what])(address, *subject)
            return made
    raise ConfigError(f"federation has an address for {what!r}, which no installed wing watches")
