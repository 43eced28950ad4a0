"""Configuration keys from environment variables: ``VERTIZO_SET__METHOD__NAME=dpzv``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vertizo.core.errors import ConfigError

PREFIX = "VERTIZO_SET__"


class Variable(str):
    """A setting ``key=value`` that remembers which variable it came from."""

    name: str


def settings_of(environment: Mapping[str, str]) -> list[str]:
    """The settings of all variables, to be put before those of ``--set``.

    ConfigError where a variable names no key, or two set the same one.
    """
    marks = sorted(name for name in environment if name.startswith(PREFIX.removesuffix("_")))
    found: dict[str, Variable] = {}
    for name in marks:
        words = name.removeprefix(PREFIX).lower().split("__")
        if not name.startswith(PREFIX) or not all(words):
            raise ConfigError(
                f"{name} names no key; write {PREFIX}SECTION__KEY, as in {PREFIX}METHOD__NAME=dpzv"
            )
        key = ".".join(words)
        if key in found:
            raise ConfigError(f"{found[key].name} and {name} both set {key}; leave one of them out")
        found[key] = Variable(f"{key}={environment[name]}")
        found[key].name = name
    return list(found.values())


def source_of(setting: str) -> str:
    """What errors call the source of a setting: its variable, or ``--set`` and the setting."""
    return setting.name if isinstance(setting, Variable) else f"--set {setting}"


def set_by(path: Sequence[str], settings: Sequence[str]) -> str | None:
    """The source of the last setting of a key, or of a section around it; None if there is none."""
    for setting in reversed(settings):
        keys = setting.partition("=")[0].split(".")
        if list(path[: len(keys)]) == keys:
            return setting.name if isinstance(setting, Variable) else "--set"
    return None
