"""``vertizo schema``: prints JSON schemas, by which editors complete and check YAML files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from vertizo.cli.options import argument
from vertizo.core.names import AUTO
from vertizo.core.plugins.imports import object_at
from vertizo.core.plugins.wings import wings
from vertizo.core.text import strict_json

if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[("train", "serve", "join", *(kind for wing in wings() for kind in wing.schemas))]


def schema(kind: Annotated[Kind, argument("What the file is for.")] = "train") -> None:
    """Print the JSON schema of a kind of file, for editors."""
    print(strict_json.text(made(kind), indent=2))


def made(kind: Kind) -> dict[str, Any]:
    """Make the JSON schema (draft 2020-12) of one kind of file."""
    if kind == "train":
        from vertizo.config.schema import ExperimentConfig

        found = generated(ExperimentConfig, "Vertizo configuration")
        entry = {"type": "object", "description": "What is different for this method."}
        named = {"properties": {"name": {"const": AUTO}}, "additionalProperties": False}
        found["properties"]["method"]["oneOf"] += [
            {"const": AUTO, "description": "Choose the method by validation records, or for an ε."},
            {"type": "object", "required": ["name"], **named},
        ]
        found["properties"]["methods"] = {"type": "object", "additionalProperties": entry}
        return found
    if (added := next((w.schemas[kind] for w in wings() if kind in w.schemas), None)) is not None:
        of_wing: dict[str, Any] = object_at(added)()
        return of_wing
    from vertizo.network.serving.options import JoinConfig, ServeConfig

    if kind == "serve":
        return generated(ServeConfig, "A label holder's configuration")
    return generated(JoinConfig, "A feature holder's configuration")


def generated(options: Any, title: str) -> dict[str, Any]:
    """Generate the schema of a class of options, or of a choice between several."""
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    from vertizo.core.options import Tagged, texts

    class Generator(GenerateJsonSchema):
        """Requires the key that chooses an option, except for the default option."""

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
