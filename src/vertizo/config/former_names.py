"""Former names of keys and values: they are still read for one version, with a note."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

VALUES = {
    "server.update": {"secret-sgd": "poisson-dp-sgd"},
    "codecs.ids": {"known": "implicit"},
}
"""Key → former value → its name now."""
KEYS = {"data.without": "exclude_parties"}
"""Former key → the last part of its name now."""


def today(key: str, value: Any) -> Any:
    """Translate a key's value to its present name, and note a former one on stderr once."""
    names = VALUES.get(key, {})
    if not isinstance(value, str) or value not in names:
        return value
    _note(f"{key} {value!r}", repr(names[value]))
    return names[value]


def replaced(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Translate the former names in a configuration's tree; the given one is not changed."""
    tree = dict(given)
    for path in (*VALUES, *KEYS):
        section, _, key = path.partition(".")
        inside = tree.get(section)
        if not isinstance(inside, Mapping) or key not in inside:
            continue
        name = KEYS.get(path, key)
        if name == key:
            tree[section] = {**inside, key: today(path, inside[key])}
        elif name not in inside:
            rest = {one: value for one, value in inside.items() if one != key}
            tree[section] = {**rest, name: inside[key]}
            if inside[key]:  # else a run folder's, which has every key
                _note(path, f"{section}.{name}")
    return tree


@cache
def _note(former: str, name: str) -> None:
    print(
        f"note: {former} is called {name} now; the next version reads the new name alone",
        file=sys.stderr,
    )
