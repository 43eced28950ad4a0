"""A configuration before it is checked: the file, what is different for one method, overrides.

A *tree* is nested mappings, as YAML has them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from vertizo.config.error_lines import override, read_yaml
from vertizo.core.errors import ConfigError
from vertizo.core.options import TAGS, Options
from vertizo.core.suggestions import nearest
from vertizo.methods.choice import METHODS

Tree = dict[str, Any]
LABEL = re.compile(r"\w[\w.+-]*")


def read(
    path: Path | None, overrides: Sequence[str], variant: str | None, defaults: Options
) -> Tree:
    """The tree of a file, or an empty one, with an entry of ``methods`` and overrides applied.

    Args:
        path: of a YAML file; None for none.
        overrides: ``key=value``, applied last.
        variant: an entry of ``methods`` or a method's name; None for the method that is chosen.
        defaults: what is not set.

    Raises:
        ConfigError: one line that names the file or the option, and what would be right.
    """
    source = "--set" if path is None else str(path)
    tree = {} if path is None else read_yaml(path)
    entries = _entries(tree.pop("methods", {}), source)
    if variant is None:
        chosen = _chosen(tree, overrides, defaults)
        if chosen in entries:
            tree = with_entry(tree, entries[chosen], chosen)
    else:
        if variant not in entries and variant not in METHODS:
            raise ConfigError(f"--methods {variant}: {_unknown(variant, [*entries, *METHODS])}")
        if any(setting.split("=")[0] in ("method", "method.name") for setting in overrides):
            raise ConfigError("--set method.name contradicts --methods; leave one of them out")
        tree = with_entry(tree, entries.get(variant, {}), variant)
    override(tree, overrides, defaults)
    make_absolute(tree, Path.cwd() if path is None else path.parent)
    return tree


def labels(path: Path) -> list[str]:
    """Names of the entries of a file's ``methods`` section."""
    return list(_entries(read_yaml(path).get("methods", {}), str(path)))


def _chosen(tree: Tree, overrides: Sequence[str], defaults: Options) -> str:
    """The method's name once overrides are applied."""
    trial = deepcopy(tree)
    override(trial, overrides, defaults)
    method = trial.get("method")
    return str(method.get("name", "dpzv")) if isinstance(method, dict) else "dpzv"


def _entries(section: Any, source: str) -> dict[str, Tree]:
    """The ``methods`` section, checked as far as its names go."""
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
    """A tree with an entry's keys in place of its own, and the method that it is about."""
    own = entry.get("method", {})
    name = own.get("name", label)
    there = tree.get("method", {})
    if not isinstance(there, dict) or there.get("name", "dpzv") != name:
        there = {}  # keys of another method
    changed = _merged(tree, {key: value for key, value in entry.items() if key != "method"})
    return {**changed, "method": {**there, **own, "name": name}}


def _merged(tree: Tree, own: Tree) -> Tree:
    """A tree with another's keys in place of its own; another choice of option replaces all."""
    merged = dict(tree)
    for key, value in own.items():
        there = merged.get(key)
        chooses = isinstance(value, dict) and any(tag in value for tag in TAGS)
        if isinstance(value, dict) and isinstance(there, dict) and not chooses:
            merged[key] = _merged(there, value)
        else:
            merged[key] = value
    return merged


def _unknown(name: str, known: Sequence[str]) -> str:
    hint = nearest(name, known) or f"; known are {', '.join(known)}"
    return f"there is no method {name!r}{hint}"


def make_absolute(tree: Tree, beside: Path) -> None:
    """Make relative paths absolute, so that the run can go on from any folder.

    Files of a user's models and tables, and folders of checkpoints, are looked for where we are,
    then beside the configuration.
    """
    data = tree.get("data")
    if isinstance(data, dict):
        if isinstance(data.get("root"), str):
            data["root"] = str(Path(data["root"]).expanduser().absolute())
        for key in ("path", "test_path"):
            if isinstance(data.get(key), str):
                data[key] = str(
                    _found(data[key], beside) or Path(data[key]).expanduser().absolute()
                )
        _folder(data, "tokenizer", beside)
    for side, part in (("client", "model"), ("server", "model"), ("server", "encoder")):
        section = tree.get(side)
        model = section.get(part) if isinstance(section, dict) else None
        if isinstance(model, dict):
            _folder(model, "checkpoint", beside)
            _code(model, "path", beside)
    if isinstance(privacy := tree.get("privacy"), dict):
        _code(privacy, "mechanism", beside)
    _names_of_code(tree, beside)


def _names_of_code(tree: Tree, beside: Path) -> None:
    """Make files of code absolute wherever a name chooses an option."""
    _code(tree, "name", beside)
    for value in tree.values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                _names_of_code(part, beside)


def _code(tree: Tree, key: str, beside: Path) -> None:
    """Make the file absolute in ``file.py:name``."""
    if isinstance(tree.get(key), str):
        file, _, name = tree[key].rpartition(":")
        place = _found(file, beside) if file.endswith(".py") else None
        if place is not None:
            tree[key] = f"{place}:{name}"


def _found(text: str, beside: Path) -> Path | None:
    """The absolute path of what is there, here or beside the configuration."""
    here = Path(text).expanduser()
    return next((p.absolute() for p in (here, beside / here) if p.exists()), None)


def _folder(tree: Tree, key: str, beside: Path) -> None:
    """Make a name absolute if it is that of a folder."""
    if isinstance(tree.get(key), str):
        place = _found(tree[key], beside)
        if place is not None and place.is_dir():
            tree[key] = str(place)
