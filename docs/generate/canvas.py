"""One round as a drawing: who computes what, in which order, and what crosses between them.

Every method has the same sheet: clients on the left, the server on the right, the wire between.
A thick arrow carries numbers for each record, a thin one a few numbers for the whole batch. Which
rows of the server's table are fresh is drawn in its corner. Colours follow the reader's system;
the sheet has a ground of its own, so that it can be read on any page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 860
BOX = 312
LEFT, RIGHT = 18, WIDTH - 18 - BOX
TOP = 66
LINE = 25

STYLE = """
  .ground { fill: #ffffff } .box { fill: #eef4fb; stroke: #2b5d8f; stroke-width: 1.5 }
  .behind { fill: #ffffff; stroke: #9db7d1; stroke-width: 1.2 }
  .ink { fill: #10304f } .quiet { fill: #4d5a66 } .wire { stroke: #2b5d8f; fill: none }
  .head { fill: #2b5d8f } .badge { fill: #2b5d8f } .number { fill: #ffffff }
  .fresh { fill: #2b5d8f } .stale { fill: #c3d5e8 } .noise { fill: #9a3412 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #14191f } .box { fill: #1d2a38; stroke: #7fb0de }
    .behind { fill: #14191f; stroke: #4b6580 }
    .ink { fill: #e4edf6 } .quiet { fill: #b3bfca } .wire { stroke: #7fb0de }
    .head { fill: #7fb0de } .badge { fill: #7fb0de } .number { fill: #14191f }
    .fresh { fill: #7fb0de } .stale { fill: #35495e } .noise { fill: #f0a37a }
  }
"""


@dataclass(frozen=True)
class Says:
    """A line in words; with ``step`` it begins a step and has its number before it."""

    text: str
    step: int | None = None


@dataclass(frozen=True)
class Formula:
    """A line of mathematics; ``noised`` where a clip and noise can be."""

    text: str
    noised: bool = False


Line = Says | Formula


@dataclass(frozen=True)
class Arrow:
    """What crosses the wire: what it is, and how much."""

    what: str
    size: str
    up: bool
    thick: bool


@dataclass(frozen=True)
class Round:
    """All that is drawn of one method's round."""

    name: str
    title: str
    description: str
    synchronous: bool
    client: Sequence[Line]
    server: Sequence[Line]
    arrows: Sequence[Arrow]
    """From top to bottom, as they happen."""
    closing: Sequence[str]
    """Below the drawing: what never crosses, and what the round costs."""


def draw(round_: Round) -> str:
    """The SVG of a round."""
    lines = max(len(round_.client), len(round_.server))
    height = 62 + lines * LINE + (8 if round_.synchronous else 0)
    bottom = TOP + height
    total = bottom + 30 + 22 * len(round_.closing)
    sheet = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t d">',
        f'  <title id="t">{escape(round_.title)}</title>',
        f'  <desc id="d">{escape(round_.description)}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="ground" width="{WIDTH}" height="{total}" rx="8"/>',
        text_at(LEFT, 36, round_.title, "ink", size=18, weight=600),
    ]
    timing = "all clients in step" if round_.synchronous else "each client at its own pace"
    sheet.append(text_at(WIDTH - 18, 36, timing, "quiet", anchor="end"))
    sheet += _party(LEFT, height, round_.client, round_.synchronous, "client m")
    sheet += _party(RIGHT, height, round_.server, False, "server")
    sheet += _table(round_.synchronous)
    sheet += _wires(round_.arrows, height)
    for place, text in enumerate(round_.closing):
        middle = WIDTH // 2
        sheet.append(text_at(middle, bottom + 34 + 22 * place, text, "quiet", anchor="middle"))
    return "\n".join([*sheet, "</svg>", ""])


def _party(x: int, height: int, lines: Sequence[Line], many: bool, name: str) -> list[str]:
    """A party's box; with ``many`` there are others behind it that do the same."""
    width, tall = BOX, height
    drawn = []
    if many:
        width, tall = BOX - 12, height - 12
        for shift in (12, 6):
            drawn.append(_rectangle("behind", x + shift, TOP + shift, width, tall))
        name = "every client m"
    drawn.append(_rectangle("box", x, TOP, width, tall))
    drawn.append(text_at(x + 16, TOP + 28, name, "ink", size=16, weight=600))
    for place, line in enumerate(lines):
        y = TOP + 62 + place * LINE
        if isinstance(line, Formula):
            kind = "noise" if line.noised else "ink"
            text = line.text.lstrip()
            indent = round(7.8 * (len(line.text) - len(text)))
            drawn.append(text_at(x + 40 + indent, y, text, kind, mono=True))
            continue
        if line.step is not None:
            drawn.append(f'  <circle class="badge" cx="{x + 24}" cy="{y - 5}" r="10"/>')
            number = str(line.step)
            drawn.append(text_at(x + 24, y, number, "number", size=13, weight=600, anchor="middle"))
        drawn.append(text_at(x + 40, y, line.text, "ink"))
    return drawn


def _table(synchronous: bool) -> list[str]:
    """The server's embeddings in small: a column a client, dark where they were just sent."""
    drawn = []
    x, y = RIGHT + BOX - 88, TOP + 12
    for column in range(4):
        for row in range(3):
            new = row == 1 and (synchronous or column == 1)
            kind = "fresh" if new else "stale"
            drawn.append(_rectangle(kind, x + column * 18, y + row * 9, 16, 7, round_=1))
    return drawn


def _wires(arrows: Sequence[Arrow], height: int) -> list[str]:
    drawn = []
    start, end = LEFT + BOX + 8, RIGHT - 8
    step = height / len(arrows)
    for place, arrow in enumerate(arrows):
        y = round(TOP + step * (place + 0.5)) + 4
        thick = 6 if arrow.thick else 2
        tip, tail = (end, start) if arrow.up else (start, end)
        towards = 1 if arrow.up else -1
        drawn.append(
            f'  <path class="wire" stroke-width="{thick}" d="M{tail} {y} H{tip - 12 * towards}"/>'
        )
        drawn.append(f'  <path class="head" d="M{tip} {y} l{-14 * towards} -8 v16 z"/>')
        middle = (start + end) // 2
        drawn.append(text_at(middle, y - 14, arrow.what, "ink", anchor="middle", size=13.5))
        drawn.append(text_at(middle, y + 22, arrow.size, "quiet", anchor="middle", size=12.5))
    return drawn


def _rectangle(kind: str, x: int, y: int, width: int, height: int, round_: int = 10) -> str:
    return (
        f'  <rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{round_}"/>'
    )


def text_at(
    x: int,
    y: int,
    text: str,
    kind: str,
    *,
    size: float = 14,
    weight: int | None = None,
    anchor: str | None = None,
    mono: bool = False,
) -> str:
    """A line of text; ``kind`` is its class in `STYLE`."""
    settings = f'class="{kind}" x="{x}" y="{y}"'
    if size != 14:
        settings += f' font-size="{size}"'
    if weight is not None:
        settings += f' font-weight="{weight}"'
    if anchor is not None:
        settings += f' text-anchor="{anchor}"'
    if mono:
        settings += ' font-family="ui-monospace, monospace" font-size="13"'
    return f"  <text {settings}>{escape(text)}</text>"
