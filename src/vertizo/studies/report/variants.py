"""Runs put together: seeds of one configuration, its controls, all configurations of one data set.

What a curve or a line of a table stands for is a *variant*: one configuration, run with one or
more seeds, and with frozen clients and random updates beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertizo.studies.comparison import CONTROLS, mean_and_spread
from vertizo.studies.report.reading import Run, number

IGNORED = ("seed", "control", "checkpoint_seconds", "threads")
"""Keys in which runs of one variant may differ."""


@dataclass(frozen=True)
class Variant:
    """One configuration."""

    name: str
    runs: tuple[Run, ...]
    """Without control, by seed."""
    controls: Mapping[str, tuple[Run, ...]]
    """Those with frozen clients and with random updates."""

    @property
    def example(self) -> Run:
        """A run that stands for all, finished where one is."""
        every = [*self.runs, *(run for runs in self.controls.values() for run in runs)]
        return next((run for run in every if run.summary is not None), every[0])

    def all_runs(self, control: str = "none") -> tuple[Run, ...]:
        """Its runs, or those of a control."""
        return self.runs if control == "none" else self.controls.get(control, ())

    def finished(self, control: str = "none") -> list[Run]:
        """Those that have closing figures."""
        return [run for run in self.all_runs(control) if run.summary is not None]

    def figures(self, *keys: str, control: str = "none") -> list[float]:
        """The sum of some closing figures, for each seed that has the first of them."""
        found = []
        for run in self.finished(control):
            values = [number(run.summary or {}, key) for key in keys]
            if values[0] is not None:
                found.append(sum(value for value in values if value is not None))
        return found

    def mean(self, *keys: str, control: str = "none") -> tuple[float, float | None] | None:
        """Mean and standard deviation of `figures`; None where there are none."""
        found = self.figures(*keys, control=control)
        return mean_and_spread(found) if found else None

    @property
    def privacy(self) -> Mapping[str, Any] | None:
        """What holds, as the summary has it; None before the end."""
        summary = self.example.summary
        return None if summary is None else summary["privacy"]


@dataclass(frozen=True)
class Study:
    """Everything on one data set."""

    dataset: str
    variants: tuple[Variant, ...]


def studies(runs: Sequence[Run]) -> list[Study]:
    """All runs, put together, in the order in which they were given."""
    by_data: dict[str, dict[tuple[str, ...], list[Run]]] = {}
    names: dict[str, str] = {}
    for run in runs:
        data = f"{run.config.data.name} {run.config.data.path or ''}"
        names[data] = run.dataset if run.summary or data not in names else names[data]
        by_data.setdefault(data, {}).setdefault(_identity(run), []).append(run)
    found = []
    for data, groups in by_data.items():
        called = _names([group[0] for group in groups.values()])
        variants = tuple(
            _variant(name, group) for name, group in zip(called, groups.values(), strict=True)
        )
        found.append(Study(names[data], variants))
    return found


def _identity(run: Run) -> tuple[str, ...]:
    """What runs of one variant share."""
    own = "" if run.label is None else f"{_base(run)} {run.label}"
    return own, run.config.model_dump_json(exclude=set(IGNORED))


def _base(run: Run) -> Path:
    """The folder of a comparison that the run is part of."""
    steps = 1 if run.label is None else len(run.label.split("/")) + 1
    path = run.path.parents[1] if run.path.parent.name == "controls" else run.path
    return path.parents[min(steps, len(path.parents)) - 1]


def _variant(name: str, runs: Sequence[Run]) -> Variant:
    def of(control: str) -> tuple[Run, ...]:
        chosen = [run for run in runs if run.config.control == control]
        return tuple(sorted(chosen, key=lambda run: run.config.seed))

    controls = {control: of(control) for control in CONTROLS if of(control)}
    return Variant(name, of("none"), controls)


def _names(examples: Sequence[Run]) -> list[str]:
    """A name for each variant that no other has: label or method, and its folder where needed."""
    names = [run.label or run.config.method.name for run in examples]
    folders = [(_base(run) if run.label else run.path).name for run in examples]
    named = [
        name if names.count(name) == 1 else f"{name} ({folder})"
        for name, folder in zip(names, folders, strict=True)
    ]
    return [
        name if named.count(name) == 1 else f"{name} {place}" for place, name in enumerate(named, 1)
    ]


def flat(run: Run) -> dict[str, Any]:
    """A configuration as ``section.key`` and plain values."""
    found: dict[str, Any] = {}

    def walk(tree: Mapping[str, Any], above: str) -> None:
        for key, value in tree.items():
            if isinstance(value, Mapping) and value:
                walk(value, f"{above}{key}.")
            else:
                found[f"{above}{key}"] = value

    walk(run.config.model_dump(mode="json"), "")
    return found


def text(value: Any) -> str:
    """A configuration's value in a few words."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
