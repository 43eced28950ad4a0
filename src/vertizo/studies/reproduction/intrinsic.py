"""Studies of VFL-CZOFO's intrinsic figures: measured on finished runs, and guaranteeing nothing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from vertizo.core.errors import RunError
from vertizo.run.folder import RunFolder
from vertizo.studies.intrinsic import intrinsic
from vertizo.studies.reproduction.outcome import Grid, Outcome, text_of
from vertizo.studies.reproduction.runs import Case, Order, configure, make
from vertizo.studies.reproduction.study import IntrinsicConfig
from vertizo.studies.reproduction.tasks import Task, results

FIGURES = {
    "variance": "σ²",
    "largest_gradient": "largest gradient seen",
    "step_epsilon": "ε of a step",
    "epsilon_as_printed": "ε of all, as printed",
    "epsilon_as_cited": "ε of all, as cited",
    "total_delta": "δ of all",
}


def run(study: IntrinsicConfig, order: Order) -> Outcome:
    """Train, measure on the models that are left, and put the figures into the theorem.

    Raises:
        UserError: what cannot be run; one line.
        Interrupted: stopped; what is finished is kept.
    """
    cases = []
    for label, row in study.rows.items():
        config = configure(
            f"{study.paper}, {label}", [study.settings, row.settings], order.overrides
        )
        cases.append(Case(label, config, order.seeds or study.seeds))
    made = make(cases, order)
    lost = next((label for label, found in made.items() if None in found.runs), None)
    if lost is not None:
        raise RunError(f"{study.paper}, {lost}: training diverged; there is nothing to measure")
    tasks = {
        label: [
            Task(f"{label}-{place}", measured, (str(each.folder), study.repeats))
            for place, each in enumerate(found.finished)
        ]
        for label, found in made.items()
    }
    every = [task for own in tasks.values() for task in own]
    done = results(every, order.folder, order.jobs, order.report)
    lines, figures = [], []
    for label, row in study.rows.items():
        found = [done[task.name] for task in tasks[label]]
        cells = (text_of([each[key] for each in found], 4) for key in FIGURES)
        lines.append((row.words, *cells))
        if row.published:
            lines.append(("  published", *(_published(row.published.get(key)) for key in FIGURES)))
        figures.append({"row": label, "seeds": found})
    grid = Grid(study.title, tuple(FIGURES.values()), tuple(lines))
    return Outcome((grid,), (), (), {"cells": figures})


def _published(value: float | str | None) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:g}"


def measured(folder: str, repeats: int) -> dict[str, Any]:
    """The figures of one run, in a process of its own."""
    return asdict(intrinsic(RunFolder(Path(folder)), repeats=repeats))
