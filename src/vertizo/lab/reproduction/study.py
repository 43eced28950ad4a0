"""The configuration of a study: one table or figure of a paper, with its published numbers.

A study is a YAML file in `studies/`, a link to ``experiments/papers`` that the package includes.
Its section ``quick`` has the same keys again, with the smaller values of the quick form; a null
there removes a key. ``base`` names another study whose keys it begins with, so that figures that
were drawn from the runs of a table share its runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, PositiveInt, ValidationError, model_validator

from vertizo.config.error_lines import explain, read_yaml
from vertizo.config.tree import LABEL
from vertizo.core.errors import ConfigError
from vertizo.core.options import Options
from vertizo.core.text.suggestions import nearest
from vertizo.lab.reproduction.figures import USUAL, FigureChoice

Tree = dict[str, Any]
FOLDER = Path(__file__).with_name("studies")
ENDINGS = (".yaml", ".yml")
"""Endings of a user's own file, in place of a study's name."""
SCRIPTS = {
    "dpzv-figure4": "experiments/client_memory.py",
    "theory-scaling": "experiments/growth.py",
}
"""Study that has no file → the script of the repository that measures it."""
Published = float | str
"""A number in the figure's unit, or words where the paper has no number."""


class CellConfig(Options):
    """What is different for one row in one column."""

    settings: Tree = Field(default_factory=dict)
    published: Published | None = None
    controls: list[Literal["frozen", "random", "label-free"]] | None = None
    """Of a row with controls, those of this cell; unset: all. What is the same in every column is
    run in one."""
    skip: str | None = None
    """Why it is not run."""


class _Row(Options):
    """One line of a table."""

    words: str
    """What it is called."""
    published: dict[str, Published] = Field(default_factory=dict)
    """Column → what the paper has there."""


class RowConfig(_Row):
    """One line of a table, or one curve."""

    settings: Tree = Field(default_factory=dict)
    """Unset ones are the study's."""
    cells: dict[str, CellConfig] = Field(default_factory=dict)
    """Column → what is different there."""
    controls: bool = False
    """Also with frozen clients, with random updates and without labels; without labels always
    where an ε holds."""
    seeds: PositiveInt | None = None
    """Unset: the study's."""
    skip: str | None = None
    """Why it is not run."""


class ColumnConfig(Options):
    """One figure of every row; columns without settings of their own share a row's runs."""

    words: str
    settings: Tree = Field(default_factory=dict)
    figure: FigureChoice = USUAL
    runs: str | None = None
    """The column whose runs it reads; unset: its own."""
    skip: str | None = None
    """Why it is not run."""
    at: float | None = None
    """Where it stands on the axis of a sweep."""
    tick: str | None = None
    """What is written there, if not the number."""


class PanelConfig(Options):
    """One picture of curves."""

    words: str
    x: Literal["epoch", "round", "megabytes", "megabytes-up", "megabytes-down"] = "epoch"
    y: Literal["accuracy", "loss", "train_accuracy", "train_loss"] = "accuracy"
    """accuracy and loss: on validation records, or test records where none were set aside."""
    rows: list[str] | None = None
    """Unset: all."""
    column: str | None = None
    """Whose runs; unset: the first."""
    log_x: bool = False


class Study(Options):
    """What every kind has."""

    title: str
    paper: str
    """Which paper, and where in it."""
    notes: list[str] = Field(default_factory=list)
    """What the paper leaves open and was chosen, and how to read the figures."""
    reduced: str | None = None
    """What is smaller than in the paper; said beside the figures."""
    seeds: PositiveInt = 3


class GridConfig(Study):
    """Rows and columns of figures of training runs; also drawn, as curves or over an axis."""

    kind: Literal["table", "curves", "sweep"] = "table"
    settings: Tree
    rows: dict[str, RowConfig] = Field(min_length=1)
    columns: dict[str, ColumnConfig] = Field(min_length=1)
    panels: list[PanelConfig] = Field(default_factory=list)
    """Of curves."""
    axis: str = ""
    """Of a sweep: what its columns' `at` is."""
    log_x: bool = True
    """Of a sweep."""

    @model_validator(mode="after")
    def _names_exist(self) -> GridConfig:
        """Check that rows, panels and columns name rows and columns that exist."""
        asked = [("row", row, "panels") for panel in self.panels for row in panel.rows or ()]
        asked += [("column", panel.column, "panels") for panel in self.panels if panel.column]
        asked += [("column", each.runs, "columns") for each in self.columns.values() if each.runs]
        for row, line in self.rows.items():
            asked += [("column", name, row) for name in (*line.published, *line.cells)]
        for what, name, where in asked:
            known = self.rows if what == "row" else self.columns
            if name not in known:
                raise ValueError(f"{where} names the {what} {name!r}{nearest(name, list(known))}")
        if self.kind == "sweep" and all(column.at is None for column in self.columns.values()):
            raise ValueError("kind is 'sweep' but no column says at which place of the axis it is")
        if self.kind == "curves" and not self.panels:
            raise ValueError("kind is 'curves' but panels is empty")
        return self


class AttackRowConfig(_Row):
    """Methods that the paper puts into one line; its figures are successes in %."""

    methods: list[str] = Field(min_length=1)


class AttackColumnConfig(Options):
    """One figure of an attack."""

    words: str
    attack: str
    figure: str = "accuracy"
    options: Tree = Field(default_factory=dict)


class AttackConfig(Study):
    """What attacks find, method by method."""

    kind: Literal["attack"] = "attack"
    settings: Tree
    rows: dict[str, AttackRowConfig] = Field(min_length=1)
    columns: dict[str, AttackColumnConfig] = Field(min_length=1)


class IntrinsicRowConfig(_Row):
    """One setting whose estimator is looked at."""

    settings: Tree = Field(default_factory=dict)


class IntrinsicConfig(Study):
    """VFL-CZOFO's intrinsic figures, measured on finished runs."""

    kind: Literal["intrinsic"] = "intrinsic"
    settings: Tree
    rows: dict[str, IntrinsicRowConfig] = Field(min_length=1)
    repeats: PositiveInt = 100


AnyStudy = GridConfig | AttackConfig | IntrinsicConfig
KINDS: dict[str, type[AnyStudy]] = {
    kind: config
    for config in get_args(AnyStudy)
    for kind in get_args(config.model_fields["kind"].annotation)
}


def names() -> list[str]:
    """Return the names of all studies in the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def runs_of(name: str) -> str:
    """Return the name of the study whose runs a study shows: itself, or its first base."""
    return _path(_bases(name)[-1]).stem


def load(name: str, *, quick: bool = False) -> AnyStudy:
    """Load a study by name or from a user's file; ConfigError if it is missing or invalid."""
    tree = reduce(changed, map(_read, reversed(_bases(name))))
    tree.pop("base", None)
    smaller = tree.pop("quick", {})
    if not isinstance(smaller, dict):
        raise ConfigError(f"{_path(name)}: quick is {smaller!r}, no keys and values")
    if quick:
        if not smaller:
            raise ConfigError(f"{name} has no quick form; leave --quick out")
        tree = _pruned(changed(tree, smaller), tree.get("columns"))
    kind = tree.get("kind", "table")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{_path(name)}: kind is {kind!r}; known are {', '.join(KINDS)}")
    try:
        return KINDS[kind].model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{_path(name)}: {explain(error, KINDS[kind])}") from None


def only(study: AnyStudy, columns: Sequence[str]) -> AnyStudy:
    """Skip all columns of a study but these; raise a `ConfigError` for an unknown one."""
    if not isinstance(study, GridConfig):
        raise ConfigError(f"--columns is for tables, sweeps and curves; this one is {study.kind}")
    if not columns:
        raise ConfigError(f"--columns names none; the study has {', '.join(study.columns)}")
    for name in columns:
        if name not in study.columns:
            hint = nearest(name, list(study.columns)) or f"; it has {', '.join(study.columns)}"
            raise ConfigError(f"--columns names no column of the study: {name!r}{hint}")
    left = {
        name: column if name in columns else column.model_copy(update={"skip": "left out"})
        for name, column in study.columns.items()
    }
    return study.model_copy(update={"columns": left})


def _pruned(tree: Tree, before: Any) -> Tree:
    """Remove from a tree's rows what they say of columns that the quick form left out."""
    columns, rows = tree.get("columns"), tree.get("rows")
    if isinstance(before, dict) and isinstance(columns, dict) and isinstance(rows, dict):
        gone = before.keys() - columns.keys()
        for row in rows.values():
            for key in {"published", "cells"} & row.keys():
                if isinstance(row[key], dict):
                    row[key] = {name: each for name, each in row[key].items() if name not in gone}
    return tree


def changed(tree: Tree, own: Tree, *, keep_nulls: bool = False) -> Tree:
    """Replace a tree's keys by another tree's; a null removes a key.

    In settings and in quick forms a null stays, since it removes a key of what they are applied to.

    >>> changed({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": None}})
    {'a': {'b': 3}}
    >>> changed({"settings": {"b": 1}}, {"settings": {"b": None}})
    {'settings': {'b': None}}
    """
    result = dict(tree)
    for key, value in own.items():
        there = result.get(key)
        keep = keep_nulls or key in ("settings", "quick")
        if value is None and not keep_nulls:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = changed(there if isinstance(there, dict) else {}, value, keep_nulls=keep)
        else:
            result[key] = deepcopy(value)
    return result


def _bases(name: str) -> list[str]:
    """List a study, its base, the base of that, and so on; ConfigError for a circle."""
    found = [name]
    while (base := _read(found[-1]).get("base")) is not None:
        if base in found:
            raise ConfigError(f"{_path(found[-1])}: base is {base!r}, which is built on this one")
        found.append(str(base))
    return found


def _read(name: str) -> Tree:
    path = _path(name)
    if name in SCRIPTS:
        raise ConfigError(f"{name} is made by a script: python {SCRIPTS[name]}, in a checkout")
    if not name.endswith(ENDINGS) and name not in names():
        hint = nearest(name, [*names(), *SCRIPTS]) or "; vertizo reproduce --list shows all"
        raise ConfigError(f"there is no table or figure {name!r}{hint}")
    tree = read_yaml(path)
    _check_keys(tree, path)
    return tree


def _check_keys(tree: Tree, path: Path) -> None:
    """Raise a `ConfigError` for a key that is no name, as after a comma in an unquoted text."""
    for key, value in tree.items():
        if not isinstance(key, str) or LABEL.fullmatch(key) is None:
            raise ConfigError(f"{path}: unknown key {key!r}; a text with a comma needs quotes")
        if isinstance(value, dict):
            _check_keys(value, path)


def _path(name: str) -> Path:
    """Return the file of a study: the user's own, or one of the package."""
    return Path(name) if name.endswith(ENDINGS) else FOLDER / f"{name}.yaml"
