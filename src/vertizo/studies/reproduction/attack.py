"""Studies of attacks: what an adversary finds, method by method, beside what none would."""

from __future__ import annotations

from typing import Any

from vertizo.attacks.choice import ATTACKS
from vertizo.attacks.runner import Laboratory
from vertizo.attacks.runner import make as make_attack
from vertizo.config import schema as configuration
from vertizo.core.errors import ConfigError
from vertizo.studies.reproduction.outcome import Grid, Outcome, text_of
from vertizo.studies.reproduction.runs import Order, configure
from vertizo.studies.reproduction.study import AttackColumnConfig, AttackConfig
from vertizo.studies.reproduction.tasks import Task, results

Tree = dict[str, Any]


def run(study: AttackConfig, order: Order) -> Outcome:
    """Try every attack on every method, with every seed.

    Raises:
        ConfigError: an attack or a figure that there is not, or one that does not fit.
        Interrupted: stopped; what is finished is kept.
    """
    seeds = order.seeds or study.seeds
    for column in study.columns.values():
        _check(column)
    methods = [method for row in study.rows.values() for method in row.methods]
    tasks = {
        (method, name, seed): task_of(study, order, method, name, seed)
        for method in methods
        for name in study.columns
        for seed in range(seeds)
    }
    done = results(list(tasks.values()), order.folder, order.jobs, order.report)
    lines, figures = [], []
    for row in study.rows.values():
        for method in row.methods:
            cells = []
            for name, column in study.columns.items():
                each = [done[tasks[method, name, seed].name] for seed in range(seeds)]
                found = [one["figures"][column.figure] for one in each]
                values = [100 * value for one in found for value in one["trials"]]
                controls = [100 * value for one in found for value in one["controls"]]
                cells.append(f"{text_of(values, 1)} ({text_of(controls[:1], 1)})")
                figures.append(
                    {"method": method, "column": name, "values": values, "controls": controls}
                )
            lines.append((f"{row.words}: {method}", *cells))
        if row.published:
            lines.append(
                ("  published", *(str(row.published.get(name, "–")) for name in study.columns))
            )
    headings = tuple(f"{column.words}, %" for column in study.columns.values())
    grid = Grid(study.title, headings, tuple(lines))
    note = "In brackets: what an attacker who saw no message finds."
    return Outcome((grid,), (), (note,), {"cells": figures})


def _check(column: AttackColumnConfig) -> None:
    if column.attack not in ATTACKS:
        raise ConfigError(f"there is no attack {column.attack!r}; known are {', '.join(ATTACKS)}")
    known = ATTACKS[column.attack].figures
    if column.figure not in known:
        raise ConfigError(
            f"attack {column.attack!r} has no figure {column.figure!r}; known are "
            f"{', '.join(known)}"
        )


def task_of(study: AttackConfig, order: Order, method: str, name: str, seed: int) -> Task:
    """One attack, method and seed."""
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
    """One attack on one run, in a process of its own."""
    config = configuration.parse(tree)
    trials = Laboratory().trials(make_attack(attack, options), lambda _: config, [config.seed])
    return trials.as_dict()
