"""The JSON schema of a configuration, by which editors complete and check YAML files."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from vertizo.config.schema import ExperimentConfig
from vertizo.core.options import Tagged, texts


class _Generator(GenerateJsonSchema):
    """Exactly one option of a choice fits: the default alone may leave out what chooses it."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        for name, text in texts(schema["cls"]).items():
            if name in found.get("properties", {}):
                found["properties"][name]["description"] = text
        return found

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        tagged = schema["discriminator"]
        if not isinstance(tagged, Tagged):
            return super().tagged_union_schema(schema)
        options = []
        for tag, choice in schema["choices"].items():
            named: JsonSchemaValue = {"properties": {tagged.key: {"const": tag}}}
            option = {"allOf": [self.generate_inner(choice)], **named}
            if tag != tagged.default:
                option["required"] = [tagged.key]
            options.append(option)
        return {"oneOf": options}


def generated(options: Any, title: str) -> JsonSchemaValue:
    """The schema (draft 2020-12) of a class of options, or of a choice between some."""
    found = TypeAdapter(options).json_schema(schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, **found, "title": title}


def configuration_schema() -> JsonSchemaValue:
    """Of a configuration for `vertizo train` and its like."""
    found = generated(ExperimentConfig, "Vertizo configuration")
    entry = {"type": "object", "description": "What is different for this method."}
    found["properties"]["methods"] = {"type": "object", "additionalProperties": entry}
    return found
