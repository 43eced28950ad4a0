"""Lines over evaluations: one for each variant and control, the mean over its finished seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vertizo.privacy.epsilon_text import is_bounded
from vertizo.studies.report.measures import AXES, EPSILON, Axis, Measure
from vertizo.studies.report.reading import Row, Run, number
from vertizo.studies.report.variants import Study, Variant

CONTROL_NAMES = {"frozen": "frozen clients", "random": "random updates"}
"""The runs that an accuracy is held against."""


@dataclass(frozen=True)
class Point:
    """An evaluation."""

    at: Mapping[str, float]
    """Where it is on each axis."""
    mean: float
    spread: float | None
    """Standard deviation over seeds."""


@dataclass(frozen=True)
class Line:
    """What is drawn in one colour."""

    name: str
    variant: int
    """Place of its variant, which decides its colour and marks."""
    control: str
    seeds: int
    points: Mapping[str, tuple[Point, ...]]
    """By measure."""
    coverage: str | None
    """What its ε is about; None where there is none."""


@dataclass(frozen=True)
class Drawing:
    """Lines, what they measure and what they can be held against."""

    lines: tuple[Line, ...]
    measures: tuple[Measure, ...]
    axes: tuple[Axis, ...]

    def shown(self, measure: Measure, axis: Axis) -> list[tuple[int, list[Point]]]:
        """The lines that have something to draw, by place."""
        found = []
        for place, line in enumerate(self.lines):
            points = [p for p in line.points.get(measure.key, ()) if axis.key in p.at]
            if points:
                found.append((place, points))
        return found


def drawing(study: Study, measures: Sequence[Measure], *, of_time: bool = False) -> Drawing | None:
    """All lines of a study for some measures; None where there is nothing to draw.

    Args:
        study: its variants.
        measures: those that are wanted.
        of_time: whether they are about time: without controls, whose time is that of the run
            itself, and against time alone.
    """
    kinds = ("none",) if of_time else ("none", *CONTROL_NAMES)
    lines = [
        line
        for place, variant in enumerate(study.variants)
        for control in kinds
        for line in _lines(variant, place, control, measures)
    ]
    lines = [line for line in lines if line.points]
    known = {key for line in lines for key in line.points}
    if not known:
        return None
    coverages = list(dict.fromkeys(line.coverage for line in lines if line.coverage))
    axes = [axis for axis in AXES if _has(lines, axis.key)]
    if of_time:
        axes, coverages = [axis for axis in axes if axis.key != "bytes"], []
    for place, coverage in enumerate(coverages):
        key = f"epsilon{place}"
        name = "ε spent" if len(coverages) == 1 else f"ε spent, {coverage}"
        axes.append(replace(EPSILON, key=key, name=name, title=_about(coverage)))
        lines = [_renamed(line, key) if line.coverage == coverage else line for line in lines]
    chosen = tuple(measure for measure in measures if measure.key in known)
    return Drawing(tuple(lines), chosen, tuple(axes))


def _about(coverage: str) -> _Title:
    return _Title(f"ε spent so far ({coverage})")


@dataclass(frozen=True)
class _Title:
    words: str

    def __call__(self, _: float) -> str:
        return self.words


def _has(lines: Sequence[Line], axis: str) -> bool:
    """Whether something moves along an axis."""
    return any(
        point.at.get(axis, 0.0) > 0
        for line in lines
        for points in line.points.values()
        for point in points
    )


def _renamed(line: Line, key: str) -> Line:
    """A line whose ε is on an axis of its own: guarantees of other things are not beside it."""
    points = {
        measure: tuple(
            replace(
                p, at={key if name == EPSILON.key else name: value for name, value in p.at.items()}
            )
            for p in found
        )
        for measure, found in line.points.items()
    }
    return replace(line, points=points)


def _lines(variant: Variant, place: int, control: str, measures: Sequence[Measure]) -> list[Line]:
    """The mean of finished seeds, and each run that is not finished by itself."""
    name = variant.name if control == "none" else f"{variant.name}, {CONTROL_NAMES[control]}"
    finished = variant.finished(control)
    groups = [(name, finished)] if finished else []
    for run in variant.all_runs(control):
        if run.summary is None:
            groups.append((f"{name}, seed {run.config.seed}, unfinished", [run]))
    coverage = _coverage(variant)
    found = []
    for called, runs in groups:
        points = {m.key: _averaged(runs, m, ranked=coverage is not None) for m in measures}
        kept = {key: values for key, values in points.items() if values}
        has_epsilon = any(EPSILON.key in p.at for values in kept.values() for p in values)
        found.append(
            Line(called, place, control, len(runs), kept, coverage if has_epsilon else None)
        )
    return found


def _coverage(variant: Variant) -> str | None:
    """What an ε of the variant is about: two of them are comparable only if this is the same."""
    privacy = variant.privacy
    if privacy is None or not is_bounded(privacy):
        return None
    covers = privacy.get("covers")
    things = ", ".join(map(str, covers)) if isinstance(covers, list) else "labels"
    delta = number(privacy, "delta")
    text = f"{things}; δ = {delta:g}" if delta is not None else things
    return f"simulated; {text}" if privacy["guarantee"] == "simulated" else text


def _averaged(runs: Sequence[Run], measure: Measure, *, ranked: bool) -> tuple[Point, ...]:
    """Means at the rounds that all these runs evaluated."""
    by_run = [
        ({row["round"]: row for row in run.rows if number(row, measure.key) is not None}, run)
        for run in runs
    ]
    common = [round_ for round_ in by_run[0][0] if all(round_ in rows for rows, _ in by_run)]
    axes = (*AXES, EPSILON) if ranked else AXES
    points = []
    for round_ in common:
        here = [(rows[round_], _table_bytes(run)) for rows, run in by_run]
        values = [value for row, _ in here if (value := number(row, measure.key)) is not None]
        spread = statistics.stdev(values) if len(values) > 1 else None
        points.append(Point(_places(here, axes), statistics.fmean(values), spread))
    return tuple(points)


def _places(here: Sequence[tuple[Row, float]], axes: Sequence[Axis]) -> dict[str, float]:
    places = {}
    for axis in axes:
        found = [axis.value(row, table) for row, table in here]
        values = [value for value in found if value is not None]
        if len(values) == len(found):
            places[axis.key] = statistics.fmean(values)
    return places


def _table_bytes(run: Run) -> float:
    """Bytes that filled the table before the first round."""
    return number(run.summary or {}, "bytes_table") or 0.0


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many of them, evenly chosen; the first and the last always."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[math.floor(place * step + 0.5)] for place in range(most)]
