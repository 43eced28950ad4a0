"""``vertizo attack``: one attack on a run, or the table of all attacks on all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from vertizo.cli.console import command_line, grid, live_bar, print_table, room, say, show
from vertizo.cli.list import first_words
from vertizo.cli.options import (
    AsJson,
    argument,
    behind_comma,
    comma_separated,
    complete_methods,
    option,
)
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.text import strict_json
from vertizo.core.text.messages import counted
from vertizo.core.text.suggestions import nearest
from vertizo.core.version import VERSION

if TYPE_CHECKING:
    from vertizo.lab.attacks.runner import Trials

TABLE = "table"
"""The word for all attacks, in place of an attack's name."""


def listed() -> Iterator[tuple[str, str]]:
    """Yield each attack's name and description, for ``vertizo list``."""
    from vertizo.lab.attacks.choice import ATTACKS

    for a in ATTACKS.values():
        yield a.name, f"{a.paper}: {first_words(a)} Adversary: {a.adversary}."


def complete_attacks(incomplete: str) -> list[str]:
    """Complete the name of an attack behind the last comma."""
    from vertizo.lab.attacks.choice import ATTACKS

    return behind_comma(incomplete, ATTACKS)


def attack(
    name: Annotated[
        str,
        argument(
            "An attack (see `vertizo list attacks`), or table for all of them.",
            complete=lambda incomplete: [*complete_attacks(incomplete), TABLE],
        ),
    ],
    config: Annotated[
        Path | None, argument("YAML file. Default: the attack's own setting.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "Override a key of the configuration, or an option of the attack, attack.KEY. "
            "Can be repeated.",
            "KEY=VALUE",
            "--set",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        option("Methods in the table. Default: all.", "A,B,…", complete=complete_methods),
    ] = None,
    attacks: Annotated[
        str | None,
        option("Attacks in the table. Default: all.", "A,B,…", complete=complete_attacks),
    ] = None,
    seeds: Annotated[int, option("Trials of each attack.", min=1)] = 3,
    noise: Annotated[bool, option("Add columns to the table with noise on the replies.")] = True,
    out: Annotated[Path | None, option("Folder for attacks.json.", "DIR")] = None,
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
    began = perf_counter()
    if name == TABLE:
        found = _table(config, settings or [], methods, attacks, seeds, noise)
    else:
        for option, value in (("--methods", methods), ("--attacks", attacks)):
            if value is not None:
                raise ConfigError(f"{option} {value} is for 'vertizo attack table' alone")
        found = [_one(name, config, settings or [], seeds)]
    from vertizo.lab import made_by

    content = {
        "command": command_line(),
        "version": VERSION,
        "seeds": seeds,
        "made_by": made_by.this(perf_counter() - began),
        "results": [trials.as_dict() for trials in found],
    }
    place = None if out is None else out / "attacks.json"
    if place is not None:
        made_by.keep(place, content)
    if as_json:
        print(strict_json.line(content))
    else:
        _show(found, seeds, place, as_table=name == TABLE)


def _one(name: str, path: Path | None, settings: Sequence[str], seeds: int) -> Trials:
    from vertizo.lab.attacks.runner import Laboratory, configured, make, split_settings

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
    from vertizo.lab.attacks.choice import ATTACKS
    from vertizo.lab.attacks.runner import Entry, cell, first_seed, make, split_settings, table
    from vertizo.methods.choice import asking

    own, rest = split_settings(settings)
    if own:
        raise ConfigError(f"--set attack.{own[0]} is for one attack, not for the table")
    entries = [
        Entry(tried, method, noisy, cell(path, rest, tried, method, noisy))
        for method in _names("--methods", methods, list(asking()))
        for noisy in ((False, True) if noise else (False,))
        for tried in map(make, _names("--attacks", attacks, list(ATTACKS)))
    ]
    first = first_seed(path, rest)
    with _bar(len(entries) * seeds) as done:
        return list(table(entries, range(first, first + seeds), done))


def _names(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Split ``a,b`` or ``all`` into known names; raise a `ConfigError` for others."""
    if text is None or text.strip() == "all":
        return list(known)
    wanted = comma_separated(text)
    unknown = next((name for name in wanted if name not in known), None)
    if unknown is not None:
        hint = nearest(unknown, known) or ";"
        raise ConfigError(
            f"{option} {text}: there is no {unknown!r}{hint} known are {', '.join(known)}"
        )
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(f"{option} {text!r} must name each once, or be all")
    return wanted


def _bar(total: int) -> AbstractContextManager[Callable[[], None] | None]:
    """Show a progress bar; each call of its result advances it by one trial."""
    done = count(1)

    def words() -> tuple[float, str]:
        return (made := next(done)) / total, f"{made} of {total} trials"

    return live_bar(Console(stderr=True), "trials", words, "attack")


def _show(found: Sequence[Trials], seeds: int, place: Path | None, *, as_table: bool) -> None:
    """Print one attack's figures, or the table of all attacks on all methods."""
    from vertizo.lab.attacks.choice import ATTACKS

    each = counted(seeds, "seed")
    if as_table:
        headings, *rows = _of_many(found)
        print_table(headings, rows, f"attacks, {each}: found (control)")
        unfit = (
            f"n/a: {t.attack} on {t.method}{' with noise' if t.noise else ''}: {t.unfit}"
            for t in found
            if t.unfit
        )
        notes = list(dict.fromkeys(unfit))
    else:
        (one,) = found
        headings, *rows = _of_one(one)
        noise = ", noise on replies" if one.noise else ""
        title = f"{one.attack} on {one.method}{noise}, {each}"
        show(grid(headings, rows, title, room(), words=2))
        notes = [f"adversary: {ATTACKS[one.attack].adversary}; {ATTACKS[one.attack].paper}"]
        if "at most" in headings:
            notes.append("at most: what the run's guarantee for labels allows on average")
    spread = "± is the standard error over seeds." if seeds > 1 else "One seed: no spread."
    ending = [f"figures: {place}"] if place is not None else []
    say([*notes, f"{spread} An attack that fails is no proof of privacy.", *ending])


def _of_one(found: Trials) -> list[list[str]]:
    """Tabulate one attack; the column of bounds is left out where no guarantee holds."""
    from vertizo.lab.attacks.choice import ATTACKS

    table = [["figure", "what it is", "found", "control", "at most"]]
    for key, figure in found.figures.items():
        what, bound = ATTACKS[found.attack].figures[key], figure.bound
        most = "" if bound is None else f"{bound:.3f}"
        table.append([key, what, str(figure), f"{figure.control:.3f}", most])
    bounded = any(row[-1] for row in table[1:])
    return table if bounded else [row[:-1] for row in table]


def _of_many(found: Sequence[Trials]) -> list[list[str]]:
    """Tabulate many attacks: a row for each figure, a column for each method and kind of noise."""
    from vertizo.lab.attacks.choice import ATTACKS

    columns = list(dict.fromkeys((trials.method, trials.noise) for trials in found))
    cells = {
        (t.attack, t.method, t.noise, key): f"{figure} ({figure.control:.3f})"
        for t in found
        for key, figure in t.figures.items()
    }
    return [
        ["", *(f"{method}\nnoise" if noise else method for method, noise in columns)],
        *(
            [f"{name} {key}", *(cells.get((name, *column, key), "n/a") for column in columns)]
            for name in dict.fromkeys(trials.attack for trials in found)
            for key in ATTACKS[name].figures
        ),
    ]
