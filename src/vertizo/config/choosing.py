"""Loading of configurations that may leave the method to be chosen (``method: auto``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vertizo.config import auto, schema
from vertizo.config.schema import ExperimentConfig
from vertizo.config.tree import Tree
from vertizo.core.errors import ConfigError


@dataclass(frozen=True)
class Open:
    """A configuration with ``method: auto``; errors name ``source``, or the setting at fault."""

    given: Tree
    source: str = "configuration"
    settings: Sequence[str] = ()

    @property
    def epsilon(self) -> float | None:
        """The ε to keep; None where none is asked for."""
        privacy = self.given.get("privacy") or {}
        return None if privacy.get("epsilon") is None else self.first().privacy.epsilon

    def candidates(self, records: int | None = None) -> dict[str, ExperimentConfig]:
        """Complete configurations that may be chosen, by name, for so many records (None: many).

        ConfigError, that of the first, where the given keys fit none.
        """
        found, refused = {}, None
        for name, tree in auto.candidates(self.given, records).items():
            try:
                found[name] = self.parsed(tree)
            except ConfigError as error:
                refused = refused or error
        if refused is not None and not found:
            raise refused
        return found

    def first(self, records: int | None = None) -> ExperimentConfig:
        """The first candidate, which stands for the choice until there is data."""
        return next(iter(self.candidates(records).values()))

    def parsed(self, tree: Tree) -> ExperimentConfig:
        """Parse a candidate's tree; ConfigError as of `vertizo.config.schema.parse`."""
        return schema.parse(tree, self.source, self.settings)


Source = Path | str | Mapping[str, Any] | ExperimentConfig | Open | None
"""The forms in which a caller may give a configuration."""


def source_of(given: Source) -> Path | Tree | None:
    """Turn any `Source` into a file, a tree of nested mappings, or None for the defaults.

    ConfigError for anything else.
    """
    match given:
        case ExperimentConfig():
            return _shortest(given)
        case Open():
            return dict(given.given)
        case str():
            return Path(given)
        case Path() | None:
            return given
        case Mapping():
            return dict(given)
    shown = given if isinstance(given, int | float) else f"a {type(given).__name__}"
    raise ConfigError(
        f"config is {shown}; use a path, a dict, an Experiment or an ExperimentConfig (for a table "
        "of yours vertizo init --from FILE writes one)"
    )


def _shortest(config: ExperimentConfig) -> Tree:
    """A tree that makes the same configuration, without the keys that its method fills in.

    Another method can then fill in its own.
    """
    tree = whole = config.model_dump(mode="json", exclude_unset=True)
    for section in [key for key, value in whole.items() if isinstance(value, dict)]:
        for key in whole[section]:
            rest = {name: value for name, value in tree[section].items() if name != key}
            less = {**tree, section: rest}
            with suppress(ValidationError):
                made = ExperimentConfig.model_validate(less)
                if made.model_dump(mode="json", exclude_unset=True) == whole:
                    tree = less
    return tree


def load(path: Path | Tree | None, overrides: Sequence[str] = ()) -> ExperimentConfig | Open:
    """Load a configuration as `vertizo.config.schema.load` does; `Open` for ``method: auto``."""
    return parse(*schema.read(path, overrides), overrides)


def seeded(path: Path | Tree | None, overrides: Sequence[str] = ()) -> ExperimentConfig | Open:
    """`load`, with seed 0 set where none is, so that a stopped run can be resumed."""
    loaded = load(path, overrides)
    first = loaded.first() if isinstance(loaded, Open) else loaded
    return loaded if "seed" in first.model_fields_set else load(path, [*overrides, "seed=0"])


def parse(
    tree: Mapping[str, Any], source: str = "configuration", settings: Sequence[str] = ()
) -> ExperimentConfig | Open:
    """Parse a tree as `vertizo.config.schema.parse` does; `Open` for ``method: auto``."""
    if not auto.is_open(tree):
        return schema.parse(tree, source, settings)
    found = Open(dict(tree), source, settings)
    found.first()  # refused now, if at all
    return found
