"""Accuracy by the numbers that a party sends of a record, with and without a guarantee: charts of
``experiments/results/widths_*.json``, which `vertizo reproduce` makes of ``experiments/widths``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import mean
from typing import TypeAlias

from canvas import STYLE, text_at

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
WIDTH, HEIGHT = 860, 400
TOP, BOTTOM = 104, 290
LEFT, ACROSS, BESIDE = 56, 220, 60
"""Of the first chart; of each; and from one to the next."""
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
Scores: TypeAlias = dict[str, dict[int, list[float]]]
"""Entry → numbers a party → one of each seed."""


@dataclass(frozen=True)
class Series:
    """One line of each chart: its row in the results, its colour, and its words."""

    entry: str
    kind: str
    name: str
    promise: str


SERIES = (
    Series("not-private", "free", "no guarantee", "ε = ∞"),
    Series("tangent", "tangent", "tangent queries", "ε = 1"),
    Series("private-labels", "labels", "private labels", "ε = 1"),
    Series("dpzv", "dpzv", "DPZV", "ε = 1"),
    Series("label-free", "control", "control: no labels", "ε = 0"),
)


@dataclass(frozen=True)
class Chart:
    """One data set: its results, its words, and its axis."""

    results: str
    title: str
    unit: str
    lowest: float
    highest: float
    step: float
    digits: int

    def scores(self) -> Scores:
        """Of the raw head; the control's are those of the private labels' cells."""
        path = RESULTS / f"{self.results}.json"
        found: Scores = {series.entry: {} for series in SERIES}
        for cell in json.loads(path.read_text(encoding="utf-8"))["figures"]["cells"]:
            width = int(cell["column"].removeprefix("n"))
            if cell["values"]:
                found[cell["row"]][width] = cell["values"]
            if cell["row"] == "private-labels":
                found["label-free"][width] = cell["controls"]["label-free"]
        return found


CHARTS = (
    Chart("widths_adult", "Adult, 3 parties", "AUC", 0.88, 0.93, 0.01, 2),
    Chart("widths_mnist", "MNIST, 7 parties", "accuracy, %", 70, 100, 5, 0),
    Chart("widths_imdb", "IMDb, 3 parties", "accuracy, %", 50, 85, 5, 0),
)


def draw() -> str:
    """The SVG of all charts."""
    charts = [(chart, chart.scores()) for chart in CHARTS]
    title = "What training is worth, by what each party reveals of a record"
    sheet = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t d">',
        f'  <title id="t">{title}</title>',
        f'  <desc id="d">{" ".join(_described(*each) for each in charts)}</desc>',
        f"  <style>{STYLE}{COLOURS}  </style>",
        f'  <rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        text_at(18, 36, title, "ink", size=18, weight=600),
    ]
    for place, each in enumerate(charts):
        sheet += _chart(LEFT + place * (ACROSS + BESIDE), *each)
    middle, below = WIDTH // 2, "numbers that each party sends of a record"
    sheet.append(text_at(middle, BOTTOM + 46, below, "quiet", anchor="middle"))
    for place, series in enumerate(SERIES):
        x = 30 + place * (WIDTH - 30) // len(SERIES)
        sheet.append(f'  <circle class="{series.kind}" cx="{x}" cy="{BOTTOM + 73}" r="6"/>')
        sheet.append(text_at(x + 12, BOTTOM + 78, series.name, "ink", size=13, weight=600))
        sheet.append(text_at(x + 12, BOTTOM + 96, series.promise, "quiet", size=13))
    return "\n".join([*sheet, "</svg>", ""])


def _chart(left: int, chart: Chart, found: Scores) -> list[str]:
    sheet = [
        text_at(left, 72, chart.title, "ink", weight=600),
        text_at(left, 90, f"{chart.unit} of the raw head, test", "quiet", size=12),
    ]
    for step in range(round((chart.highest - chart.lowest) / chart.step) + 1):
        value = chart.lowest + chart.step * step
        y = _y(chart, value)
        sheet.append(f'  <path class="axis" d="M{left} {y} H{left + ACROSS}"/>')
        words = f"{value:.{chart.digits}f}"
        sheet.append(text_at(left - 8 - 7 * len(words), y + 5, words, "quiet", size=12))
    for width in sorted(found["label-free"]):
        x = _x(left, width)
        sheet.append(text_at(x, BOTTOM + 20, str(width), "quiet", size=12, anchor="middle"))
    for series in SERIES:
        sheet += _line(left, chart, series, found[series.entry])
    return sheet


def _line(left: int, chart: Chart, series: Series, points: dict[int, list[float]]) -> list[str]:
    """A line through the means, and a dot on each; a method of one width is a larger dot."""
    places = [(_x(left, width), _y(chart, mean(points[width]))) for width in sorted(points)]
    if not places:
        return []
    path = " L".join(f"{x} {y}" for x, y in places)
    radius = 4 if len(places) > 1 else 7
    dots = [f'  <circle class="{series.kind}" cx="{x}" cy="{y}" r="{radius}"/>' for x, y in places]
    return [f'  <path class="{series.kind} line" d="M{path}"/>', *dots]


def _described(chart: Chart, found: Scores) -> str:
    parts = []
    for series in SERIES:
        points = found[series.entry]
        if points:
            means = ((width, mean(points[width])) for width in sorted(points))
            each = ", ".join(f"{value:.{chart.digits + 1}f} at {width}" for width, value in means)
            parts.append(f"{series.name} ({series.promise}): {each}")
    return f"{chart.title}, {chart.unit} by numbers a party. {'; '.join(parts)}."


def _x(left: int, width: int) -> int:
    return round(left + 12 + (ACROSS - 24) * log2(width) / 5)


def _y(chart: Chart, value: float) -> int:
    """Values below the axis stand at its foot."""
    share = max(0.0, (value - chart.lowest) / (chart.highest - chart.lowest))
    return round(BOTTOM - (BOTTOM - TOP) * share)
