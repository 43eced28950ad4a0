"""Accuracy by the numbers that a party sends of a record, with and without a guarantee: a chart of
``experiments/results/widths_adult.json``, and of tangent queries in ``narrow_adult.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import mean

from canvas import STYLE, text_at

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
SCORE = "raw_head.test_auc"
WIDTH, HEIGHT = 860, 400
LEFT, RIGHT, TOP, BOTTOM = 74, 560, 84, 328
LOWEST, HIGHEST, STEP = 0.89, 0.93, 0.01
COLOURS = """
  .axis { stroke: #c3d5e8; stroke-width: 1 } .line { fill: none; stroke-width: 2.5 }
  .control { stroke: #9a3412; fill: #9a3412 } .tangent { stroke: #2b5d8f; fill: #2b5d8f }
  .labels { stroke: #15803d; fill: #15803d } .dpzv { stroke: #7c3aed; fill: #7c3aed }
  .free { stroke: #4d5a66; fill: #4d5a66 }
  @media (prefers-color-scheme: dark) {
    .axis { stroke: #35495e }
    .control { stroke: #f0a37a; fill: #f0a37a } .tangent { stroke: #7fb0de; fill: #7fb0de }
    .labels { stroke: #6fcf8f; fill: #6fcf8f } .dpzv { stroke: #c4a6f7; fill: #c4a6f7 }
    .free { stroke: #b3bfca; fill: #b3bfca }
  }
  .line { fill: none }
"""


@dataclass(frozen=True)
class Series:
    """One line of the chart: its entry in the results, its colour, and its words."""

    entry: str
    kind: str
    name: str
    promise: str


SERIES = (
    Series("not-private", "free", "gradients, no guarantee", "ε = ∞"),
    Series("tangent", "tangent", "tangent queries", "ε = 1, label advantage 0.107"),
    Series("private-labels", "labels", "private labels", "ε = 1, label advantage 0.463"),
    Series("dpzv", "dpzv", "DPZV", "ε = 1, label advantage 0.107"),
    Series("label-free", "control", "control: no label at all", "ε = 0, label advantage 0"),
)


def scores() -> dict[str, dict[int, list[float]]]:
    """AUC of the raw head: entry → numbers a party → one of each seed."""
    found: dict[str, dict[int, list[float]]] = {series.entry: {} for series in SERIES}
    for width, row in _read("widths_adult")["widths"].items():
        for entry, figures in row.items():
            found[entry][int(width)] = figures[SCORE]
    found["tangent"][1] = _read("narrow_adult")["methods"]["epsilon-1"][SCORE]
    return found


def draw() -> str:
    """The SVG of the chart."""
    found = scores()
    widths = sorted(found["label-free"])
    title = "Adult, three parties: what training is worth"
    sheet = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t d">',
        f'  <title id="t">{title}</title>',
        f'  <desc id="d">{_described(found)}</desc>',
        f"  <style>{STYLE}{COLOURS}  </style>",
        f'  <rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        text_at(18, 36, title, "ink", size=18, weight=600),
        text_at(18, 62, "test AUC of the raw head, which stays with the label holder", "quiet"),
    ]
    for step in range(round((HIGHEST - LOWEST) / STEP) + 1):
        value = LOWEST + STEP * step
        y = _y(value)
        sheet.append(f'  <path class="axis" d="M{LEFT} {y} H{RIGHT}"/>')
        sheet.append(text_at(LEFT - 44, y + 5, f"{value:.2f}", "quiet"))
    for width in widths:
        sheet.append(text_at(_x(width), BOTTOM + 24, str(width), "quiet", anchor="middle"))
    middle = (LEFT + RIGHT) // 2
    below = "numbers that each party sends of a record"
    sheet.append(text_at(middle, BOTTOM + 52, below, "quiet", anchor="middle"))
    for place, series in enumerate(SERIES):
        sheet += _line(series, found[series.entry])
        y = TOP + 14 + 50 * place
        sheet.append(f'  <circle class="{series.kind}" cx="{RIGHT + 34}" cy="{y - 5}" r="6"/>')
        sheet.append(text_at(RIGHT + 50, y, series.name, "ink", weight=600))
        sheet.append(text_at(RIGHT + 50, y + 20, series.promise, "quiet", size=13))
    return "\n".join([*sheet, "</svg>", ""])


def _line(series: Series, points: dict[int, list[float]]) -> list[str]:
    """A line through the means, and a dot on each; a method of one width is a larger dot."""
    places = [(_x(width), _y(mean(points[width]))) for width in sorted(points)]
    path = " L".join(f"{x} {y}" for x, y in places)
    radius = 5 if len(places) > 1 else 8
    dots = [f'  <circle class="{series.kind}" cx="{x}" cy="{y}" r="{radius}"/>' for x, y in places]
    return [f'  <path class="{series.kind} line" d="M{path}"/>', *dots]


def _described(found: dict[str, dict[int, list[float]]]) -> str:
    parts = []
    for series in SERIES:
        points = found[series.entry]
        each = ", ".join(f"{mean(points[width]):.3f} at {width}" for width in sorted(points))
        parts.append(f"{series.name} ({series.promise}): {each}")
    return "Test AUC by numbers a party. " + "; ".join(parts) + "."


def _x(width: int) -> int:
    return round(LEFT + 24 + (RIGHT - LEFT - 48) * log2(width) / 5)


def _y(value: float) -> int:
    return round(BOTTOM - (BOTTOM - TOP) * (value - LOWEST) / (HIGHEST - LOWEST))


def _read(name: str) -> dict[str, dict[str, dict[str, list[float]]]]:
    read: dict[str, dict[str, dict[str, list[float]]]]
    read = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return read
