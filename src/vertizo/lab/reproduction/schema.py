"""Generate the JSON schema of a study's file."""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import Tag

from vertizo.cli.schema import generated
from vertizo.core.options import chosen_by
from vertizo.lab.reproduction.study import KINDS


def study() -> dict[str, Any]:
    """Return the schema of a study's file, for ``vertizo schema``."""
    tagged = tuple(Annotated[options, Tag(kind)] for kind, options in KINDS.items())
    kinds: Any = Annotated[Union[tagged], chosen_by("kind", "table")]  # noqa: UP007
    found = generated(kinds, "Vertizo study")
    quick = {"type": "object", "description": "What its quick form changes."}
    for option in set(KINDS.values()):
        found["$defs"][option.__name__]["properties"]["quick"] = quick
    # A study with a base says what is different, and nothing need be complete.
    whole = {"oneOf": found.pop("oneOf")}
    return {**found, "if": {"required": ["base"]}, "then": {"type": "object"}, "else": whole}
