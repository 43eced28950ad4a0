"""What a study found: tables of text, pictures, and every number behind them."""

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
    """A table as it is shown."""

    title: str
    columns: tuple[str, ...]
    """Headings, that of the first column left out."""
    rows: tuple[tuple[str, ...], ...]
    """What each line is about, then its cells."""


class Point(NamedTuple):
    """Mean, least and largest of a figure's seeds at one place."""

    x: float
    y: float
    low: float
    high: float

    @classmethod
    def of(cls, x: float, values: Sequence[float]) -> Point:
        """Of one value a seed."""
        return cls(x, mean_and_spread(values)[0], min(values), max(values))


@dataclass(frozen=True)
class Line:
    """One curve of a picture."""

    words: str
    points: tuple[Point, ...]
    published: bool = False
    """Not measured here: drawn as a dashed line."""
    colour: int | None = None
    """Its place among the colours, for one that is the same in several pictures; unset: the
    next."""


@dataclass(frozen=True)
class Picture:
    """Lines over one axis."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    log_x: bool = False
    markers: bool = True
    ticks: Mapping[float, str] = field(default_factory=dict)
    """Places on the axis whose names stand there in place of numbers."""


@dataclass(frozen=True)
class Outcome:
    """All of a study."""

    grids: tuple[Grid, ...]
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Every seed's numbers, for JSON."""
    made_by: Mapping[str, Any] = field(default_factory=dict)
    """Commits, versions, processors and seconds: `vertizo.lab.made_by`."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON; of each point of a picture's lines x, mean, least and largest."""
        pictures = []
        for picture in self.pictures:
            lines = {
                line.words: [[float(f"{value:.5g}") for value in point] for point in line.points]
                for line in picture.lines
            }
            pictures.append(
                {"title": picture.title, "x": picture.x, "y": picture.y} | {"lines": lines}
            )
        return {
            "made_by": dict(self.made_by),
            "tables": [asdict(grid) for grid in self.grids],
            "notes": list(self.notes),
            "figures": dict(self.figures),
            "pictures": pictures,
        }


def write(folder: Path, name: str, content: Mapping[str, Any]) -> Path:
    """Leave all figures in ``NAME.json`` of a folder, which is made; RunError if it cannot be."""
    text = strict_json.text(content, indent=1)
    # a line for each entry, and lists of numbers on one line
    text = re.sub(
        r"\[\s+([-\d.eE+,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text
    )
    with checkpoint.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(folder / f"{name}.json", f"{text}\n".encode())
    return folder / f"{name}.json"


def published_line(
    published: Mapping[str, float | str], keys: Iterable[str], form: str = ""
) -> list[tuple[str, ...]]:
    """The line below a measured one: the paper's figures or words; none where it has neither."""
    values = [published.get(key, "–") for key in keys]
    texts = (value if isinstance(value, str) else f"{value:{form}}" for value in values)
    return [("  published", *texts)] if published else []


def text_of(values: Sequence[float], digits: int, missing: str = "", total: int = 0) -> str:
    """Mean and standard deviation of those that have a value.

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
    """A number with so many digits behind the point; small ones with two that say something.

    >>> number(12345.678, 2), number(0.0012, 2), number(0, 2)
    ('12,345.68', '0.0012', '0.00')
    """
    if value and abs(value) < 10**-digits / 2:
        return f"{value:.2g}"
    return f"{value:,.{digits}f}"
