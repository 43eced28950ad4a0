"""Run a study by its kind; studies of attacks and of VFL-CZOFO's intrinsic figures are here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vertizo.config import schema as configuration
from vertizo.core.errors import ConfigError, RunError
from vertizo.lab import made_by
from vertizo.lab.attacks.choice import ATTACKS
from vertizo.lab.attacks.runner import Laboratory
from vertizo.lab.attacks.runner import make as make_attack
from vertizo.lab.intrinsic import intrinsic
from vertizo.lab.reproduction import grid
from vertizo.lab.reproduction.outcome import Grid, Outcome, published_line, text_of
from vertizo.lab.reproduction.runs import Case, Order, Task, Tree, configure, make, makers, results
from vertizo.lab.reproduction.study import AnyStudy, AttackConfig, IntrinsicConfig
from vertizo.run.results.folder import RunFolder

INTRINSIC = {
    "variance": "σ²",
    "largest_gradient": "largest gradient seen",
    "step_epsilon": "ε of a step",
    "epsilon_as_printed": "ε of all, as printed",
    "epsilon_as_cited": "ε of all, as cited",
    "total_delta": "δ of all",
}


def run(study: AnyStudy, order: Order) -> Outcome:
    """Make the runs of a study that are left, and sum up; finished ones survive an interrupt."""
    return RUN.get(study.kind, grid.run)(study, order)


def run_attacks(study: AttackConfig, order: Order) -> Outcome:
    """Try all attacks on all methods and seeds; ConfigError for an unknown attack or figure."""
    for column in study.columns.values():
        if column.attack not in ATTACKS:
            raise ConfigError(
                f"there is no attack {column.attack!r}; known are {', '.join(ATTACKS)}"
            )
        known = ATTACKS[column.attack].figures
        if column.figure not in known:
            raise ConfigError(
                f"attack {column.attack!r} has no figure {column.figure!r}; known are "
                f"{', '.join(known)}"
            )
    seeds = range(order.seeds or study.seeds)
    tasks = {
        (method, name, seed): task_of(study, order, method, name, seed)
        for row in study.rows.values()
        for method in row.methods
        for name in study.columns
        for seed in seeds
    }
    per_card = order.runs_per_card
    done, by = results(tasks, order.folder, order.jobs, order.report, runs_per_card=per_card)
    lines, figures = [], []
    for row in study.rows.values():
        for method in row.methods:
            cells = []
            for name, column in study.columns.items():
                found = [done[method, name, seed]["figures"][column.figure] for seed in seeds]
                values, controls = (
                    [100 * value for one in found for value in one[key]]
                    for key in ("trials", "controls")
                )
                cells.append(f"{text_of(values, 1)} ({text_of(controls[:1], 1)})")
                seen = {"values": values, "controls": controls}
                figures.append({"method": method, "column": name, **seen})
            lines.append((f"{row.words}: {method}", *cells))
        lines += published_line(row.published, study.columns)
    headings = tuple(f"{column.words}, %" for column in study.columns.values())
    note = "In brackets: what an attacker who saw no message finds."
    grid = Grid(study.title, headings, tuple(lines))
    return Outcome((grid,), notes=(note,), figures={"cells": figures}, made_by=by)


def task_of(study: AttackConfig, order: Order, method: str, name: str, seed: int) -> Task:
    """Make the task of one attack on one method with one seed."""
    column = study.columns[name]
    trees = [study.settings, {"method": {"name": method}, "seed": seed}]
    config = configure(study.paper, trees, order.overrides)
    options = tuple(f"{key}={value}" for key, value in column.options.items())
    return Task(
        f"{column.attack}-{column.figure}-{method}-seed{seed}",
        attack_trial,
        (column.attack, options, config.model_dump(mode="json")),
    )


def attack_trial(attack: str, options: tuple[str, ...], tree: Tree) -> dict[str, Any]:
    """Try one attack on one run, in a process of its own; return its results."""
    config = configuration.parse(tree)
    trials = Laboratory().trials(make_attack(attack, options), lambda _: config, [config.seed])
    return trials.as_dict()


def run_intrinsic(study: IntrinsicConfig, order: Order) -> Outcome:
    """Train, measure the intrinsic figures and tabulate them; RunError if a training diverged."""
    cases = []
    for label, row in study.rows.items():
        trees = [study.settings, row.settings]
        config = configure(f"{study.paper}, {label}", trees, order.overrides)
        cases.append(Case(label, config, order.seeds or study.seeds))
    made = make(cases, order)
    lost = next((label for label, found in made.items() if None in found.runs), None)
    if lost is not None:
        raise RunError(f"{study.paper}, {lost}: training diverged; there is nothing to measure")
    tasks = {
        (label, place): Task(f"{label}-{place}", measured, (str(each.folder), study.repeats))
        for label, found in made.items()
        for place, each in enumerate(found.finished)
    }
    per_card = order.runs_per_card
    done, by = results(tasks, order.folder, order.jobs, order.report, runs_per_card=per_card)
    lines, figures = [], []
    for label, row in study.rows.items():
        seeds = [done[key] for key in tasks if key[0] == label]
        lines.append((row.words, *(text_of([e[key] for e in seeds], 4) for key in INTRINSIC)))
        lines += published_line(row.published, INTRINSIC, "g")
        figures.append({"row": label, "seeds": seeds})
    grid = Grid(study.title, tuple(INTRINSIC.values()), tuple(lines))
    whole = made_by.together([makers(made), by])
    return Outcome((grid,), figures={"cells": figures}, made_by=whole)


def measured(folder: str, repeats: int) -> dict[str, Any]:
    """Measure the intrinsic figures of one run, in a process of its own."""
    return asdict(intrinsic(RunFolder(Path(folder)), repeats=repeats))


RUN: dict[str, Callable[[Any, Order], Outcome]] = {
    "attack": run_attacks,
    "intrinsic": run_intrinsic,
}
