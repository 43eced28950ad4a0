"""The report's measures and axes, and the formats of figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vertizo.lab.report.reading import number
from vertizo.run.results.summary_figures import size_text


@dataclass(frozen=True)
class Measure:
    """A column of ``metrics.jsonl`` or of a summary."""

    key: str
    name: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 4
    from_zero: bool = False
    diagonal: bool = False
    """Whether the figure shows the diagonal, on which the measure equals the axis's value."""

    @property
    def heading(self) -> str:
        """The measure's name with its unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def bare(self, value: float, spread: float | None = None) -> str:
        """Format a figure without its unit, with its standard deviation if there is one."""
        words = f"{value * self.scale:.{self.digits}f}"
        return words if spread is None else f"{words} ± {spread * self.scale:.{self.digits}f}"

    def text(self, value: float, spread: float | None = None) -> str:
        """Format a figure with its unit."""
        return f"{self.bare(value, spread)} {self.unit}".rstrip()


def _scores(purpose: str) -> tuple[Measure, ...]:
    title = purpose.capitalize()
    return (
        Measure(f"{purpose}_auc", f"{title} AUC"),
        Measure(f"{purpose}_accuracy", f"{title} accuracy", "%", 100, 2),
        Measure(f"{purpose}_average_precision", f"{title} average precision"),
        Measure(f"{purpose}_pinball", f"{title} pinball loss"),
        Measure(f"{purpose}_huber", f"{title} Huber loss"),
        Measure(f"{purpose}_rmse", f"{title} RMSE"),
        Measure(f"{purpose}_r2", f"{title} R²"),
        Measure(f"{purpose}_loss", f"{title} loss"),
    )


CLOSING = (
    *_scores("test"),
    Measure("test_ks", "KS"),
    Measure("test_gini", "Gini"),
    Measure("test_lift_10", "Lift in the top 10 %", digits=2),
    Measure("test_recall_10", "Recall in the top 10 %", "%", 100, 1),
    Measure("test_precision", "Precision at 0.5", "%", 100, 1),
    Measure("test_recall", "Recall at 0.5", "%", 100, 1),
    Measure("test_f1", "F1 at 0.5", digits=3),
    Measure("test_brier", "Brier score"),
    Measure("test_balanced_accuracy", "Balanced accuracy", "%", 100, 2),
    Measure("test_f1_macro", "Macro F1"),
    Measure("test_auc_macro", "Macro AUC"),
    Measure("test_mae", "Test MAE"),
)
"""Closing measures of a summary, the most telling first."""
RAW = {measure: replace(measure, key=f"raw_head.{measure.key}") for measure in CLOSING}
"""Each closing measure → the same of the raw head."""
CURVES = (
    *_scores("validation"),
    *_scores("test"),
    Measure("train_accuracy", "Running training accuracy", "%", 100, 2),
    Measure("train_loss", "Running training loss"),
)
TIMING = (
    Measure("staleness_mean", "Mean staleness", "rounds", 1, 1, True),
    Measure("staleness_max", "Largest staleness", "rounds", 1, 0, True),
    Measure("clip_fraction", "Clipped so far", "%", 100, 2, True),
)
"""Measures of evaluation rows about the course of a run."""


@dataclass(frozen=True)
class Axis:
    """A horizontal axis of curves, such as rounds or bytes."""

    key: str
    name: str
    head: str
    title: str
    """The title under the axis, with UNIT for its unit."""
    columns: tuple[str, ...]
    """Columns of a row that are added to its place on the axis."""
    units: tuple[tuple[str, float, float], ...] = (("", 1.0, 0.0),)
    """Units, the largest first: name, size, and the largest value from which on it is used."""

    def unit(self, largest: float) -> tuple[str, float]:
        """Return the title, and the divisor of values, for the largest value."""
        name, size, _ = next(unit for unit in self.units if largest >= unit[2])
        return self.title.replace("UNIT", name), size

    def value(self, row: Mapping[str, Any], table: float) -> float | None:
        """Return a row's place on the axis; None if a column is missing.

        ``table`` are the bytes that filled the embedding table beforehand.
        """
        total = table if self.key == "bytes" else 0.0
        for column in self.columns:
            value = number(row, column)
            if value is None:
                return None
            total += value
        return total


SIZES = (("GB", 1e9, 1e9), ("MB", 1e6, 1e6), ("kB", 1e3, 1e3), ("bytes", 1.0, 0.0))
TIMES = (("hours", 3600.0, 10800.0), ("minutes", 60.0, 180.0), ("seconds", 1.0, 0.0))
CLOCK = ("virtual clock", "virtual clock, s", "seconds of the virtual clock")
AXES = (
    Axis("round", "rounds", "round", "rounds", ("round",)),
    Axis(
        "bytes", "bytes", "bytes", "UNIT sent, both directions", ("bytes_up", "bytes_down"), SIZES
    ),
    Axis("seconds", "seconds", "seconds", "UNIT of this machine", ("seconds",), TIMES),
    Axis("virtual", *CLOCK, ("virtual_seconds",)),
)


def epsilon_axis(place: int, coverage: str, *, alone: bool) -> Axis:
    """Make the axis of ε for one coverage; ``alone`` where there is no other such axis."""
    name = "ε spent" if alone else f"ε spent, {coverage}"
    return Axis(f"epsilon{place}", name, name, f"ε spent so far ({coverage})", ("epsilon",))


def size(mean: float, spread: float | None = None) -> str:
    """Format bytes, with their standard deviation if it is large enough to be seen."""
    if spread is None or spread < 0.0005 * mean:
        return size_text(mean)
    return f"{size_text(mean)} ± {size_text(spread)}"


def count(value: float) -> str:
    """Format a count, or a mean of counts with one decimal."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def short(value: float) -> str:
    """Format a number to about three significant digits, without an exponent where that reads well.

    >>> short(0.12345), short(12345.0), short(1e-05)
    ('0.123', '12,345', '1e-05')
    """
    if value == int(value) and abs(value) < 1e7:
        return f"{value:,.0f}"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"
