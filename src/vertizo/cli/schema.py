"""``vertizo schema``: the JSON schemas by which editors complete and check YAML files."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from vertizo.cli.options import argument
from vertizo.core import strict_json
from vertizo.core.names import AUTO

Kind = Literal["train", "serve", "join", "agent", "job", "study"]


def schema(kind: Annotated[Kind, argument("What the file is for.")] = "train") -> None:
    """Print the JSON schema of a kind of file, for editors."""
    print(strict_json.text(made(kind), indent=2))


def made(kind: Kind) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of one kind of file."""
    if kind == "train":
        from vertizo.config.schema import ExperimentConfig

        found = _generated(ExperimentConfig, "Vertizo configuration")
        entry = {"type": "object", "description": "What is different for this method."}
        named = {"properties": {"name": {"const": AUTO}}, "additionalProperties": False}
        found["properties"]["method"]["oneOf"] += [
            {"const": AUTO, "description": "Choose the method by validation records, or for an ε."},
            {"type": "object", "required": ["name"], **named},
        ]
        found["properties"]["methods"] = {"type": "object", "additionalProperties": entry}
        return found
    if kind == "study":
        return _study()
    if kind == "agent":
        from vertizo.network.agent.options import LabelHolderAgent, MemberAgent

        return _generated(LabelHolderAgent | MemberAgent, "An agent's configuration")
    if kind == "job":
        return _job()
    from vertizo.network.options import JoinConfig, ServeConfig

    if kind == "serve":
        return _generated(ServeConfig, "A label holder's configuration")
    return _generated(JoinConfig, "A feature holder's configuration")


def _job() -> dict[str, Any]:
    """A job's own section is checked; what is beside it is known once it is in an agent's hands."""
    from vertizo.network.agent.job_file import JobOptions

    found = _generated(JobOptions, "A job that is submitted")
    meta = {key: found.pop(key) for key in ("$schema", "title")}
    definitions = {"$defs": found.pop("$defs")} if "$defs" in found else {}
    section = {"type": "object", "required": ["job"], "properties": {"job": found}}
    return {**meta, **definitions, **section}


def _study() -> dict[str, Any]:
    from pydantic import Tag

    from vertizo.core.options import chosen_by
    from vertizo.studies.reproduction.study import KINDS

    tagged = tuple(Annotated[options, Tag(kind)] for kind, options in KINDS.items())
    study: Any = Annotated[Union[tagged], chosen_by("kind", "table")]  # noqa: UP007
    found = _generated(study, "Vertizo study")
    quick = {"type": "object", "description": "What its quick form changes."}
    for option in set(KINDS.values()):
        found["$defs"][option.__name__]["properties"]["quick"] = quick
    # A study with a base says what is different, and nothing need be complete.
    whole = {"oneOf": found.pop("oneOf")}
    return {**found, "if": {"required": ["base"]}, "then": {"type": "object"}, "else": whole}


def _generated(options: Any, title: str) -> dict[str, Any]:
    """The schema of a class of options, or of a choice between some."""
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    from vertizo.core.options import Tagged, texts

    class Generator(GenerateJsonSchema):
        """Exactly one option of a choice fits: the default alone may leave out what chooses it."""

        def model_schema(self, schema: Any) -> dict[str, Any]:
            found = super().model_schema(schema)
            for name, text in texts(schema["cls"]).items():
                if name in found.get("properties", {}):
                    found["properties"][name]["description"] = text
            return found

        def tagged_union_schema(self, schema: Any) -> dict[str, Any]:
            tagged = schema["discriminator"]
            if not isinstance(tagged, Tagged):
                return super().tagged_union_schema(schema)
            options = []
            for tag, choice in schema["choices"].items():
                named = {"properties": {tagged.key: {"const": tag}}}
                option = {"allOf": [self.generate_inner(choice)], **named}
                options.append(
                    option | ({"required": [tagged.key]} if tag != tagged.default else {})
                )
            return {"oneOf": options}

    found = TypeAdapter(options).json_schema(schema_generator=Generator)
    return {"$schema": Generator.schema_dialect, **found, "title": title}
