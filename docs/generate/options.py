"""Options as tables: keys, what they may be, their defaults and meanings, read off the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from vertizo.config.schema import ExperimentConfig
from vertizo.core.options import TAGS, Options, members, texts
from vertizo.methods.choice import METHODS
from vertizo.network.serving.options import ScoringOptions
from vertizo.ops.agent.jobs.states import AFTER, MEANING
from vertizo.ops.agent.options import JobOptions, LabelHolderAgent, MemberAgent

WORDS = {int: "integer", float: "number", str: "text", bool: "`true` or `false`", Path: "path"}
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def method_table(name: str) -> str:
    """The options of a method, without its name."""
    rows = [row for row in _rows(METHODS[name], "method.") if row[0] != "`method.name`"]
    if not rows:
        return "None of its own.\n"
    return table(("key", "may be", "default", "meaning"), rows)


def configuration() -> str:
    """Every key of a configuration, by section."""
    parts = ["## At the top\n", table(HEADER, list(_rows(ExperimentConfig, "", nested=False)))]
    for section, field in ExperimentConfig.model_fields.items():
        if section != "method" and _is_options(field.annotation):
            parts += [f"## `{section}`\n", *_section(field.annotation, f"{section}.")]
    return re.sub(r"\bdocs/([a-z-]+)\.md", r"[\1](\1.md)", "\n".join(parts))


def agent() -> str:
    """The keys of an agent's file, of both parties."""
    parts = []
    for who, whose in (("label holder", LabelHolderAgent), ("member", MemberAgent)):
        parts.append(f"**At the {who}**\n")
        rows: list[tuple[str, str, str, str]] = []
        for section in ("agent", "policy"):
            rows += _rows(whose.model_fields[section].annotation, f"{section}.")
        parts.append(table(HEADER, [*rows, *_rows(whose, "")]))
    return "\n".join(parts)


def scoring() -> str:
    """The keys of the section ``scoring``."""
    return table(HEADER, list(_rows(ScoringOptions, "scoring.")))


def job() -> str:
    """The keys of a submitted file's own section."""
    return table(HEADER, list(_rows(JobOptions, "job.")))


def states() -> str:
    """The states of a job, and what may follow each."""
    rows = [(f"`{s}`", MEANING[s], ", ".join(AFTER[s]) or "nothing") for s in AFTER]
    return table(("state", "meaning", "what may follow"), rows)


HEADER = ("key", "may be", "default", "meaning")


def _section(annotation: Any, prefix: str) -> Iterator[str]:
    """The tables of a section, and of what is chosen in it by name."""
    yield table(HEADER, list(_rows(annotation, prefix)))
    described: list[Any] = []
    for name, field in annotation.model_fields.items():
        key = prefix + name
        if options := _choices(field):
            if options in described:
                yield f"The keys of `{key}` are the same.\n"
                continue
            described.append(options)
            for option in options:
                tag = next(tag for tag in TAGS if tag in option.model_fields)
                chosen = option.model_fields[tag].default
                summary = (option.__doc__ or "").strip().splitlines()[0].replace("``", "`")
                rows = [row for row in _rows(option, f"{key}.") if row[0] != f"`{key}.{tag}`"]
                yield f"**`{key}.{tag}: {chosen}`**: {summary}\n"
                if rows:
                    yield table(HEADER, rows)
        elif _is_options(field.annotation):
            yield from _section(field.annotation, f"{key}.")


def _rows(
    options: type[Options], prefix: str, *, nested: bool = True
) -> Iterator[tuple[str, str, str, str]]:
    for name, field in options.model_fields.items():
        if _is_options(field.annotation):
            continue
        choices = _choices(field)
        if choices and not nested:
            continue
        if choices:
            tag = next(tag for tag in TAGS if tag in choices[0].model_fields)
            may_be = ", ".join(f"`{option.model_fields[tag].default}`" for option in choices)
            default = getattr(field.get_default(call_default_factory=True), tag)
            key = f"{prefix}{name}.{tag}"
        else:
            may_be, default = _may_be(field), field.get_default(call_default_factory=True)
            key = prefix + name
        meaning = texts(options).get(name, "").replace("``", "`")
        yield f"`{key}`", may_be, _shown(default), meaning


def _choices(field: FieldInfo) -> list[Any]:
    """The options of which a name chooses one, if the field is such a choice."""
    return (
        members(field.annotation)
        if field.discriminator
        or any(type(extra).__name__ == "Discriminator" for extra in field.metadata)
        else []
    )


def _is_options(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Options)


def _may_be(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(limit, name)}"
        for limit in field.metadata
        for name, sign in BOUNDS.items()
        if getattr(limit, name, None) is not None
    ]
    return ", ".join([_kind(field.annotation), *bounds])


def _kind(annotation: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin is Annotated:
        bounds = [
            f"{sign} {getattr(limit, name)}"
            for limit in inner[1:]
            for name, sign in BOUNDS.items()
            if getattr(limit, name, None) is not None
        ]
        return ", ".join([_kind(inner[0]), *bounds])
    if origin in (Union, UnionType):
        kinds = [_kind(each) for each in inner if each is not NoneType]
        separator = ", " if kinds[0].startswith("`") else " or "
        return separator.join(kinds)
    if origin in (list, tuple):
        return f"list of: {_kind(inner[0])}"
    if origin is dict:
        return f"{_kind(inner[0])} → {_kind(inner[1])}"
    if _is_options(annotation):
        has_name = any(tag in annotation.model_fields for tag in TAGS)
        return f"`{_name(annotation)}`" if has_name else "keys and values"
    return WORDS.get(annotation, "any")


def _name(option: Any) -> str:
    """What chooses an option."""
    return str(next(option.model_fields[tag].default for tag in TAGS if tag in option.model_fields))


def _shown(default: Any) -> str:
    match default:
        case None:
            return "unset"
        case _ if default is PydanticUndefined:
            return "must be given"
        case True | False:
            return f"`{str(default).lower()}`"
        case "":
            return "none"
        case list() | dict() | tuple() if not default:
            return "none"
        case tuple() | list():
            names = (
                _name(type(each)) if isinstance(each, Options) else str(each) for each in default
            )
            return f"`[{', '.join(names)}]`"
        case _:
            return f"`{default}`"


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )
