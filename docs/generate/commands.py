"""The command line as a page, read off the program."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from vertizo.cli.main import app


def programs() -> Iterator[tuple[list[str], Any]]:
    """Every command with its words, groups before what is in them."""
    yield from _below(["vertizo"], get_command(app))


def _below(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _below([*words, name], inner)


def page() -> str:
    """A section for each command: what it does, its arguments, its options."""
    parts = []
    for words, command in programs():
        help_ = " ".join((command.help or "").split())
        inner = getattr(command, "commands", None)
        if len(words) > 1:
            parts.append(f"## {' '.join(words)}\n\n{_quoted(help_)}\n")
        if inner is not None and len(words) > 1:
            parts.append("Commands: " + ", ".join(f"`{name}`" for name in inner) + ".\n")
            continue
        if inner is None:
            parts.append(f"```\n{_usage(words, command)}\n```\n")
        entries = [_entry(parameter) for parameter in command.params if not parameter.hidden]
        entries = [entry for entry in entries if not entry.startswith("* `--help`")]
        if entries:
            parts.append("\n".join(entries) + "\n")
    return "\n".join(parts)


def _usage(words: list[str], command: Any) -> str:
    given = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
            given.append(name if parameter.required else f"[{name}]")
        elif parameter.required:
            given.append(f"{parameter.opts[-1]} {_value(parameter)}")
    return " ".join([*words, *given, "[options]"])


def _entry(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
    else:
        name = ", ".join([*parameter.opts, *parameter.secondary_opts])
        if not parameter.is_flag:
            name = f"{name} {_value(parameter)}"
    notes = []
    if parameter.required:
        notes.append("must be given")
    default = parameter.default
    if isinstance(default, Enum):
        default = default.value
    if not parameter.required and default not in (None, False, ""):
        if parameter.is_flag if parameter.param_type_name == "option" else False:
            default = parameter.opts[0]
        notes.append(f"default `{default}`")
    if parameter.param_type_name == "option" and parameter.multiple:
        notes.append("may be repeated")
    text = _quoted(" ".join((parameter.help or "").split()))
    return f"* `{name}`: {text}" + (f" ({'; '.join(notes)})" if notes else "")


def _value(parameter: Any) -> str:
    """What stands for an option's value."""
    if parameter.metavar:
        return str(parameter.metavar)
    annotation = parameter.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(member.value for member in annotation)
    kinds = {int: "INTEGER", float: "NUMBER"}
    return kinds.get(annotation) or str(parameter.name).upper()


def _quoted(text: str) -> str:
    """Text of the command line, whose signs Markdown would take for its own."""
    return text.replace("*", "\\*").replace("<", "\\<").replace("[", "\\[")
