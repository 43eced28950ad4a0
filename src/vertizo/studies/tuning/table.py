"""A search's results as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from vertizo.studies.tuning.results import Results
from vertizo.studies.tuning.study import Record


def lines(found: Results, columns: Sequence[Record]) -> list[list[str]]:
    """A heading, two validation figures and every key, for these trials and the configured one.

    With importances, the last column has them.
    """
    first, weighted = found.records[0], bool(found.importances)
    shown, rest = [*columns, first], [""] if weighted else []
    table = [
        ["", *(f"trial {record.number}" for record in columns), "configured"],
        [f"validation {found.objective}", *map(_value, shown), *rest],
        ["validation loss", *map(_loss, shown), *rest],
    ]
    if weighted:
        table[0].append("weight")
    for key in [*found.importances, *(k for k in found.configured if k not in found.importances)]:
        cells = [_short(record.values.get(key, "")) for record in columns]
        share = found.importances.get(key)
        weight = ["" if share is None else f"{100 * share:.0f} %"] if weighted else []
        table.append([key, *cells, _short(found.configured[key]), *weight])
    return table


def _value(record: Record) -> str:
    standing = record.standing
    if record.outcome != "finished" or standing is None:
        return record.outcome
    return f"{standing.value:.4f}"


def _loss(record: Record) -> str:
    standing = record.standing
    return "" if record.outcome != "finished" or standing is None else f"{standing.loss:.4f}"


def _short(text: str) -> str:
    """A number to three digits; other texts as they are."""
    if text == "None":
        return "automatic"
    try:
        return f"{float(text):.3g}"
    except ValueError:
        return text


def notes(found: Results) -> list[str]:
    """How many trials ended in which way, what the best gained, and its test figures."""
    outcomes = [record.outcome for record in found.records]
    ended = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
    test = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in found.test.items())
    return [
        f"trials: {len(outcomes)} of {found.planned} ({ended})",
        _gain(found),
        f"test, of trial {found.best.number}: {test}",
        *(f"privacy: {words}" for words in found.privacy.words),
    ]


def _gain(found: Results) -> str:
    """What the best has over the configured one, on validation records."""
    best, first = found.best, found.records[0]
    if best.number == first.number:
        return f"no trial was better on {found.validation:,} validation records than as configured"
    if first.outcome != "finished" or first.standing is None or best.standing is None:
        return f"the configuration as it is: {first.outcome}"
    was, now, name = first.standing.value, best.standing.value, found.objective
    if was == now:
        was, now, name = first.standing.loss, best.standing.loss, f"{name} is the same; loss"
    records = f"{found.validation:,} validation records"
    return f"validation {name}: {now:.4f}, as configured {was:.4f}; by {records}"
