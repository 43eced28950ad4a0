"""``vertizo schema``: what an editor needs to complete and check YAML files."""

from __future__ import annotations

from typing import Any

from vertizo.config.json_schema import configuration_schema, generated


def schema(kind: str) -> dict[str, Any]:
    """The JSON schema of one kind of file: ``train``, ``serve``, ``join`` or ``study``."""
    if kind == "train":
        return configuration_schema()
    if kind == "study":
        return _study()
    from vertizo.network.options import JoinConfig, ServeConfig

    if kind == "serve":
        return generated(ServeConfig, "A label holder's configuration")
    return generated(JoinConfig, "A feature holder's configuration")


def _study() -> dict[str, Any]:
    from vertizo.studies.reproduction.study import KINDS, Study

    found = generated(Study, "Vertizo study")
    quick = {"type": "object", "description": "What its quick form changes."}
    for option in set(KINDS.values()):
        found["$defs"][option.__name__]["properties"]["quick"] = quick
    # A study with a base says what is different, and nothing need be complete.
    whole = {"oneOf": found.pop("oneOf")}
    return {**found, "if": {"required": ["base"]}, "then": {"type": "object"}, "else": whole}
