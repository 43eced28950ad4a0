"""The public names of the package in plain Markdown: signature, purpose, arguments, members."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import vertizo
from vertizo.core.options import Options

SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$", re.MULTILINE)
ENTRY = re.compile(r"^    (\S[^:\n]*): (.*(?:\n {8}.*)*)", re.MULTILINE)


def page() -> str:
    """A section for each name that `vertizo` exports."""
    names = sorted((n for n in vertizo.__all__ if not n.startswith("_")), key=str.lower)
    lines = [f"| [`{name}`](#{name.lower()}) | {_purpose(name)} |" for name in names]
    table = "\n".join(["| name | |", "|---|---|", *lines])
    sections = ("\n\n".join(_section(name)) for name in names)
    return "\n\n".join([table, *sections]) + "\n"


def _section(name: str) -> Iterator[str]:
    value = getattr(vertizo, name)
    yield f"### {name}"
    if not inspect.isclass(value):
        yield _code(f"vertizo.{name}", value)
        yield from _text(value)
        return
    config = issubclass(value, Options)  # its keys are a page of their own
    if not config and not issubclass(value, BaseException):
        yield _code(f"vertizo.{name}", value)
    yield from _text(value)
    if config:
        yield "[Configuration](configuration.md) has its keys."
    elif fields := _fields(value):
        yield "\n".join(f"* `{field}`: {_line(words)}" for field, words in fields)
    members = list(_members(value))
    if config:
        members = [(key, member) for key, member in members if key == "to_yaml"]
    if members:
        yield "Members:"
        yield "\n".join(f"* {_member(name, key, member)}" for key, member in members)


def _code(name: str, value: Any) -> str:
    """A signature as a block of code, a line for each few parameters."""
    return f"```python\n{_signature(name, value, 88)}\n```"


def _signature(name: str, value: Any, width: int = 0) -> str:
    """A call with defaults, without types."""
    found = inspect.signature(value).parameters.values()
    bare = [_bare(each) for each in found if each.name not in ("self", "cls")]
    text = str(inspect.Signature(bare))
    if not width or len(name + text) <= width:
        return name + text
    lines = textwrap.fill(text[1:-1], width - 4, break_long_words=False, break_on_hyphens=False)
    return f"{name}(\n{textwrap.indent(lines, '    ')},\n)"


class _Named:
    """A default that is written as its name: a function would be with where it lies in memory."""

    def __init__(self, value: Any) -> None:
        self._name = value.__name__

    def __repr__(self) -> str:
        return str(self._name)


def _bare(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter without its type."""
    default = parameter.default
    shown = _Named(default) if inspect.isfunction(default) else default
    return parameter.replace(annotation=inspect.Parameter.empty, default=shown)


def _purpose(name: str) -> str:
    return _line((inspect.getdoc(getattr(vertizo, name)) or "").split("\n\n")[0])


def _text(value: Any) -> Iterator[str]:
    """A docstring: its sentences, then a list for each of its sections."""
    text = inspect.getdoc(value) or ""
    words, *rest = SECTION.split(text)
    for part in words.strip().split("\n\n"):
        yield f"```python\n{part}\n```" if part.startswith(">>>") else _line(part)
    for kind, body in zip(rest[::2], rest[1::2], strict=True):
        entries, after = _entries(body)
        if entries:
            title = "" if kind == "Args" else f"{kind}:\n\n"
            yield title + "\n".join(f"* `{key}`: {_line(about)}" for key, about in entries)
        if after:
            yield f"```python\n{after}\n```" if after.startswith(">>>") else _line(after)


def _entries(body: str) -> tuple[list[tuple[str, str]], str]:
    """A section's entries, and what stands behind it."""
    indented = re.match(r"(?:\n(?: {4}.*)?)*", body)
    assert indented is not None
    return ENTRY.findall(indented[0]), body[indented.end() :].strip()


def _line(text: str) -> str:
    """A paragraph of a docstring as Markdown has it."""
    return " ".join(text.split()).replace("``", "`")


def _fields(value: type) -> list[tuple[str, str]]:
    """What stands below each field of a class in its source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(tree, ast.ClassDef)
    found = []
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        about = below.value if isinstance(below, ast.Expr) else None
        if isinstance(field, ast.AnnAssign) and isinstance(about, ast.Constant):
            found.append((ast.unparse(field.target), str(about.value)))
    return found


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that the package itself defines."""
    seen = set()
    for base in (b for b in value.__mro__ if b.__module__.startswith("vertizo.")):
        for key, member in vars(base).items():
            made = isinstance(member, (classmethod, property)) or inspect.isfunction(member)
            scikit = key.endswith("_request")
            if made and not key.startswith("_") and not scikit and key not in seen:
                seen.add(key)
                yield key, member


def _member(name: str, key: str, member: Any) -> str:
    """A method or property in a line: how it is called, and what it does."""
    about = _line((inspect.getdoc(member) or "").split("\n\n")[0])
    if isinstance(member, property):
        return f"`.{key}`: {about}"
    if isinstance(member, classmethod):
        return f"`{_signature(f'{name}.{key}', member.__func__)}`: {about}"
    return f"`{_signature(f'.{key}', member)}`: {about}"
