"""Group runs into variants and studies.

A *variant* is one configuration, run with one or more seeds, and with its controls beside it; a
curve or a table line shows one. A *study* is all variants on one data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertizo.core.names import CONTROLS
from vertizo.lab.report.reading import Run

IGNORED = ("seed", "control", "checkpoint_seconds", "threads")
"""Keys in which runs of one variant may differ."""

PRIVATE = {"exact": "may be handed on", "simulated": "may be handed on, were the noise secret"}
"""Guarantee → what may be done with the server's model under it."""


@dataclass(frozen=True)
class Variant:
    """One configuration with its runs and controls."""

    name: str
    runs: tuple[Run, ...]
    """The runs without control, by seed."""
    controls: Mapping[str, tuple[Run, ...]]

    @property
    def example(self) -> Run:
        """A run that stands for all: a finished one, if there is one."""
        every = [run for control in ("none", *CONTROLS) for run in self.all_runs(control)]
        return next((run for run in every if run.summary is not None), every[0])

    @property
    def when(self) -> str:
        """Times at which the first and the last of its runs ended."""
        moments = sorted(run.when for run in self.runs or (self.example,))
        first, last = moments[0], moments[-1]
        return last if first == last else f"{first.removesuffix(' UTC')} to {last}"

    def all_runs(self, control: str = "none") -> tuple[Run, ...]:
        """Return the variant's runs, or those of a control."""
        return self.runs if control == "none" else self.controls.get(control, ())

    def finished(self, control: str = "none") -> list[Run]:
        """Return the finished runs, which have a summary."""
        return [run for run in self.all_runs(control) if run.summary is not None]

    @property
    def privacy(self) -> Mapping[str, Any] | None:
        """The privacy statement of the summary; None before the end."""
        summary = self.example.summary
        return None if summary is None else summary["privacy"]

    @property
    def raw_head(self) -> Mapping[str, Any] | None:
        """The summary's section on the raw head beside the server's model, if there are both."""
        found = (self.example.summary or {}).get("raw_head")
        return found if isinstance(found, Mapping) and not self.is_raw else None

    @property
    def is_raw(self) -> bool:
        """Whether the run's own figures are the raw head's."""
        return self.example.config.predicts_by == "raw"

    @property
    def head_names(self) -> tuple[str, str]:
        """Names of the server's model and of the raw head, where there are both."""
        may = PRIVATE.get(str((self.privacy or {}).get("guarantee")), "no guarantee covers it")
        return f"private ({may})", "raw (stays with the label holder)"


@dataclass(frozen=True)
class Study:
    """All variants on one data set."""

    dataset: str
    variants: tuple[Variant, ...]


def studies(runs: Sequence[Run]) -> list[Study]:
    """Group runs by data set and configuration, in the order in which they were given."""
    by_data: dict[str, dict[tuple[str, ...], list[Run]]] = {}
    datasets: dict[str, str] = {}
    for run in runs:
        data = f"{run.config.data.name} {run.config.data.path or ''}"
        if run.summary or data not in datasets:
            datasets[data] = run.dataset
        label = "" if run.label is None else f"{_base(run)} {run.label}"
        shared = label, run.config.model_dump_json(exclude=set(IGNORED))
        by_data.setdefault(data, {}).setdefault(shared, []).append(run)
    found = []
    for data, groups in by_data.items():
        names = _names([group[0] for group in groups.values()])
        variants = map(_variant, names, groups.values())
        found.append(Study(datasets[data], tuple(variants)))
    return found


def _base(run: Run) -> Path:
    """Return the folder of the comparison that the run is part of."""
    steps = 1 if run.label is None else len(run.label.split("/")) + 1
    path = run.path.parents[1] if run.path.parent.name == "controls" else run.path
    return path.parents[min(steps, len(path.parents)) - 1]


def _variant(name: str, runs: Sequence[Run]) -> Variant:
    own: dict[str, tuple[Run, ...]] = {}
    for run in sorted(runs, key=lambda run: run.config.seed):
        control = run.config.control
        own[control] = *own.get(control, ()), run
    controls = {control: own[control] for control in CONTROLS if control in own}
    return Variant(name, own.get("none", ()), controls)


def _names(examples: Sequence[Run]) -> list[str]:
    """Give each variant a unique name: its label or method, with its folder where needed."""
    names = [run.label or run.config.method.name for run in examples]
    folders = [(_base(run) if run.label else run.path).name for run in examples]
    named = [
        name if names.count(name) == 1 else f"{name} ({folder})"
        for name, folder in zip(names, folders, strict=True)
    ]
    return [
        name if named.count(name) == 1 else f"{name} {place}" for place, name in enumerate(named, 1)
    ]
