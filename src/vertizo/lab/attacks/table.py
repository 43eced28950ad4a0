"""Format figures of attacks as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from vertizo.lab.attacks.choice import ATTACKS
from vertizo.lab.attacks.runner import Trials
from vertizo.lab.attacks.scores import Figure


def of_one(found: Trials) -> list[list[str]]:
    """Tabulate one attack: a heading, then for each figure its meaning, value, control and bound.

    The column of bounds is left out where no guarantee holds.
    """
    table = [["figure", "what it is", "found", "control", "at most"]]
    for key, figure in found.figures.items():
        bound = figure.as_dict().get("bound")
        what, most = ATTACKS[found.attack].figures[key], "" if bound is None else f"{bound:.3f}"
        table.append([key, what, _text(figure), f"{figure.control:.3f}", most])
    bounded = any(row[-1] for row in table[1:])
    return table if bounded else [row[:-1] for row in table]


def of_many(found: Sequence[Trials]) -> list[list[str]]:
    """Tabulate many attacks: a row for each figure, a column for each method and kind of noise."""
    columns = list(dict.fromkeys((trials.method, trials.noise) for trials in found))
    cells = {(t.attack, t.method, t.noise): t for t in found}
    return [
        ["", *(f"{method}\nnoise" if noise else method for method, noise in columns)],
        *(
            [f"{name} {key}", *(_cell(cells.get((name, *column)), key) for column in columns)]
            for name in dict.fromkeys(trials.attack for trials in found)
            for key in ATTACKS[name].figures
        ),
    ]


def reasons(found: Sequence[Trials]) -> list[str]:
    """List the reasons why some attacks could not be tried."""
    lines = (
        f"n/a: {t.attack} on {t.method}{' with noise' if t.noise else ''}: {t.unfit}"
        for t in found
        if t.unfit
    )
    return list(dict.fromkeys(lines))


def _cell(trials: Trials | None, key: str) -> str:
    if trials is None or key not in trials.figures:
        return "n/a"
    figure = trials.figures[key]
    return f"{_text(figure)} ({figure.control:.3f})"


def _text(figure: Figure) -> str:
    error = figure.standard_error
    return f"{figure.mean:.3f}" if error is None else f"{figure.mean:.3f} ± {error:.3f}"
