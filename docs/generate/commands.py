"""The command line as a page, read off the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from vertizo.cli.main import LazyGroup, program


def programs() -> Iterator[tuple[list[str], Any]]:
    """Every command with its words, groups before what is in them."""
    yield from _below(["vertizo"], program())


def _below(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    yield words, command
    if isinstance(command, LazyGroup):
        for name in command.entries:
            yield from _below([*words, name], command.get_command(None, name))


def page() -> str:
    """A section for each command: what it does, its arguments, its options."""
    parts = []
    for words, command in programs():
        help_ = " ".join((command.help or "").split())
        inner = command.entries if isinstance(command, LazyGroup) else None
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
    if not parameter.required and default not in (None, False, ""):
        if parameter.is_flag if parameter.param_type_name == "option" else False:
            default = parameter.opts[0]
        notes.append(f"default `{default}`")
    text = _quoted(" ".join((parameter.help or "").split()))
    return f"* `{name}`: {text}" + (f" ({'; '.join(notes)})" if notes else "")


def _value(parameter: Any) -> str:
    """What stands for an option's value."""
    if parameter.metavar:
        return str(parameter.metavar)
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    kinds = {int: "INTEGER", float: "NUMBER"}
    return kinds.get(annotation) or str(parameter.name).upper()


def _quoted(text: str) -> str:
    """Text of the command line, whose signs Markdown would take for its own."""
    return text.replace("*", "\\*").replace("<", "\\<").replace("[", "\\[")
