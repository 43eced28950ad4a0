"""What is measured, what it is held against, and how figures are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vertizo.run.summary_figures import size_text
from vertizo.studies.report.reading import number


@dataclass(frozen=True)
class Measure:
    """A column of ``metrics.jsonl`` or of a summary."""

    key: str
    name: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 4
    from_zero: bool = False
    """Whether the axis begins at 0."""

    @property
    def heading(self) -> str:
        """Its name and unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def text(self, value: float, spread: float | None = None) -> str:
        """A figure, with its standard deviation where there is one."""
        words = f"{value * self.scale:.{self.digits}f}"
        if spread is not None:
            words += f" ± {spread * self.scale:.{self.digits}f}"
        return f"{words} {self.unit}".rstrip()


def _scores(purpose: str) -> tuple[Measure, ...]:
    title = purpose.capitalize()
    return (
        Measure(f"{purpose}_accuracy", f"{title} accuracy", "%", 100, 2),
        Measure(f"{purpose}_auc", f"{title} AUC"),
        Measure(f"{purpose}_average_precision", f"{title} average precision"),
        Measure(f"{purpose}_rmse", f"{title} RMSE"),
        Measure(f"{purpose}_r2", f"{title} R²"),
        Measure(f"{purpose}_loss", f"{title} loss"),
    )


CLOSING = _scores("test")
"""Of a summary, the most telling first."""
CURVES = (
    *_scores("validation"),
    *_scores("test"),
    Measure("train_accuracy", "Running training accuracy", "%", 100, 2),
    Measure("train_loss", "Running training loss"),
)
"""Of rows."""
TIMING = (
    Measure("staleness_mean", "Mean staleness", "rounds", 1, 1, True),
    Measure("staleness_max", "Largest staleness", "rounds", 1, 0, True),
    Measure("clip_fraction", "Clipped so far", "%", 100, 2, True),
)
"""Of rows, about the course of the run."""


@dataclass(frozen=True)
class Axis:
    """What curves are drawn against."""

    key: str
    name: str
    """Of the switch."""
    title: Callable[[float], str]
    """Under the axis, for its largest value."""
    divisor: Callable[[float], float]
    """What values are divided by, for the largest one."""
    value: Callable[[Mapping[str, Any], float], float | None]
    """Of a row; the second argument is the bytes that filled the table beforehand."""


def _bytes(row: Mapping[str, Any], table: float) -> float | None:
    up, down = number(row, "bytes_up"), number(row, "bytes_down")
    return None if up is None or down is None else up + down + table


def _size(largest: float) -> tuple[float, str]:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= size:
            return size, unit
    return 1.0, "bytes"


def _time(largest: float) -> tuple[float, str]:
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if largest >= 3 * size:
            return size, unit
    return 1.0, "seconds"


AXES = (
    Axis("round", "rounds", lambda _: "rounds", lambda _: 1.0, lambda row, _: number(row, "round")),
    Axis(
        "bytes",
        "bytes",
        lambda most: f"{_size(most)[1]} sent, both directions",
        lambda most: _size(most)[0],
        _bytes,
    ),
    Axis(
        "seconds",
        "seconds",
        lambda most: f"{_time(most)[1]} of this machine",
        lambda most: _time(most)[0],
        lambda row, _: number(row, "seconds"),
    ),
    Axis(
        "virtual",
        "virtual clock",
        lambda _: "seconds of the virtual clock",
        lambda _: 1.0,
        lambda row, _: number(row, "virtual_seconds"),
    ),
)
EPSILON = Axis(
    "epsilon",
    "ε spent",
    lambda _: "ε spent",
    lambda _: 1.0,
    lambda row, _: number(row, "epsilon"),
)


def present(measures: Sequence[Measure], keys: set[str]) -> list[Measure]:
    """Those that there are figures of."""
    return [measure for measure in measures if measure.key in keys]


def size(mean: float, spread: float | None = None) -> str:
    """Bytes, with their standard deviation where it can be seen."""
    if spread is None or spread < 0.0005 * mean:
        return size_text(mean)
    return f"{size_text(mean)} ± {size_text(spread)}"


def count(value: float) -> str:
    """A whole number, or a mean of some."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def short(value: float) -> str:
    """Three significant digits or so, without an exponent where that reads well.

    >>> short(0.12345), short(12345.0), short(1e-05)
    ('0.123', '12,345', '1e-05')
    """
    if value == int(value) and abs(value) < 1e7:
        return f"{value:,.0f}"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"
