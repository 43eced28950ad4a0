"""``vertizo attack``: one attack on a run, or the table of all attacks on all methods."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vertizo.cli.console import command_line, grid, live_bar, print_table, say
from vertizo.cli.options import AsJson, complete_attacks, complete_methods
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.suggestions import nearest
from vertizo.core.version import VERSION

if TYPE_CHECKING:
    from vertizo.attacks.runner import Trials

TABLE = "table"
"""In place of an attack's name: all attacks."""


def _complete_names(incomplete: str) -> list[str]:
    return [*complete_attacks(incomplete), TABLE]


def attack(
    name: Annotated[
        str,
        typer.Argument(
            help="An attack (see `vertizo list attacks`), or table for all of them.",
            autocompletion=_complete_names,
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML configuration. Default: the attack's own setting."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a key of the configuration, or an option of the attack, attack.KEY. "
            "Can be repeated.",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Methods in the table. Default: all.",
            autocompletion=complete_methods,
        ),
    ] = None,
    attacks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Attacks in the table. Default: all.",
            autocompletion=complete_attacks,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trials of each attack.")] = 3,
    noise: Annotated[
        bool, typer.Option(help="Add columns to the table with noise on the replies.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for attacks.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack runs and print what an adversary learns, beside a control."""
    if out is not None and (out / "attacks.json").exists():
        raise RunError(f"{out} holds the figures of other attacks; name another --out")
    if out is not None and out.exists() and not out.is_dir():
        raise RunError(f"{out} is not a folder; name another --out")
    if config is not None:
        from vertizo.config.error_lines import read_yaml

        read_yaml(config)  # refused before PyTorch is imported
    if name == TABLE:
        found = _table(config, settings or [], methods, attacks, seeds, noise)
    else:
        for option, value in (("--methods", methods), ("--attacks", attacks)):
            if value is not None:
                raise ConfigError(f"{option} {value} is for 'vertizo attack table' alone")
        found = [_one(name, config, settings or [], seeds)]
    content = {
        "command": command_line(),
        "version": VERSION,
        "seeds": seeds,
        "results": [trials.as_dict() for trials in found],
    }
    place = None
    if out is not None:
        from vertizo.attacks.runner import write

        place = write(out, content)
    if as_json:
        print(json.dumps(content))
    elif name == TABLE:
        _show_table(found, seeds, place)
    else:
        _show_one(found[0], seeds, place)


def _one(name: str, path: Path | None, settings: Sequence[str], seeds: int) -> Trials:
    from vertizo.attacks.runner import Laboratory, configured, make, split_settings

    own, rest = split_settings(settings)
    tried = make(name, own)
    configure, first = configured(tried, path, rest)
    with _bar(seeds) as done:
        return Laboratory().trials(tried, configure, range(first, first + seeds), done=done)


def _table(
    path: Path | None,
    settings: Sequence[str],
    methods: str | None,
    attacks: str | None,
    seeds: int,
    noise: bool,
) -> list[Trials]:
    from vertizo.attacks.choice import ATTACKS
    from vertizo.attacks.runner import Entry, cell, first_seed, make, split_settings, table
    from vertizo.methods.choice import METHODS

    own, rest = split_settings(settings)
    if own:
        raise ConfigError(f"--set attack.{own[0]} is for one attack, not for the table")
    entries = [
        Entry(tried, method, noisy, cell(path, rest, tried, method, noisy))
        for method in _names("--methods", methods, list(METHODS))
        for noisy in ((False, True) if noise else (False,))
        for tried in (make(a) for a in _names("--attacks", attacks, list(ATTACKS)))
    ]
    first = first_seed(path, rest)
    with _bar(len(entries) * seeds) as done:
        return list(table(entries, range(first, first + seeds), done))


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
    from vertizo.attacks.choice import ATTACKS
    from vertizo.attacks.table import of_one

    headings, *rows = of_one(found)
    noise = ", noise on replies" if found.noise else ""
    table = grid(headings, rows, f"{found.attack} on {found.method}{noise}, {_seeds(seeds)}")
    for column in table.columns[:2]:
        column.no_wrap, column.justify = False, "left"
    Console().print(table)
    kind = ATTACKS[found.attack]
    notes = [f"adversary: {kind.adversary}; {kind.paper}"]
    if "at most" in headings:
        notes.append("at most: what the run's guarantee for labels allows on average")
    _say(notes, seeds, place)


def _show_table(found: Sequence[Trials], seeds: int, place: Path | None) -> None:
    """A line for each figure, a column for each method, with and without noise."""
    from vertizo.attacks.table import of_many, reasons

    headings, *rows = of_many(found)
    print_table(headings, rows, f"attacks, {_seeds(seeds)}: found (control)")
    _say(reasons(found), seeds, place)


def _seeds(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def _say(notes: Sequence[str], seeds: int, place: Path | None) -> None:
    spread = "± is the standard error over seeds." if seeds > 1 else "One seed: no spread."
    ending = [f"figures: {place}"] if place is not None else []
    say([*notes, f"{spread} An attack that fails is no proof of privacy.", *ending])
