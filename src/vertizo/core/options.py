"""The base class of all configuration objects: frozen, validated, unknown keys are errors."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from itertools import pairwise
from textwrap import dedent
from typing import Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

TAGS = ("name", "distribution")
"""Keys that choose one of several option classes."""


class Options(BaseModel):
    """Public fields, validated once at construction; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse True and False for a number: somebody meant another key."""
        if isinstance(value, bool):
            expected = cls.model_fields[str(info.field_name)].annotation
            numbers = (int, float, int | None, float | None)
            if expected in numbers or any(type(choice) is int for choice in get_args(expected)):
                raise PydanticCustomError("no_number", "a number")
        return value


def within(bounds: tuple[float, float]) -> AfterValidator:
    """Refuse a number outside these bounds; None is let through.

    pydantic's own messages write bounds with every digit, as 1e-30 with thirty zeros.
    """
    least, most = bounds

    def check(value: float | None) -> float | None:
        if value is not None and not least <= value <= most:
            told = {"least": f"{least:g}", "most": f"{most:g}"}
            raise PydanticCustomError("out_of_bounds", "between {least} and {most}", told)
        return value

    return AfterValidator(check)


def texts(options: type[Options]) -> dict[str, str]:
    """The docstring below each field of a class, by the field's name, inherited fields included.

    They are read from the source on request. Pydantic's `use_attribute_docstrings` would read it
    whenever a class is imported, at twice the cost of all else about it.
    """
    found: dict[str, str] = {}
    for base in reversed(options.__mro__):
        if issubclass(base, Options):
            (declared,) = ast.parse(dedent(inspect.getsource(base))).body
            assert isinstance(declared, ast.ClassDef)
            for field, below in pairwise(declared.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        found[name] = " ".join(text.split())
    return found


class Chosen(Options):
    """Options that a configuration chooses by their ``name``.

    A built-in class declares its own as a `Literal`. Any other leaves the field alone, and is
    called by the name that chose it, or else by where it is: ``package.module:Class``.
    """

    name: Any = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "name" in given or cls.model_fields["name"].default:
            return given
        return {**given, "name": f"{cls.__module__}:{cls.__qualname__}"}


@dataclass(frozen=True)
class Tagged:
    """The tag of a union's member: the value of ``key``, or ``default`` where that is left out."""

    key: str
    default: str
    __name__ = "tag"  # pydantic tells callables by it

    def __call__(self, value: Any) -> Any:
        """The tag of a dictionary or of an options object."""
        known = isinstance(value, dict)
        return value.get(self.key, self.default) if known else getattr(value, self.key, None)


def chosen_by(key: str, default: str) -> Discriminator:
    """The discriminator of a union of options by ``key``; ``default`` where it is left out."""
    return Discriminator(Tagged(key, default))


def members(union: Any) -> list[Any]:
    """The option classes of a tagged union."""
    members = [get_args(member)[0] for member in get_args(union) if get_args(member)]
    return [member for member in members if hasattr(member, "model_fields")]
