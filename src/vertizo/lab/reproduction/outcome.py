"""The outcome of a study: tables of text, pictures, and every number behind them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vertizo.core.text import strict_json
from vertizo.lab.comparison import mean_and_spread
from vertizo.run.results import checkpoint


@dataclass(frozen=True)
class Grid:
    """A table of text, as it is shown."""

    title: str
    columns: tuple[str, ...]
    """Headings of all columns but the first."""
    rows: tuple[tuple[str, ...], ...]
    """Each line: its name, then its cells."""


class Point(NamedTuple):
    """A point of a line: mean, smallest and largest value over seeds at one x."""

    x: float
    y: float
    low: float
    high: float

    @classmethod
    def of(cls, x: float, values: Sequence[float]) -> Point:
        """Make a point from one value for each seed."""
        return cls(x, mean_and_spread(values)[0], min(values), max(values))


@dataclass(frozen=True)
class Line:
    """One curve of a picture."""

    words: str
    points: tuple[Point, ...]
    published: bool = False
    """Whether the numbers are the paper's; drawn as a dashed line."""
    colour: int | None = None
    """Index of its colour, for one that is the same in several pictures; None for the next."""


@dataclass(frozen=True)
class Picture:
    """A picture of lines over one axis."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    log_x: bool = False
    markers: bool = True
    ticks: Mapping[float, str] = field(default_factory=dict)
    """Place on the x axis → the name shown there in place of a number."""


@dataclass(frozen=True)
class Outcome:
    """The results of a study."""

    grids: tuple[Grid, ...]
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Every seed's numbers, for JSON."""
    made_by: Mapping[str, Any] = field(default_factory=dict)
    """Commits, versions, processors and seconds (`vertizo.lab.made_by`)."""

    def as_dict(self) -> dict[str, Any]:
        """Return the results for JSON; a point of a line is x, mean, smallest and largest."""
        pictures = []
        for picture in self.pictures:
            lines = {
                line.words: [[float(f"{value:.5g}") for value in point] for point in line.points]
                for line in picture.lines
            }
            about = {"title": picture.title, "x": picture.x, "y": picture.y}
            pictures.append({**about, "lines": lines})
        return {
            "made_by": dict(self.made_by),
            "tables": [asdict(grid) for grid in self.grids],
            "notes": list(self.notes),
            "figures": dict(self.figures),
            "pictures": pictures,
        }


def write(folder: Path, name: str, content: Mapping[str, Any]) -> Path:
    """Write all figures to ``NAME.json`` in a folder, which is made; RunError if that fails."""
    text, numbers = strict_json.text(content, indent=1), r"\[\s+([-\d.eE+,\s]+?)\s+\]"
    # a line for each entry, and lists of numbers on one line
    text = re.sub(numbers, lambda found: f"[{' '.join(found[1].split())}]", text)
    with checkpoint.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(folder / f"{name}.json", f"{text}\n".encode())
    return folder / f"{name}.json"


def published_line(
    published: Mapping[str, float | str], keys: Iterable[str], form: str = ""
) -> list[tuple[str, ...]]:
    """Return the table line of published figures, for below a measured one; none if unpublished."""
    values = [published.get(key, "–") for key in keys]
    texts = (value if isinstance(value, str) else f"{value:{form}}" for value in values)
    return [("  published", *texts)] if published else []


def text_of(values: Sequence[float], digits: int, missing: str = "", total: int = 0) -> str:
    """Format mean and standard deviation of values, and of ``total`` how many there are.

    >>> text_of([1.0, 2.0], 1), text_of([1.0], 1, "reached", 3), text_of([], 1, "reached", 3)
    ('1.5 ± 0.7', '1.0 (1 of 3 reached)', 'not reached')
    """
    if not values:
        return f"not {missing}" if missing else "–"
    mean, spread = mean_and_spread(values)
    text = number(mean, digits)
    if spread is not None:
        text = f"{text} ± {spread:,.{digits}f}"
    some = missing and len(values) < total
    return f"{text} ({len(values)} of {total} {missing})" if some else text


def number(value: float, digits: int) -> str:
    """Format a number with ``digits`` decimals; one too small for them with two significant digits.

    >>> number(12345.678, 2), number(0.0012, 2), number(0, 2)
    ('12,345.68', '0.0012', '0.00')
    """
    if value and abs(value) < 10**-digits / 2:
        return f"{value:.2g}"
    return f"{value:,.{digits}f}"
