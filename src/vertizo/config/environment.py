"""Keys of a configuration in variables of the environment: ``VERTIZO_SET__METHOD__NAME=dpzv``."""

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
        """The setting that a variable means; ConfigError where it names no key."""
        words = name.removeprefix(PREFIX).lower().split("__")
        if not name.startswith(PREFIX) or not all(words):
            raise ConfigError(
                f"{name} names no key; write {PREFIX}SECTION__KEY, as in {PREFIX}METHOD__NAME=dpzv"
            )
        setting = cls(f"{'.'.join(words)}={value}")
        setting.name = name
        return setting


def settings_of(environment: Mapping[str, str]) -> list[str]:
    """The settings of all variables, for those of ``--set`` to follow; ConfigError names one."""
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
    """Where somebody wrote a setting."""
    return setting.name if isinstance(setting, Variable) else f"--set {setting}"


def set_by(path: Sequence[str], settings: Sequence[str]) -> str | None:
    """Where the last word was said about a key, or about a section it is in; None: in a file."""
    for setting in reversed(settings):
        keys = setting.partition("=")[0].split(".")
        if list(path[: len(keys)]) == keys:
            return setting.name if isinstance(setting, Variable) else "--set"
    return None
