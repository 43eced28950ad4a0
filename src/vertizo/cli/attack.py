"""``vertizo attack``: one attack on a run, or the table of all attacks on all methods."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vertizo.attacks.base import Attack
from vertizo.attacks.choice import ATTACKS
from vertizo.attacks.runner import Configure, Entry, Laboratory, Trials, make, split_settings, table
from vertizo.attacks.runner import write as write_figures
from vertizo.attacks.scores import Figure
from vertizo.attacks.settings import setting, with_noise
from vertizo.cli.bar import live_bar
from vertizo.config import schema as configuration
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.suggestions import nearest
from vertizo.core.version import VERSION
from vertizo.methods.choice import METHODS

TABLE = "table"
"""What stands for an attack's name to have all of them."""


def attack(
    name: str,
    path: Path | None,
    settings: Sequence[str],
    *,
    methods: str | None,
    attacks: str | None,
    seeds: int,
    noise: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run one attack, or the table, and print its figures.

    Raises:
        UserError: one line that says what is wrong.
    """
    if out is not None and (out / "attacks.json").exists():
        raise RunError(f"{out} holds the figures of other attacks; name another --out")
    if out is not None and out.exists() and not out.is_dir():
        raise RunError(f"{out} is no folder; name another --out")
    if name == TABLE:
        found = _table(path, settings, methods, attacks, seeds, noise)
    else:
        _not_for_one(methods, attacks)
        found = [_one(name, path, settings, seeds)]
    content = {
        "command": shlex.join(["vertizo", *sys.argv[1:]]),
        "version": VERSION,
        "seeds": seeds,
        "results": [trials.as_dict() for trials in found],
    }
    place = None if out is None else write_figures(out, content)
    if as_json:
        print(json.dumps(content))
    elif name == TABLE:
        _show_table(found, seeds, place)
    else:
        _show_one(found[0], seeds, place)


def _not_for_one(methods: str | None, attacks: str | None) -> None:
    for option, value in (("--methods", methods), ("--attacks", attacks)):
        if value is not None:
            raise ConfigError(f"{option} {value} is for 'vertizo attack table' alone")


def _one(name: str, path: Path | None, settings: Sequence[str], seeds: int) -> Trials:
    own, rest = split_settings(settings)
    tried = make(name, own)
    configure, first = _configured(tried, path, rest)
    with _bar(seeds) as done:
        return Laboratory().trials(tried, configure, range(first, first + seeds), done=done)


def _configured(tried: Attack, path: Path | None, settings: Sequence[str]) -> tuple[Configure, int]:
    """Seed → configuration, and the first seed: of the file, or of the attack's own setting."""
    if path is not None:
        config = configuration.load(path, settings)
        return partial(_seeded, config), config.seed
    method = _method_of(settings)
    left = [s for s in settings if s.partition("=")[0] not in ("method", "method.name")]
    noise = any(s.replace(" ", "") == "privacy.mechanism=gaussian" for s in settings)
    config = setting(tried.setting, method, noise=noise, overrides=left)
    return partial(_seeded, config), config.seed


def _method_of(settings: Sequence[str]) -> str:
    """The method that ``--set`` names last; its attack's setting has rates for each."""
    chosen = "vafl"
    for each in settings:
        key, _, value = each.partition("=")
        if key.strip() in ("method.name", "method"):
            chosen = value.strip()
    return chosen


def _seeded(config: ExperimentConfig, seed: int) -> ExperimentConfig:
    return config.model_copy(update={"seed": seed})


def _table(
    path: Path | None,
    settings: Sequence[str],
    methods: str | None,
    attacks: str | None,
    seeds: int,
    noise: bool,
) -> list[Trials]:
    own, rest = split_settings(settings)
    if own:
        raise ConfigError(f"--set attack.{own[0]} is for one attack, not for the table")
    entries = [
        Entry(tried, method, noisy, _cell(path, rest, tried, method, noisy))
        for method in _names("--methods", methods, list(METHODS))
        for noisy in ((False, True) if noise else (False,))
        for tried in (make(a) for a in _names("--attacks", attacks, list(ATTACKS)))
    ]
    first = _first_seed(path, rest)
    with _bar(len(entries) * seeds) as done:
        return list(table(entries, range(first, first + seeds), done))


def _cell(
    path: Path | None, settings: Sequence[str], tried: Attack, method: str, noise: bool
) -> Configure:
    if path is None:
        return partial(_shipped, tried, method, noise, settings)
    config = configuration.load(path, settings, method)
    if not noise:
        return partial(_seeded, config)
    return partial(_noised, config)


def _noised(config: ExperimentConfig, seed: int) -> ExperimentConfig:
    return _seeded(with_noise(config), seed)


def _shipped(
    tried: Attack, method: str, noise: bool, settings: Sequence[str], seed: int
) -> ExperimentConfig:
    return setting(tried.setting, method, noise=noise, overrides=settings, seed=seed)


def _first_seed(path: Path | None, settings: Sequence[str]) -> int:
    if path is None:
        return setting("sum", "vafl", overrides=[s for s in settings if s.startswith("seed=")]).seed
    return configuration.load(path, settings).seed


def _names(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """``a,b`` or ``all``, checked."""
    if text is None or text.strip() == "all":
        return list(known)
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    unknown = next((name for name in wanted if name not in known), None)
    if unknown is not None:
        hint = nearest(unknown, known) or ";"
        raise ConfigError(
            f"{option} {text}: there is no {unknown!r}{hint} known are {', '.join(known)}"
        )
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(f"{option} {text!r} must name each once, or be all")
    return wanted


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None] | None]:
    """A bar that a call moves on by one trial, where there is one."""
    with live_bar(Console(stderr=True), "trials") as show:
        if show is None:
            yield None
            return
        done = count(1)
        yield lambda: show((made := next(done)) / total, f"{made} of {total} trials")


def _show_one(found: Trials, seeds: int, place: Path | None) -> None:
    kind = ATTACKS[found.attack]
    noise = ", noise on replies" if found.noise else ""
    grid = Table(title=f"{found.attack} on {found.method}{noise}, {_seeds(seeds)}")
    for heading in ("figure", "what it is"):
        grid.add_column(heading)
    for heading in ("found", "control"):
        grid.add_column(heading, justify="right", no_wrap=True)
    bounded = any("bound" in figure.as_dict() for figure in found.figures.values())
    if bounded:
        grid.add_column("at most", justify="right", no_wrap=True)
    for key, figure in found.figures.items():
        row = [key, kind.figures[key], _text(figure), f"{figure.control:.3f}"]
        if bounded:
            bound = figure.as_dict().get("bound")
            row.append("" if bound is None else f"{bound:.3f}")
        grid.add_row(*row)
    notes = [f"adversary: {kind.adversary}; {kind.paper}"]
    if bounded:
        notes.append("at most: what the run's guarantee for labels allows on average")
    _print(grid, notes, seeds, place)


def _show_table(found: Sequence[Trials], seeds: int, place: Path | None) -> None:
    """A line for each figure, a column for each method, with and without noise."""
    console = Console()
    columns = list(dict.fromkeys((trials.method, trials.noise) for trials in found))
    lines = [
        (name, key)
        for name in dict.fromkeys(trials.attack for trials in found)
        for key in ATTACKS[name].figures
    ]
    cells = {(t.attack, t.method, t.noise): t for t in found}
    for part in _parts(columns, console.width):
        grid = Table(title=f"attacks, {_seeds(seeds)}: found (control)")
        grid.add_column("", no_wrap=True)
        for method, noise in part:
            grid.add_column(f"{method}\nnoise" if noise else method, justify="right", no_wrap=True)
        for name, key in lines:
            row = [_cell_text(cells.get((name, *column)), key) for column in part]
            grid.add_row(f"{name} {key}", *row)
        console.print(grid)
    reasons = dict.fromkeys(
        f"n/a: {t.attack} on {t.method}{' with noise' if t.noise else ''}: {t.unfit}"
        for t in found
        if t.unfit
    )
    _print(None, list(reasons), seeds, place)


def _parts(columns: Sequence[Any], width: int) -> Iterator[Sequence[Any]]:
    """As many columns as there is room for."""
    room = max(1, (width - 33) // 23)
    for start in range(0, len(columns), room):
        yield columns[start : start + room]


def _cell_text(trials: Trials | None, key: str) -> str:
    if trials is None or key not in trials.figures:
        return "n/a"
    figure = trials.figures[key]
    return f"{_text(figure)} ({figure.control:.3f})"


def _text(figure: Figure) -> str:
    error = figure.standard_error
    return f"{figure.mean:.3f}" if error is None else f"{figure.mean:.3f} ± {error:.3f}"


def _seeds(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def _print(grid: Table | None, notes: Sequence[str], seeds: int, place: Path | None) -> None:
    console = Console()
    if grid is not None:
        console.print(grid)
    spread = "± is the standard error over seeds." if seeds > 1 else "One seed: no spread."
    ending = [f"figures: {place}"] if place is not None else []
    for line in (*notes, f"{spread} An attack that fails is no proof of privacy.", *ending):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
