"""``vertizo schema``: what an editor needs to complete and check YAML files."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Union

import typer

Kind = Literal["train", "serve", "join", "study"]


def schema(kind: Annotated[Kind, typer.Argument(help="What the file is for.")] = "train") -> None:
    """Print the JSON schema of a kind of file, for editors."""
    print(json.dumps(made(kind), indent=2, ensure_ascii=False))


def made(kind: Kind) -> dict[str, Any]:
    """The JSON schema of one kind of file."""
    from vertizo.config.json_schema import configuration_schema, generated

    if kind == "train":
        return configuration_schema()
    if kind == "study":
        return _study()
    from vertizo.network.options import JoinConfig, ServeConfig

    if kind == "serve":
        return generated(ServeConfig, "A label holder's configuration")
    return generated(JoinConfig, "A feature holder's configuration")


def _study() -> dict[str, Any]:
    from pydantic import Tag

    from vertizo.config.json_schema import generated
    from vertizo.core.options import chosen_by
    from vertizo.studies.reproduction.study import KINDS

    tagged = tuple(Annotated[options, Tag(kind)] for kind, options in KINDS.items())
    study: Any = Annotated[Union[tagged], chosen_by("kind", "table")]  # noqa: UP007
    found = generated(study, "Vertizo study")
    quick = {"type": "object", "description": "What its quick form changes."}
    for option in set(KINDS.values()):
        found["$defs"][option.__name__]["properties"]["quick"] = quick
    # A study with a base says what is different, and nothing need be complete.
    whole = {"oneOf": found.pop("oneOf")}
    return {**found, "if": {"required": ["base"]}, "then": {"type": "object"}, "else": whole}
