"""Names that configurations in the wild still have: read for one version, with a note."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

FORMER = {"server.update": {"secret-sgd": "poisson-dp-sgd"}}
"""Key → former name → what it is called now."""


def today(key: str, value: Any) -> Any:
    """A key's value by today's name; a former one is noted on stderr once."""
    names = FORMER.get(key, {})
    if not isinstance(value, str) or value not in names:
        return value
    _note(key, value, names[value])
    return names[value]


def replaced(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration's tree with today's names."""
    server = given.get("server")
    if not isinstance(server, Mapping) or "update" not in server:
        return given
    return {**given, "server": {**server, "update": today("server.update", server["update"])}}


@cache
def _note(key: str, former: str, name: str) -> None:
    print(
        f"note: {key} {former!r} is called {name!r} now; the next version reads the new name alone",
        file=sys.stderr,
    )
