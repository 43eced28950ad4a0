"""Lines over evaluations: one for each variant and control, the mean over its finished seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vertizo.core.names import CONTROLS
from vertizo.lab.comparison import mean_and_spread
from vertizo.lab.report.measures import AXES, Axis, Measure, epsilon_axis
from vertizo.lab.report.reading import REFERENCES, Run, number
from vertizo.lab.report.variants import Study, Variant
from vertizo.privacy.epsilon_text import is_bounded


class Point(NamedTuple):
    """One evaluation on a line: its places on the axes, its mean and spread."""

    at: Mapping[str, float]
    """Key of an axis → the place on it."""
    mean: float
    spread: float | None


@dataclass(frozen=True)
class Line:
    """One line of a figure: points for each measure."""

    name: str
    variant: int
    """Index of its variant, which decides its colour and marks."""
    control: str
    """Its control, ``none``, or the one of `REFERENCES` that it shows."""
    seeds: int
    points: Mapping[str, Sequence[Point]]


@dataclass(frozen=True)
class Drawing:
    """A figure's lines, with the measures and the axes that it can show."""

    lines: tuple[Line, ...]
    measures: tuple[Measure, ...]
    axes: tuple[Axis, ...]

    def shown(self, measure: Measure, axis: Axis) -> list[tuple[int, list[Point]]]:
        """Return the lines that have points for a measure and an axis, by index."""
        every = (
            (place, [p for p in line.points.get(measure.key, ()) if axis.key in p.at])
            for place, line in enumerate(self.lines)
        )
        return [(place, points) for place, points in every if points]


def drawing(study: Study, measures: Sequence[Measure], *, of_time: bool = False) -> Drawing | None:
    """Build all lines of a study for some measures; None where there is nothing to draw.

    Guarantees that cover different things have axes of their own: their ε are not comparable.
    Measures of time are drawn without controls, whose time is that of the run itself, and without
    the axes of bytes and ε.
    """
    covered = [None if of_time else _coverage(variant) for variant in study.variants]
    coverages = list(dict.fromkeys(each for each in covered if each is not None))
    spent = {
        coverage: epsilon_axis(place, coverage, alone=len(coverages) == 1)
        for place, coverage in enumerate(coverages)
    }
    lines = [
        line
        for place, (variant, coverage) in enumerate(zip(study.variants, covered, strict=True))
        for control in (("none",) if of_time else ("none", *CONTROLS))
        for line in _lines(
            variant,
            place,
            control,
            measures,
            [*AXES, *([] if coverage is None else [spent[coverage]])],
        )
    ]
    if not lines:
        return None
    known = {key for line in lines for key in line.points}
    moved = {  # axes along which something moves
        key
        for line in lines
        for points in line.points.values()
        for point in points
        for key, value in point.at.items()
        if value > 0
    }
    axes = [axis for axis in AXES if axis.key in moved and not (of_time and axis.key == "bytes")]
    chosen = tuple(measure for measure in measures if measure.key in known)
    level = () if of_time else _references(study, chosen, lines)
    return Drawing((*lines, *level), chosen, (*axes, *spent.values()))


def _references(study: Study, measures: Sequence[Measure], lines: Sequence[Line]) -> Iterator[Line]:
    """Yield level lines across all others: one of each reference for all runs on the same data."""
    by_data: dict[str, dict[int, Run]] = {}
    names: dict[str, list[str]] = {}
    for variant in study.variants:
        for run in variant.finished():
            if (run.summary or {}).get("references"):
                data = run.config.data.model_dump_json()
                by_data.setdefault(data, {}).setdefault(run.config.seed, run)
                names[data] = list(dict.fromkeys([*names.get(data, []), variant.name]))
    ends: dict[str, float] = {}
    for point in (p for line in lines for points in line.points.values() for p in points):
        ends |= {key: max(at, ends.get(key, at)) for key, at in point.at.items()}
    for place, (data, runs) in enumerate(by_data.items(), len(study.variants)):
        of = f" ({', '.join(names[data])})" if len(by_data) > 1 else ""
        for whose, name in REFERENCES.items():
            points = {}
            for measure in measures:
                figures = [run.reference(whose, measure.key) for run in runs.values()]
                if found := [figure for figure in figures if figure is not None]:
                    figure = mean_and_spread(found)
                    points[measure.key] = [
                        Point(at, *figure) for at in (dict.fromkeys(ends, 0.0), ends)
                    ]
            if points:
                yield Line(name + of, place, whose, len(runs), points)


def _lines(
    variant: Variant, place: int, control: str, measures: Sequence[Measure], axes: Sequence[Axis]
) -> Iterator[Line]:
    """Yield the line of the mean over finished seeds, and one for each unfinished run."""
    name = variant.name if control == "none" else f"{variant.name}, {CONTROLS[control]}"
    groups = [(name, variant.finished(control))]
    for run in variant.all_runs(control):
        if run.summary is None:
            groups.append((f"{name}, seed {run.config.seed}, unfinished", [run]))
    for called, runs in groups:
        points = {m.key: values for m in measures if (values := _averaged(runs, m, axes))}
        if points:
            yield Line(called, place, control, len(runs), points)


def _coverage(variant: Variant) -> str | None:
    """Describe what a variant's ε covers: two ε are comparable only if this is the same."""
    privacy = variant.privacy
    every = [run for control in ("none", *CONTROLS) for run in variant.all_runs(control)]
    spent = any(number(row, "epsilon") is not None for run in every for row in run.rows)
    if privacy is None or not is_bounded(privacy) or not spent:
        return None
    covers = privacy.get("covers")
    text = ", ".join(map(str, covers)) if isinstance(covers, list) else "labels"
    delta = number(privacy, "delta")
    if delta is not None:
        text += f"; δ = {delta:g}"
    return f"simulated; {text}" if privacy["guarantee"] == "simulated" else text


def _averaged(runs: Sequence[Run], measure: Measure, axes: Sequence[Axis]) -> list[Point]:
    """Average a measure at the rounds that all these runs evaluated."""
    by_run = [
        {row["round"]: row for row in run.rows if number(row, measure.key) is not None}
        for run in runs
    ]
    # bytes that filled the tables before the first round
    tables = [run.figure("bytes_table") or 0.0 for run in runs]
    points = []
    for round_ in by_run[0] if by_run else ():
        if not all(round_ in rows for rows in by_run):
            continue
        here = [rows[round_] for rows in by_run]
        at = {}
        for axis in axes:
            found = [axis.value(row, table) for row, table in zip(here, tables, strict=True)]
            known = [value for value in found if value is not None]
            if len(known) == len(found):
                at[axis.key] = statistics.fmean(known)
        points.append(Point(at, *mean_and_spread([float(row[measure.key]) for row in here])))
    return points


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Select at most ``most`` points, evenly; the first and the last always."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[math.floor(place * step + 0.5)] for place in range(most)]
