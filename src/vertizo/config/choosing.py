"""Configurations whose method is still to be chosen (``method: auto``), and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertizo.config import auto, schema
from vertizo.config.schema import ExperimentConfig
from vertizo.config.tree import Tree
from vertizo.core.errors import ConfigError


@dataclass(frozen=True)
class Open:
    """What was given beside ``method: auto``; errors name the source, or a variable's setting."""

    given: Tree
    source: str = "configuration"
    settings: Sequence[str] = ()

    @property
    def epsilon(self) -> float | None:
        """The ε to keep; None where there is to be none."""
        privacy = self.given.get("privacy") or {}
        return None if privacy.get("epsilon") is None else self.first().privacy.epsilon

    def candidates(self, records: int | None = None) -> dict[str, ExperimentConfig]:
        """Every complete configuration that may be chosen, for so many records (None: many).

        ConfigError where what was given fits none of them, as it says of the first.
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
        """The first of them: what stands for the choice until there is data."""
        return next(iter(self.candidates(records).values()))

    def parsed(self, tree: Tree) -> ExperimentConfig:
        """A candidate's tree; ConfigError as of `vertizo.config.schema.parse`."""
        return schema.parse(tree, self.source, self.settings)


def load(path: Path | None, overrides: Sequence[str] = ()) -> ExperimentConfig | Open:
    """As `vertizo.config.schema.load`, with ``method: auto`` as well."""
    return parse(*schema.read(path, overrides), overrides)


def parse(
    tree: Mapping[str, Any], source: str = "configuration", settings: Sequence[str] = ()
) -> ExperimentConfig | Open:
    """As `vertizo.config.schema.parse`, with ``method: auto`` as well."""
    if not auto.is_open(tree):
        return schema.parse(tree, source, settings)
    found = Open(dict(tree), source, settings)
    found.first()  # refused now, if at all
    return found
