"""Who takes part, and how well the model then does: a chart of one ``worth_*.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from canvas import STYLE, text_at

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
WIDTH, ROW, TOP = 860, 34, 84
LEFT, RIGHT = 330, 760
COLOURS = """
  .axis { stroke: #c3d5e8 } .federated { stroke: #2b5d8f; fill: #2b5d8f; stroke-width: 3 }
  .end { stroke: #9a3412; fill: #9a3412; stroke-width: 3 }
  @media (prefers-color-scheme: dark) {
    .axis { stroke: #35495e } .federated { stroke: #7fb0de; fill: #7fb0de }
    .end { stroke: #f0a37a; fill: #f0a37a }
  }
"""


def draw(name: str, title: str, who: dict[str, str]) -> str:
    """The SVG: a dot and its 95 % interval for everybody who takes part.

    Args:
        name: of the study.
        title: above the chart.
        who: the words of each row, by its kind, and for a federation of some by who is missing.
    """
    content = json.loads((RESULTS / f"worth_{name}.json").read_text(encoding="utf-8"))
    rows = [(_words(row, content["parties"], who), row) for row in content["rows"]]
    bottom = TOP + ROW * len(rows)
    told = "; ".join(f"{words} {row['value']:.3f}" for words, row in rows)
    sheet = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 40}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t d">',
        f'  <title id="t">{title}</title>',
        f'  <desc id="d">Test AUC and 95 % intervals. {told}.</desc>',
        f"  <style>{STYLE}{COLOURS}  </style>",
        f'  <rect class="ground" width="{WIDTH}" height="{bottom + 40}" rx="8"/>',
        text_at(18, 36, title, "ink", size=18, weight=600),
        text_at(18, 60, "test AUC, 0.5 is chance and 1 is perfect; 95 % intervals", "quiet"),
    ]
    low = min(row["low"] for _, row in rows)
    high = max(row["high"] for _, row in rows)

    def x(value: float) -> int:
        return round(LEFT + (RIGHT - LEFT) * (value - low) / (high - low))

    for tick in range(int(low * 50) + 1, int(high * 50) + 1):
        sheet.append(f'  <path class="axis" d="M{x(tick / 50)} {TOP - 12} V{bottom - 8}"/>')
        label = text_at(x(tick / 50), bottom + 12, f"{tick / 50:.2f}", "quiet", anchor="middle")
        sheet.append(label)
    for place, (words, row) in enumerate(rows):
        y = TOP + ROW * place + 10
        kind = "federated" if row["kind"] == "federated" else "end"
        sheet.append(text_at(18, y + 5, words, "ink"))
        sheet.append(f'  <path class="{kind}" d="M{x(row["low"])} {y} H{x(row["high"])}"/>')
        sheet.append(f'  <circle class="{kind}" cx="{x(row["value"])}" cy="{y}" r="6"/>')
        value = f"{row['value']:.3f}"
        sheet.append(text_at(WIDTH - 18, y + 5, value, "ink", weight=600, anchor="end"))
    return "\n".join([*sheet, "</svg>", ""])


def _words(row: dict[str, Any], parties: list[str], who: dict[str, str]) -> str:
    missing = [party for party in parties if party not in row["parties"]]
    if row["kind"] != "federated":
        return who[row["kind"]]
    return who["without " + missing[0]] if missing else who["federated"]
