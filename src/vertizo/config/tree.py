"""Configuration trees before validation: files, entries for single methods, overrides, paths.

A *tree* is nested mappings, as YAML has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from vertizo.config.environment import source_of
from vertizo.config.error_lines import override, read_yaml
from vertizo.core.errors import ConfigError
from vertizo.core.options import TAGS, Options
from vertizo.core.text.suggestions import nearest
from vertizo.methods.choice import METHODS

Tree = dict[str, Any]
LABEL = re.compile(r"\w[\w.+-]*")


def read(
    path: Path | Tree | None, overrides: Sequence[str], variant: str | None, defaults: Options
) -> Tree:
    """Read the tree of a file, or copy one, and apply an entry of ``methods`` and overrides.

    The entry is that of ``variant``, which may also be a method's name, or else that of the chosen
    method; ``overrides`` are ``key=value``, applied last. ``defaults`` tell the chosen options.
    ConfigError names the file or the option, and what would be right.
    """
    source, tree = called(path), _tree(path)
    entries = _entries(tree.pop("methods", {}), source)
    if variant is None:
        chosen = _chosen(tree, overrides, defaults)
        if chosen in entries:
            tree = with_entry(tree, entries[chosen], chosen)
    else:
        if variant not in entries and variant not in METHODS:
            raise ConfigError(f"--methods {variant}: {_unknown(variant, [*entries, *METHODS])}")
        names = [s for s in overrides if s.split("=")[0] in ("method", "method.name")]
        if names:
            raise ConfigError(f"{source_of(names[0])} contradicts --methods; leave one of them out")
        tree = with_entry(tree, entries.get(variant, {}), variant)
    override(tree, overrides, defaults)
    make_absolute(tree, path.parent if isinstance(path, Path) else Path.cwd())
    return tree


def labels(path: Path | Tree | None) -> list[str]:
    """Names of the entries in the ``methods`` section of a file or a tree."""
    return list(_entries(_tree(path).get("methods", {}), called(path)))


def called(path: Path | Tree | None) -> str:
    """The name in error lines of a file, of a tree, or of neither."""
    return "configuration" if isinstance(path, dict) else str(path or "--set")


def _tree(path: Path | Tree | None) -> Tree:
    return read_yaml(path) if isinstance(path, Path) else deepcopy(path or {})


def _chosen(tree: Tree, overrides: Sequence[str], defaults: Options) -> str:
    """The method's name once overrides are applied."""
    override(trial := deepcopy(tree), overrides, defaults)
    method = trial.get("method")
    return str(method.get("name", "dpzv")) if isinstance(method, dict) else "dpzv"


def _entries(section: Any, source: str) -> dict[str, Tree]:
    """Check the names in a ``methods`` section and return it; ConfigError for a wrong one."""
    if not isinstance(section, dict) or not all(isinstance(v, dict) for v in section.values()):
        raise ConfigError(f"{source}: methods must hold a method's name and its own keys below it")
    for label, entry in section.items():
        if not isinstance(label, str) or LABEL.fullmatch(label) is None:
            raise ConfigError(
                f"{source}: methods has an entry {label!r}; names are letters, digits and -._+"
            )
        method = entry.get("method", {})
        if not isinstance(method, dict):
            raise ConfigError(
                f"{source}: methods.{label}.method is {method!r}; "
                "keys and values were expected there"
            )
        if label not in METHODS and "name" not in method:
            raise ConfigError(
                f"{source}: methods.{label}: {_unknown(label, list(METHODS))}; "
                f"or give methods.{label}.method.name"
            )
    return section


def with_entry(tree: Tree, entry: Tree, label: str) -> Tree:
    """Merge an entry of ``methods`` into a tree, and choose the entry's method."""
    own = entry.get("method", {})
    name = own.get("name", label)
    there = tree.get("method", {})
    if not isinstance(there, dict) or there.get("name", "dpzv") != name:
        there = {}  # keys of another method
    changed = merge(tree, {key: value for key, value in entry.items() if key != "method"})
    return {**changed, "method": {**there, **own, "name": name}}


def merge(tree: Tree, own: Tree) -> Tree:
    """Merge ``own`` over ``tree``, section by section; one that chooses an option replaces all."""
    merged = {**tree, **own}
    for key in tree.keys() & own.keys():
        there, value = tree[key], own[key]
        if (
            isinstance(there, dict)
            and isinstance(value, dict)
            and not any(t in value for t in TAGS)
        ):
            merged[key] = merge(there, value)
    return merged


def _unknown(name: str, known: Sequence[str]) -> str:
    hint = nearest(name, known) or f"; known are {', '.join(known)}"
    return f"there is no method {name!r}{hint}"


def make_absolute(tree: Tree, beside: Path) -> None:
    """Make relative paths absolute, so that the run can be continued from any folder.

    Files of a user's models and tables, and folders of checkpoints, are looked for in the current
    folder, then in ``beside``, the configuration's.
    """
    for (*sections, key), rule in PATHS.items():
        node: Any = tree
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if isinstance(node, dict) and isinstance(node.get(key), str | Path):
            node[key] = rule(str(node[key]), beside)
    _names_of_code(tree, beside)


def _names_of_code(tree: Tree, beside: Path) -> None:
    """Make ``file.py:name`` absolute wherever a ``name`` chooses an option."""
    if isinstance(tree.get("name"), str):
        tree["name"] = _code(tree["name"], beside)
    for value in tree.values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                _names_of_code(part, beside)


def _found(text: str, beside: Path) -> Path | None:
    """The absolute path of an existing file or folder, here or in ``beside``; None if missing."""
    here = Path(text).expanduser()
    return next((p.absolute() for p in (here, beside / here) if p.exists()), None)


def _absolute(text: str, _: Path) -> str:
    return str(Path(text).expanduser().absolute())


def _file(text: str, beside: Path) -> str:
    return str(_found(text, beside) or _absolute(text, beside))


def _folder(text: str, beside: Path) -> str:
    """Make a name absolute if it is that of a folder; any other stays as it is."""
    place = _found(text, beside)
    return str(place) if place is not None and place.is_dir() else text


def _code(text: str, beside: Path) -> str:
    """Make the file of ``file.py:name`` absolute if it exists; other names stay."""
    file, _, name = text.rpartition(":")
    place = _found(file, beside) if file.endswith(".py") else None
    return text if place is None else f"{place}:{name}"


PATHS: dict[tuple[str, ...], Callable[[str, Path], str]] = {
    ("data", "root"): _absolute,
    ("data", "path"): _file,
    ("data", "test_path"): _file,
    ("data", "tokenizer"): _folder,
    ("data", "encoder"): _folder,
    ("privacy", "mechanism"): _code,
}
for _model in (("client", "model"), ("server", "model"), ("server", "encoder")):
    PATHS |= {(*_model, "checkpoint"): _folder, (*_model, "path"): _code}
PATHS |= {(side, "optimizer", "regularizer", "path"): _code for side in ("client", "server")}
"""Path of keys that name a file or folder → the function that makes them absolute."""
