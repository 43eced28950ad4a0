"""The findings of many runs or of a plan: sentences, tables, data frames and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vertizo.core.errors import ConfigError
from vertizo.run.results import html_form


class Table(NamedTuple):
    """A table of text, as it is shown."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


class Dot(NamedTuple):
    """One figure of a picture, with the ends of its interval."""

    name: str
    value: float
    ends: tuple[float, float] | None = None
    colour: int = 0


class Picture(NamedTuple):
    """A picture of dots below each other, over one axis."""

    axis: str
    dots: Sequence[Dot]
    line: float | None = None
    """Place on the axis of a vertical line; None for no line."""
    log: bool = False


@dataclass(frozen=True, repr=False)
class Findings:
    """What `compare`, `worth` or `plan` found. A notebook shows it as tables."""

    title: str
    """What was looked at."""
    verdict: Sequence[str]
    """What came out, in sentences."""
    privacy: Sequence[tuple[str, str]]
    """What is guaranteed, and of what."""
    tables: Sequence[Table]
    """What people read, each with a title, headings and rows of text."""
    notes: Sequence[str]
    """What the figures mean."""
    content: Mapping[str, Any]
    """Every number, as the command prints it with ``--json``."""
    records: Mapping[str, Sequence[Mapping[str, Any]]]
    """Lines of each frame."""
    picture: Picture

    @property
    def frame(self) -> Any:
        """The main figures as a pandas frame; ConfigError where pandas is not installed."""
        return next(iter(self.frames.values()))

    @property
    def frames(self) -> dict[str, Any]:
        """Every frame by name, the main one first; ConfigError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("frames need pandas; pip install pandas") from None
        return {name: pandas.json_normalize(list(own)) for name, own in self.records.items()}

    def plot(self, ax: Any = None) -> Any:
        """Draw the main figures on Matplotlib axes, new ones by default, and return these.

        ConfigError where Matplotlib is not installed.
        """
        from vertizo.lab.reproduction import plots

        if not plots.available():
            raise ConfigError("pictures need Matplotlib; pip install 'vertizo[plots]'")
        line = self.picture.line
        dots = [dot for dot in self.picture.dots if math.isfinite(dot.value)]
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=(6.4, 0.9 + 0.34 * len(dots)), layout="constrained")
        for place, dot in enumerate(dots):
            low, high = dot.ends or (dot.value, dot.value)
            around = [[dot.value - low], [high - dot.value]]
            colour = plots.COLOURS[dot.colour]
            ax.errorbar(dot.value, place, xerr=around, fmt="o", color=colour, capsize=3)
        names = [_plain(dot.name) for dot in dots]
        ax.set(yticks=range(len(dots)), yticklabels=names, xlabel=_plain(self.picture.axis))
        ax.set_title(_plain(self.title), fontsize="medium")
        if self.picture.log:
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
        if line is not None:
            ax.axvline(line, color="gray", linewidth=1, linestyle="--")
        ax.invert_yaxis()
        ax.grid(axis="x", alpha=0.3)
        return ax

    def __repr__(self) -> str:
        privacy = (f"privacy{of and ' of '}{of}: {words}" for of, words in self.privacy)
        return "\n".join([self.title, *self.verdict, *privacy])

    def __str__(self) -> str:
        """Return the text of `__repr__`, followed by the tables."""
        return "\n\n".join([repr(self), *map(_text, self.tables)])

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: verdict, privacy, tables, and notes on the figures."""
        said = [(self.title, "; ".join(self.verdict).replace(".; ", ". "))]
        for place, (of, words) in enumerate(self.privacy):
            said.append((f"Privacy of {of}" if of else "" if place else "Privacy", words))
        first, *others = (html_form.table(t.rows, t.headings, t.title) for t in self.tables)
        notes = html_form.paragraphs(("", note) for note in self.notes)
        more = html_form.folded("What the figures mean", notes) if notes else ""
        return html_form.paragraphs(said) + first + "".join(others) + more


def _plain(text: str) -> str:
    """Escape a text so that Matplotlib reads no mathematics in it."""
    return text.replace("$", r"\$")


def _text(table: Table) -> str:
    rows = [table.headings, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = (map(str.ljust, row, widths) for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in cells)
