"""Configuration keys from environment variables: ``VERTIZO_SET__METHOD__NAME=dpzv``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from vertizo.core.errors import ConfigError

PREFIX = "VERTIZO_SET__"


class Variable(str):
    """A setting ``key=value`` that remembers which variable it came from."""

    name: str

    @classmethod
    def of(cls, name: str, value: str) -> Self:
        """Make the setting of a variable; ConfigError where its name is that of no key."""
        words = name.removeprefix(PREFIX).lower().split("__")
        if not name.startswith(PREFIX) or not all(words):
            raise ConfigError(
                f"{name} names no key; write {PREFIX}SECTION__KEY, as in {PREFIX}METHOD__NAME=dpzv"
            )
        setting = cls(f"{'.'.join(words)}={value}")
        setting.name = name
        return setting


def settings_of(environment: Mapping[str, str]) -> list[str]:
    """The settings of all variables, to be put before those of ``--set``.

    ConfigError where a variable names no key, or two set the same one.
    """
    marks = sorted(name for name in environment if name.startswith(PREFIX.removesuffix("_")))
    found: dict[str, Variable] = {}
    for name in marks:
        one = Variable.of(name, environment[name])
        key = one.partition("=")[0]
        if key in found:
            raise ConfigError(f"{found[key].name} and {name} both set {key}; leave one of them out")
        found[key] = one
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
