"""Reading and writing of YAML, ``key=value`` settings, and error lines for invalid ones."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vertizo.config.environment import set_by, source_of
from vertizo.core.errors import ConfigError
from vertizo.core.names import AUTO
from vertizo.core.options import TAGS, Options, members
from vertizo.core.plugins.registry import FOREIGN
from vertizo.core.text.suggestions import (
    OFFERED,
    likeness,
    nearest,
    nearest_file,
    question,
    similar,
)

Tree = dict[str, Any]
TABLES = (".csv", ".gz", ".xlsx", ".parquet")
"""Endings of files that are tables, not configurations."""
SHORT = {
    "lr": "learning_rate",
    "eps": "epsilon",
    "sep": "delimiter",
    "target": "label",
    "file": "path",
    "optimiser": "optimizer",
}
"""Names that other programs use → the keys here."""
EXPECTED = {
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "a boolean: true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "path_type": "a path",
    "string_type": "a string",
    "no_number": "a number, not true or false",
    "finite_number": "a finite number",
}
"""Pydantic's type of error → the value that the error line asks for."""


class _Loader(yaml.SafeLoader):
    """Strict YAML: a key may not occur twice, 1e-3 is a number, 010 and 1:30 are texts."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        problem = None
        if not isinstance(key, Hashable):
            problem = f"{key!r} cannot be a key"
        elif key in seen:
            problem = f"the key {key!r} occurs twice"
        if problem is not None:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _number(text: str) -> float | None:
    """Parse a number that YAML 1.1 reads as text, such as 1e-3; None for other texts."""
    with suppress(ValueError):
        return float(text) if text[:1] in "+-.0123456789" else None
    return None


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    text = str(loader.construct_scalar(node))
    number = _number(text) if node.style is None else None
    return text if number is None else number


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """Read a number, but 010 (a code) and 1:30 (a time) as texts, which YAML 1.1 does not."""
    text = str(loader.construct_scalar(node))
    if ":" in text or re.fullmatch(r"[-+]?0[0-9_]+", text):
        return text
    return getattr(loader, f"construct_yaml_{node.tag.rpartition(':')[2]}")(node)


def _as_text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _as_text)  # nothing here is a date
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _decimal)
_Loader.add_constructor("tag:yaml.org,2002:float", _decimal)
_Loader.add_constructor("tag:yaml.org,2002:str", _scalar)


class _Dumper(yaml.SafeDumper):
    """A writer of YAML that `_Loader` reads back unchanged: texts like numbers are quoted.

    The rarer line ends of YAML would be read back as spaces; in double quotes they are escaped.
    """


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    style = None if _number(value) is None else "'"
    if any(end in value for end in "\x85\u2028\u2029"):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


class _InLines(_Dumper):
    """A `_Dumper` that writes each short list in one line."""


_InLines.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, True)
)


def write_yaml(tree: Tree, *, in_lines: bool = False) -> str:
    """Write a tree as YAML that `read_yaml` reads; ``in_lines`` puts short lists in one line."""
    dumper = _InLines if in_lines else _Dumper
    return yaml.dump(tree, Dumper=dumper, sort_keys=False, allow_unicode=True)


def parse_yaml(text: str) -> Any:
    """Parse a YAML text; YAMLError or ValueError where it is none."""
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> Tree:
    """Read the keys and values of a YAML file; ConfigError names the line where known."""
    if path.suffix.lower() in TABLES and path.is_file():
        raise ConfigError(
            f"{path} is a table, not a configuration; `vertizo init` writes one, whose data.path "
            "names the table"
        )
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: {error.strerror}{nearest_file(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file") from None
    except RecursionError:
        raise ConfigError(f"{path}: sections are nested too deep") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        if "'\\t'" in problem:
            problem = "a tab; YAML is indented by spaces alone"
        begun = getattr(error, "context_mark", None)
        if begun and mark and begun.line != mark.line:
            problem += f" (what is not closed may begin in line {begun.line + 1})"
        raise ConfigError(f"{path}: not YAML{where}: {problem}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        kind = type(tree).__name__
        article = "an" if kind[0] in "aeiou" else "a"
        raise ConfigError(f"{path}: holds {article} {kind}; keys and values were expected")
    for key in tree:
        if not isinstance(key, str):
            raise ConfigError(f"{path}: unknown key {key!r}; keys are names")
    return tree


def override(tree: Tree, settings: Sequence[str], defaults: Options) -> None:
    """Apply ``key=value`` settings to a tree: keys that choose an option first, then all others.

    ConfigError for one of another form.
    """
    parsed = [_setting(setting) for setting in settings]
    for keys, value in sorted(parsed, key=lambda setting: setting[0][-1] not in TAGS):
        _set(tree, keys, value, defaults)


def _setting(text: str) -> tuple[list[str], Any]:
    key, separator, value = text.partition("=")
    if not separator or not all(key.split(".")):
        raise ConfigError(f"{source_of(text)}: write key=value, for example epochs=20")
    try:
        return key.split("."), parse_yaml(value)
    except (yaml.YAMLError, ValueError):
        raise ConfigError(f"{source_of(text)}: {value!r} is not a YAML value") from None


def _set(tree: Tree, keys: Sequence[str], value: Any, defaults: Options) -> None:
    """Set a value in a tree; a new choice of option drops the keys of the previous one."""
    *parents, last = keys
    node, annotation = tree, None
    default: Any = defaults
    for parent in parents:
        if not isinstance(node.get(parent), dict):
            node[parent] = {}
        node = node[parent]
        fields = getattr(type(default), "model_fields", {})
        annotation = fields[parent].annotation if parent in fields else None
        default = getattr(default, parent, None)
    chooses = last in TAGS and hasattr(default, last) and members(annotation)
    if chooses and node.get(last, getattr(default, last)) != value:
        node.clear()
    node[last] = value


def refusal(
    problem: ValidationError, root: type[Options], source: str, settings: Sequence[str]
) -> ConfigError:
    """The error for the first wrong key; it names the file, or the setting that set the key."""
    error = problem.errors()[0]
    path, *_ = _follow(error["loc"], root)
    places = [path]
    if error["type"].startswith("union_tag"):  # the path leaves out the key that chooses
        places += [[*path, tag] for tag in TAGS]
    elif isinstance(error["input"], dict):  # somebody set a key below what has none
        places += [[*path, key] for key in error["input"]]
    place = next(filter(None, (set_by(each, settings) for each in places)), source)
    return ConfigError(f"{place}: {explain(problem, root)}")


def explain(problem: ValidationError, root: type[Options]) -> str:
    """Explain an error in one line: the first wrong key, its value, what would be right."""
    error = problem.errors()[0]
    more = f" (and {problem.error_count() - 1} more)" if problem.error_count() > 1 else ""
    return " ".join(_line(error, root).split()) + more


def mistake(given: Tree, root: type[Options]) -> str | None:
    """What is wrong with a tree whatever further keys are set to; None if nothing is."""
    try:
        root.model_validate(given)
    except ValidationError as problem:
        if problem.errors()[0]["type"] not in ("value_error", "missing"):
            return explain(problem, root)
    return None


def _line(error: ErrorDetails, root: type[Options]) -> str:
    path, known, choice = _follow(error["loc"], root)
    key = ".".join(path) or "configuration"
    given, kind, context = error["input"], error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key {key!r}{_meant(path, known, root)}"
    if kind.startswith("union_tag"):
        tag = next((tag for tag in TAGS if isinstance(given, dict) and tag in given), None)
        offered = [AUTO] if path == ["method"] else []
        if (given if tag is None else given[tag]) in offered:
            return (
                f"{key}.name is 'auto', which is for `vertizo train`, `vertizo worth` and the "
                "estimators; name a method here, such as the one in a run's config.yaml"
            )
        if tag is None:
            names = similar(given, _tags(choice) + offered) if isinstance(given, str) else []
            such = f", such as {key}.name={(names or [given])[0]}" if isinstance(given, str) else ""
            return f"{key} is {given!r}; keys and values were expected there{such}"
        known = _tags(choice) + offered
        expected = ", ".join(map(repr, known)) or context["expected_tags"]
        hint = nearest(str(given[tag]), known)
        return f"{key}.{tag} is {given[tag]!r}{hint or ';'} known are {expected}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key} is {given!r}; keys and values were expected there"
    if kind == "invalid_key":
        return f"unknown key {key!r}; keys are names"
    if kind == "not_found":
        return f"{key}.{context['line']}"
    if kind == "whole_line":
        return str(context["line"])
    if kind == "missing":
        return f"{key} is missing"
    if kind == "value_error":
        return str(context["error"])
    hint = ""
    if kind == "literal_error" and isinstance(given, str):
        hint = nearest(given, re.findall(r"'([^']*)'", str(context["expected"])))
    return f"{key} is {given!r}; it must be {right_for(error)}{hint}"


def usual(key: str) -> str:
    """Translate a key's last part from another program's name (`SHORT`).

    >>> usual("client.optimizer.lr")
    'client.optimizer.learning_rate'
    """
    *above, last = key.split(".")
    return ".".join([*above, SHORT.get(last, last)])


def _meant(path: Sequence[str], known: Sequence[str], root: type[Options]) -> str:
    """The end of an error line about an unknown key: like keys beside it, or it in a section."""
    *above, last = path
    if (named := usual(last)) != last and named in known:
        return question([named])
    last = named
    here = "".join(f"{part}." for part in above)
    elsewhere = [place for place in dict.fromkeys(_places(root, last)) if place.startswith(here)]
    elsewhere = [place for place in elsewhere if place != here + last]
    if not any(likeness(last, each) > 0.9 for each in known) and elsewhere:
        return question(elsewhere[:OFFERED])
    return nearest(last, known) or f"; known are {', '.join(known)}"


def _places(option: Any, name: str) -> Iterator[str]:
    """All paths in a tree of options that end in that key."""
    for field, info in getattr(option, "model_fields", {}).items():
        if field == name:
            yield field
        for below in (info.annotation, *members(info.annotation)):
            yield from (f"{field}.{place}" for place in _places(below, name))


def right_for(error: ErrorDetails) -> str:
    """The valid values of an error's key, in words to follow "it must be"."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "too_short":
        return f"a list of at least {context['min_length']}"
    return EXPECTED.get(kind) or error["msg"].removeprefix("Input should be ")


def _follow(location: Sequence[str | int], root: type[Options]) -> tuple[list[str], list[str], Any]:
    """The path of keys to an error, the keys known beside the last, and the annotation there.

    Pydantic's own location also has the tag of a chosen option, which is no key.
    """
    path: list[str] = []
    here: Any = root
    known: list[str] = []
    for part in location:
        fields = getattr(here, "model_fields", {})
        options = members(here)
        option = next((option for option in options if _tag(option) == part), None)
        if options and option is None:
            option = FOREIGN.get(str(part))
        if part in fields:
            known, here = list(fields), fields[part].annotation
            path.append(str(part))
        elif option is not None:
            here = option
        elif part != "[key]":
            known, here = list(fields), _in_mapping(here)
            path.append(str(part))
    return path, known, here


def _in_mapping(annotation: Any) -> Any:
    """The type of a mapping's values; None for other annotations."""
    if get_origin(annotation) is not dict:
        return None
    value = get_args(annotation)[1]
    return get_args(value)[0] if get_origin(value) is Annotated else value


def _tags(choice: Any) -> list[str]:
    return [str(name) for option in members(choice) if (name := _tag(option)) is not None]


def _tag(option: Any) -> Any:
    return next((option.model_fields[t].default for t in TAGS if t in option.model_fields), None)
