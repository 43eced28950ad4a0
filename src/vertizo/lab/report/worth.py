"""Pictures of the results of `vertizo worth`: a dot and its interval beside each figure.

Places are percentages of a strip's width. Strips stand in tables that hold the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vertizo.core.errors import RunError
from vertizo.lab.report import plot
from vertizo.lab.report.plot import Tick
from vertizo.lab.report.reading import Worth
from vertizo.lab.worth import words
from vertizo.lab.worth.words import Content

COLUMNS = 12
"""Most columns that are drawn; the others are in a table."""
ROOM = 22
"""Most characters of the numbers below a strip, for which a telephone has room."""
EDGE = 3.0
"""Percentage of a strip that stays free at either end."""


class Strip(NamedTuple):
    """One line of a picture: a dot with its interval."""

    name: str
    note: str
    """Text below the name."""
    kind: str
    at: float
    low: float
    high: float
    cells: list[str]


def part(study: Worth) -> dict[str, Any]:
    """Collect all about one study, for the template; RunError if its ``worth.json`` is malformed.

    ``lists`` are tables without pictures: summary, headings, lines.
    """
    try:
        return _part(study.content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration):
        raise RunError(
            f"{study.path / 'worth.json'}: there are no figures of `vertizo worth` in it"
        ) from None


def _part(content: Content) -> dict[str, Any]:
    pictures = [_rows(content), _parties(content)]
    lists = []
    if content["importance"]:
        pictures.append(_columns(content))
        rest = words.columns(content)[COLUMNS:]
        if rest:
            lists.append((f"{len(rest)} more columns", ["party", "column", "permuted"], rest))
    every = words.table(content, every=True)
    if len(every) > len(words.shown(content)):
        lists.append((f"All {len(every)} rows", words.headings(content), every))
    return {
        "title": f"{content['dataset']}, {content['method']}",
        "verdicts": words.verdicts(content),
        "notes": words.notes(content),
        "pictures": pictures,
        "lists": lists,
        "made_by": f"{content['command']}, version {content['version']}",
    }


def _rows(content: Content) -> dict[str, Any]:
    """Draw the rows: who takes part, and the figure reached."""
    cells = {name: others for name, *others in words.table(content)}
    strips = [
        _strip(*words.who(content, row), row["kind"], row, cells[words.name(content, row)])
        for row in words.shown(content)
        if row["value"] is not None
    ]
    _, *heads = words.headings(content)
    return _picture(content, "Who takes part", words.metric(content), heads, strips)


def _parties(content: Content) -> dict[str, Any]:
    """Draw what each party adds: the loss without it, and its Shapley value."""
    strips = []
    values = {each["party"]: each for each in content["shapley"] or ()}
    for lost in content["left_out"]:
        party = lost["party"]
        for note, found in (("lost without it", lost), ("Shapley value", values.get(party))):
            if found is not None:
                kind = "federated" if found is lost else "shapley"
                cells = [words.difference(content, found["value"]), words.ends(content, found)]
                strips.append(_strip(party, note, kind, found, cells))
    what = f"{words.metric(content)}: what all lose without a party"
    what += ", and its mean share of what all gain (Shapley)" if values else ""
    heads = ["difference", "95 %"]
    return _picture(content, "What each party adds", what, heads, strips, zero=True)


def _columns(content: Content) -> dict[str, Any]:
    """Draw what the federation uses: the loss when columns are permuted."""
    found = content["importance"]
    whole = [each for each in found if each["column"] is None]
    single = sorted((e for e in found if e["column"] is not None), key=lambda e: -e["value"])
    strips = []
    for each in [*whole, *single[:COLUMNS]]:
        mean, spread = each["value"], each["spread"]
        ends = {"value": mean, "low": mean - spread, "high": mean + spread}
        about = each["column"], each["party"], "shapley"
        if each["column"] is None:
            about = each["party"], "all columns", "federated"
        cells = [words.difference(content, mean), words.figure(content, spread)]
        strips.append(_strip(*about, ends, cells))
    what = f"{words.metric(content)}: what the federation of all loses when they are exchanged"
    return _picture(content, "What the federation uses", what, ["lost", "±"], strips, zero=True)


def _strip(name: str, note: str, kind: str, found: Mapping[str, Any], cells: list[str]) -> Strip:
    """Make a strip in the figure's own unit; `_picture` converts it to places."""
    value, low, high = (float(found[key]) for key in ("value", "low", "high"))
    return Strip(name, note, kind, value, low, high, cells)


def _picture(
    content: Content,
    name: str,
    caption: str,
    heads: list[str],
    strips: Sequence[Strip],
    *,
    zero: bool = False,
) -> dict[str, Any]:
    """Place strips on one axis; ``zero`` is the place of 0 where differences are drawn."""
    scale = words.METRICS[content["metric"]][1]
    ends = [end for strip in strips for end in (strip.low, strip.high, strip.at)] + [0.0] * zero
    low, high = min(ends), max(ends)
    width = (high - low) or 1.0

    def at(value: float) -> float:
        return round(EDGE + (100 - 2 * EDGE) * (value - low) / width, 2)

    placed = [s._replace(at=at(s.at), low=at(s.low), high=at(s.high)) for s in strips]
    marks = plot.ticks(low * scale, high * scale, 4)
    across = [
        Tick(at(value / scale), plot.text(value, step).replace("-", "−")) for value, step in marks
    ]
    return {
        "name": name,
        "caption": caption,
        "heads": heads,
        "strips": placed,
        "across": plot.fitting(across, ROOM),
        "zero": at(0.0) if zero else None,
    }
