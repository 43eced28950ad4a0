"""Lay out a figure: places of everything in thousandths of its width and height, from top left.

Lines are drawn in a square of a thousand units that is stretched to the figure; texts and marks are
placed by the same numbers and are not stretched, so that a figure reads as well on a telephone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from vertizo.lab.report.curves import Drawing, Line, Point, thinned
from vertizo.lab.report.measures import Axis, Measure, count, short
from vertizo.lab.report.reading import REFERENCES

MARKS = 7
MOST_POINTS = 4000
"""Most points of all lines of one figure together."""
MOST_WORDS = 8
"""Most lines that are described in words."""
ROOM = 40
"""Most characters of the numbers below a figure, for which a telephone has room."""
COLOURS = 7
SHAPES = 8


class Tick(NamedTuple):
    """A number beside an axis, with its place in thousandths."""

    at: float
    text: str
    is_minor: bool = False
    """Whether its number is left out on a telephone, where all would run into each other."""


class Stroke(NamedTuple):
    """One drawn line of a plot."""

    line: int
    path: str
    band: str | None
    """Path of the band of one standard deviation to either side of the mean."""
    marks: list[tuple[float, float]]
    readings: list[tuple[int, str]]
    """Places of its points, each with the text that a pointer reads there."""


class Plot(NamedTuple):
    """A plot of one measure against one axis."""

    measure: Measure
    axis: Axis
    title: str
    across: list[Tick]
    upright: list[Tick]
    strokes: list[Stroke]
    largest: float
    """Value at the right end, in the axis's unit."""
    left_out: int
    """Number of lines that have no place on this axis."""
    cut: list[tuple[float, bool]]
    """Points where lines leave the frame: place across in percent, and whether above the frame."""
    diagonal: str | None = None
    """Path of the diagonal, on which the measure equals the axis's value."""


def plot(drawing: Drawing, measure: Measure, axis: Axis) -> Plot | None:
    """Lay out one measure against one axis; None where no line has points for both."""
    shown = drawing.shown(measure, axis)
    if not shown:
        return None
    most = max(40, MOST_POINTS // len(shown))  # so that a figure does not grow without end
    lines = [(place, thinned(points, most)) for place, points in shown]
    every = [point for _, points in lines for point in points]
    right = max(point.at[axis.key] for point in every) or 1.0
    low, high = _limits([points for _, points in lines], measure, axis)
    title, divisor = axis.unit(right)

    def y(value: float) -> float:
        share = (high - value) / (high - low)
        return round(min(max(1000 * share, -1e5), 1e5), 1)

    def stroke(place: int, points: Sequence[Point]) -> Stroke:
        xs = [round(1000 * point.at[axis.key] / right, 1) for point in points]
        path = [(x, y(point.mean)) for x, point in zip(xs, points, strict=True)]
        band = None
        if drawing.lines[place].control == "none" and any(p.spread is not None for p in points):
            above, below = (
                [(x, y(p.mean + sign * (p.spread or 0.0))) for x, p in zip(xs, points, strict=True)]
                for sign in (1, -1)
            )
            band = f"{_path([*above, *reversed(below)])}Z"
        chosen = list(range(len(points)))
        if len(points) > MARKS:  # a few, at other places than those of its neighbours
            step, shift = (len(points) - 1) / MARKS, (place % 4) / 4
            chosen = [round((k + shift) * step) for k in range(MARKS)]
        marks = [(path[k][0] / 10, path[k][1] / 10) for k in chosen if 0 <= path[k][1] <= 1000]
        readings = [
            (round(1000 * p.at[axis.key] / right), measure.text(p.mean, p.spread)) for p in points
        ]
        return Stroke(place, _path(path), band, marks, readings)

    first = [next((p for p in points if not low <= p.mean <= high), None) for _, points in lines]
    outside = {(round(100 * p.at[axis.key] / right, 1), p.mean > high) for p in first if p}
    scale, least = measure.scale, 1.0 if axis.key == "round" else 0.0
    return Plot(
        measure=measure,
        axis=axis,
        title=title,
        across=fitting(
            [
                Tick(1000 * tick * divisor / right, text(tick, max(step, least)))
                for tick, step in ticks(0.0, right / divisor)
                if not least or tick.is_integer()
            ],
            ROOM,
        ),
        upright=[
            Tick(y(tick / scale), text(tick, step))
            for tick, step in ticks(low * scale, high * scale)
        ],
        strokes=[stroke(place, points) for place, points in lines],
        largest=right / divisor,
        left_out=sum(measure.key in line.points for line in drawing.lines) - len(shown),
        cut=sorted(outside),
        diagonal=_path([(0.0, y(0.0)), (1000.0, y(right))]) if measure.diagonal else None,
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _limits(lines: Sequence[Sequence[Point]], measure: Measure, axis: Axis) -> tuple[float, float]:
    """Choose the vertical range: all means and bands, with a small margin.

    If the first point and the first twentieth of the axis would take half of the height or more,
    the range fits the later points.
    """
    low, high = _range(lines)
    if axis.key != "share" and not measure.from_zero:
        begun = max(p.at[axis.key] for points in lines for p in points) / 20
        later = _range(
            [[p for p in points[1:] if p.at[axis.key] >= begun] or points for points in lines]
        )
        if 0 < 2 * (later[1] - later[0]) < high - low:
            low, high = later
    if measure.unit == "%" or measure.name.endswith(("AUC", "precision")):  # shares
        high = min(high, 1.0)
    if measure.from_zero:
        return 0.0, 1.04 * high or 1.0
    air = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    return low - air, high + air


def _range(lines: Sequence[Sequence[Point]]) -> tuple[float, float]:
    every = [(p.mean, p.spread or 0.0) for points in lines for p in points]
    return min(mean - spread for mean, spread in every), max(m + spread for m, spread in every)


def ticks(low: float, high: float, wanted: int = 5) -> list[tuple[float, float]]:
    """List round numbers in a range, each with their step: 1, 2 or 5 times a power of ten.

    >>> [tick for tick, _ in ticks(0, 23)]
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    raw = (high - low) / wanted
    if not raw > 0 or not math.isfinite(raw):
        return [(low, 1.0)]
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [power * factor for factor in (1, 2, 5, 10)]
    step = min(steps, key=lambda step: abs((high - low) / step - wanted))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [(place * step + 0.0, step) for place in range(first, last + 1)]


def fitting(across: Sequence[Tick], room: int) -> list[Tick]:
    """Mark as many ticks as minor as it takes for the others to fit into ``room`` characters.

    >>> [tick.is_minor for tick in fitting([Tick(k, "100,000") for k in range(4)], 20)]
    [False, True, False, True]
    """
    every = -(-sum(len(tick.text) + 2 for tick in across) // room)
    return [tick._replace(is_minor=bool(place % every)) for place, tick in enumerate(across)]


def text(tick: float, step: float) -> str:
    """Format a number beside an axis, with as many decimals as its step has."""
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{tick:,.{digits}f}" if digits <= 6 else f"{tick:g}"


def look(line: Line) -> dict[str, Any]:
    """Return a line's CSS classes: colour and marks of its variant, dashes of its control."""
    return {
        "colour": f"c{line.variant % COLOURS}",
        "shape": f"m{line.variant % SHAPES}",
        "kind": f"k-{line.control}",
    }


def readings(drawing: Drawing, plots: Sequence[Plot]) -> dict[str, Any]:
    """Collect what a pointer over a figure reads: for each line [place, index of text] a point."""
    texts: dict[str, int] = {}
    found = {
        f"{each.measure.key} {each.axis.key}": {
            str(stroke.line): [[x, texts.setdefault(t, len(texts))] for x, t in stroke.readings]
            for stroke in each.strokes
        }
        for each in plots
    }
    return {"names": [line.name for line in drawing.lines], "texts": list(texts), "plots": found}


def describe(drawing: Drawing, measure: Measure) -> str:
    """Describe a figure in words: where each line begins and ends, without the controls."""
    every = [line for line in drawing.lines if line.points.get(measure.key)]
    lines = [line for line in every if line.control not in REFERENCES]
    main = [line for line in lines if line.control == "none"] or lines
    parts = [f"{line.name} {_course(line.points[measure.key], measure)}" for line in main]
    ends = f"; {len(parts) - MOST_WORDS} more in the table" if len(parts) > MOST_WORDS else ""
    words = f"{measure.name}: {'; '.join(parts[:MOST_WORDS])}{ends}."
    if any(p.spread is not None for line in main for p in line.points[measure.key]):
        words += " Bands and ± are one standard deviation over seeds."
    if len(main) < len(lines):
        words += " Dashes are frozen clients, dots random updates, both by turns label-free ones."
    level = [
        f"{line.name} {measure.text(end.mean, end.spread)}"
        for line in every
        if line.control in REFERENCES
        for end in line.points[measure.key][-1:]
    ]
    return f"{words} Level: {'; '.join(level)}, of the same records." if level else words


def _course(points: Sequence[Point], measure: Measure) -> str:
    first, last = points[0], points[-1]
    end = measure.text(last.mean, last.spread)
    if "round" in last.at:
        end += f" in round {count(last.at['round'])}"
    return f"goes from {measure.text(first.mean)} to {end}" if len(points) > 1 else f"has {end}"


def table(drawing: Drawing, rows: int = 9) -> dict[str, Any]:
    """Tabulate evenly chosen evaluations of every line, as the figure's other form."""
    body = []
    for line in drawing.lines:
        by_round: dict[float, dict[str, Point]] = {}
        for key, points in line.points.items():
            for point in points:
                by_round.setdefault(point.at.get("round", 0.0), {})[key] = point
        anyone = [next(iter(found.values())) for _, found in sorted(by_round.items())]
        level = line.control in REFERENCES
        for chosen in anyone[-1:] if level else thinned(anyone, rows):
            here = by_round[chosen.at.get("round", 0.0)]
            places = [None if level else chosen.at.get(axis.key) for axis in drawing.axes]
            figures = [(m, here.get(m.key)) for m in drawing.measures]
            body.append(
                {
                    "name": line.name,
                    "places": ["" if place is None else short(place) for place in places],
                    "figures": ["" if p is None else m.bare(p.mean, p.spread) for m, p in figures],
                }
            )
    heads = [axis.head for axis in drawing.axes]
    return {"axes": heads, "measures": [m.heading for m in drawing.measures], "rows": body}
