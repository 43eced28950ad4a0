"""Draw pictures to files with Matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vertizo.lab.reproduction.outcome import Picture
from vertizo.run.results import checkpoint

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")
"""Colours of Okabe and Ito, which most colour-blind people can tell apart."""
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "vertizo", "svg.fonttype": "none", "font.size": 9}
WIDTH, HEIGHT = 5.2, 3.8
"""Size of one picture in inches."""


def available() -> bool:
    """Whether Matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(pictures: Sequence[Picture], path: Path) -> None:
    """Write pictures side by side, at most three in a row, to one .svg, .png or .pdf file."""
    with sheet(len(pictures), path) as places:
        for axes, picture in zip(places, pictures, strict=True):
            draw_lines(axes, picture)


@contextmanager
def sheet(count: int, path: Path) -> Iterator[Sequence[Any]]:
    """Yield Matplotlib axes for ``count`` pictures, and write them to one file at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(3, count)
    rows = math.ceil(count / columns)
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
        places = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in places[count:]:
            axes.set_visible(False)
        yield list(places[:count])
        content = io.BytesIO()
        kind = path.suffix.removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(content, format=kind, dpi=110, metadata=metadata)
    with checkpoint.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(path, content.getvalue())


def draw_lines(axes: Any, picture: Picture) -> None:
    """Draw a picture on Matplotlib axes."""
    colours: dict[str, str] = {}
    for line in picture.lines:
        name = line.words.removesuffix(", published")
        own = len(colours) if line.colour is None else line.colour
        colour = colours.setdefault(name, COLOURS[own % len(COLOURS)])
        x, y = [point.x for point in line.points], [point.y for point in line.points]
        style = {"linestyle": "--", "marker": "x"} if line.published else {"marker": "o"}
        if not picture.markers and len(x) > 3:  # a shorter curve would hardly be seen
            style.pop("marker", None)
        axes.plot(x, y, color=colour, label=line.words, linewidth=1.3, markersize=3.5, **style)
        low, high = [p.low for p in line.points], [p.high for p in line.points]
        if low != high:
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if picture.log_x:
        axes.set_xscale("log")
    label(axes, picture)


def label(axes: Any, picture: Picture) -> None:
    """Put a picture's title, labels, ticks and legend on Matplotlib axes."""
    from matplotlib.ticker import NullLocator

    if picture.ticks:
        axes.set_xticks(list(picture.ticks), list(picture.ticks.values()))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(picture.title, fontsize=9, wrap=True)
    axes.set_xlabel(picture.x)
    axes.set_ylabel(picture.y)
    axes.grid(alpha=0.3, linewidth=0.5)
    if picture.lines:
        axes.legend(fontsize=7, framealpha=0.8)
