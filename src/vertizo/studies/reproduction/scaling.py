"""Studies of growth: rounds to an accuracy as one size grows, beside what the papers prove.

At each size every learning rate of a short list is tried, and the one that takes the fewest rounds
counts, as a person would choose it: with one rate for all, a curve would show the rate's fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vertizo.studies.reproduction.figures import rounds_to
from vertizo.studies.reproduction.outcome import Grid, Line, Outcome, Picture, Point, text_of
from vertizo.studies.reproduction.runs import Case, Made, Order, configure, make
from vertizo.studies.reproduction.study import ScalingAxisConfig, ScalingConfig


@dataclass(frozen=True)
class Growth:
    """A method's rounds over the sizes of one axis."""

    axis: str
    method: str
    sizes: tuple[int, ...]
    rounds: tuple[tuple[float, ...], ...]
    """For each size, those of all seeds at the best rate; empty where no rate took all there."""
    rates: tuple[float | None, ...]
    """The best at each size."""

    @property
    def exponent(self) -> float | None:
        """s where rounds grow as size^s, fitted to the sizes at which the accuracy was reached."""
        known = [
            (size, sum(each) / len(each))
            for size, each in zip(self.sizes, self.rounds, strict=True)
            if each
        ]
        return slope(known)


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least squares of log y over log x; None for fewer than two different x.

    >>> round(slope([(1, 3), (10, 300), (100, 30_000)]), 6)
    2.0
    """
    if len({x for x, _ in points}) < 2:
        return None
    logs = [(math.log(x), math.log(max(y, 1.0))) for x, y in points]
    x_mean = sum(x for x, _ in logs) / len(logs)
    y_mean = sum(y for _, y in logs) / len(logs)
    spread = sum((x - x_mean) ** 2 for x, _ in logs)
    return sum((x - x_mean) * (y - y_mean) for x, y in logs) / spread


def run(study: ScalingConfig, order: Order) -> Outcome:
    """Make all runs and count rounds.

    Raises:
        UserError: what cannot be run; one line.
        Interrupted: stopped; what is finished is kept.
    """
    made = make(list(cases(study, order).values()), order)
    growths = [growth(study, axis, method, made) for axis in study.axes for method in study.methods]
    grids, pictures = [], []
    for name, axis in study.axes.items():
        own = [each for each in growths if each.axis == name]
        grids.append(_grid(study, axis, own))
        pictures.append(_picture(study, axis, own))
    note = (
        "Rounds until an accuracy is reached, at the best of a few client rates for each size. "
        "Rates that the papers prove are upper bounds on gradients' norms; 'proved' is the power "
        "of the size with which rounds would grow if they were tight."
    )
    figures = {"growths": [_as_dict(each) for each in growths]}
    return Outcome(tuple(grids), tuple(pictures), (note,), figures)


def cases(study: ScalingConfig, order: Order) -> dict[tuple[str, str, int, float], Case]:
    """Every axis, method, size and rate."""
    found = {}
    for axis_name, axis in study.axes.items():
        for method_name, method in study.methods.items():
            for place, size in enumerate(axis.settings):
                for rate in method.rates:
                    label = label_of(axis_name, method_name, place, rate)
                    trees = [
                        study.settings,
                        axis.shared,
                        method.settings,
                        size,
                        {"client": {"optimizer": {"learning_rate": rate}}},
                    ]
                    config = configure(f"{study.paper}, {label}", trees, order.overrides)
                    seeds = order.seeds or study.seeds
                    found[axis_name, method_name, place, rate] = Case(label, config, seeds)
    return found


def label_of(axis: str, method: str, place: int, rate: float) -> str:
    """What the runs of a size and rate are called."""
    return f"{axis}.{method}.{place}.{rate:g}"


def growth(study: ScalingConfig, axis: str, method: str, made: Mapping[str, Made]) -> Growth:
    """The fewest rounds at each size."""
    sizes, rounds, rates = [], [], []
    for place in range(len(study.axes[axis].settings)):
        best: tuple[float, ...] = ()
        best_rate = None
        size = 0
        for rate in study.methods[method].rates:
            found = made[label_of(axis, method, place, rate)]
            size = size_of(study.axes[axis], found) or size
            taken = [rounds_to(each.metrics, study.axes[axis].target) for each in found.finished]
            known = tuple(each for each in taken if each is not None)
            if len(known) == len(found.runs) and (not best or sum(known) < sum(best)):
                best, best_rate = known, rate
        sizes.append(size)
        rounds.append(best)
        rates.append(best_rate)
    return Growth(axis, method, tuple(sizes), tuple(rounds), tuple(rates))


def size_of(axis: ScalingAxisConfig, found: Made) -> int:
    """What grows along an axis, of one case; 0 where none of its runs came to an end."""
    if axis.size == "embedding":
        return int(getattr(found.config.client.model, "outputs", 0))
    summary = next((run.summary for run in found.finished), None)
    if summary is None:
        return 0
    parameters = summary["parameters"]
    return int(parameters["server"] if axis.size == "server" else parameters["clients"][0])


def _grid(study: ScalingConfig, axis: ScalingAxisConfig, own: Sequence[Growth]) -> Grid:
    """A line for each method, a column for each size, then how rounds grow."""
    lines = []
    for each in own:
        cells = [text_of(rounds, 0) if rounds else "not reached" for rounds in each.rounds]
        measured = each.exponent
        power = "–" if measured is None else f"{measured:.2f}"
        theory = axis.exponents.get(each.method)
        lines.append(
            (
                study.methods[each.method].words,
                *cells,
                power,
                "–" if theory is None else f"{theory:g}",
                axis.theory.get(each.method, "–"),
            )
        )
    sizes = max((each.sizes for each in own), key=max)
    headings = (*(f"{size:,}" for size in sizes), "power", "proved", "rate in the paper")
    title = f"Rounds to {100 * axis.target:g} % by {axis.words}"
    return Grid(title, headings, tuple(lines))


def _picture(study: ScalingConfig, axis: ScalingAxisConfig, own: Sequence[Growth]) -> Picture:
    lines = []
    for each in own:
        points = tuple(
            Point.of(size, rounds)
            for size, rounds in zip(each.sizes, each.rounds, strict=True)
            if rounds
        )
        if points:
            lines.append(Line(study.methods[each.method].words, points))
    return Picture(
        f"Rounds to {100 * axis.target:g} %",
        axis.words,
        "rounds",
        tuple(lines),
        log_x=True,
        log_y=True,
    )


def _as_dict(each: Growth) -> dict[str, Any]:
    """For JSON."""
    return {
        "axis": each.axis,
        "method": each.method,
        "sizes": list(each.sizes),
        "rounds": [list(rounds) for rounds in each.rounds],
        "rates": list(each.rates),
        "power": each.exponent,
    }
