"""Studies of growth: rounds to an accuracy as one size grows, beside what the papers prove.

At each size every learning rate of a short list is tried, and the one that takes the fewest rounds
counts, as a person would choose it: with one rate for all, a curve would show the rate's fit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vertizo.studies.reproduction.figures import rounds_to
from vertizo.studies.reproduction.outcome import Grid, Line, Outcome, Picture, Point, text_of
from vertizo.studies.reproduction.runs import Case, Made, Order, configure, make, makers
from vertizo.studies.reproduction.study import ScalingAxisConfig, ScalingConfig

Growth = dict[str, Any]
"""A method's rounds over the sizes of one axis: ``sizes``, and for each size ``rounds`` (those of
all seeds at the best rate; empty where no rate took all there) and ``rates`` (the best). ``power``
is the s of rounds that grow as size^s, fitted to the sizes at which the accuracy was reached."""
Key = tuple[str, str, int, float]
"""Axis, method, place of the size, and rate."""
NOTE = (
    "Rounds until an accuracy is reached, at the best of a few client rates for each size. "
    "Rates that the papers prove are upper bounds on gradients' norms; 'proved' is the power "
    "of the size with which rounds would grow if they were tight."
)


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least squares of log y over log x; None for fewer than two different x.

    >>> round(slope([(1, 3), (10, 300), (100, 30_000)]), 6)
    2.0
    """
    if len({x for x, _ in points}) < 2:
        return None
    x, y = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    return statistics.linear_regression(x, y).slope


def run(study: ScalingConfig, order: Order) -> Outcome:
    """Make all runs and count rounds."""
    made = make(list(cases(study, order).values()), order)
    growths, grids, pictures = list[Growth](), [], []
    for name, axis in study.axes.items():
        own = [_growth(study, name, method, made) for method in study.methods]
        growths += own
        grids.append(_grid(study, axis, own))
        pictures.append(_picture(study, axis, own))
    return Outcome(tuple(grids), tuple(pictures), (NOTE,), {"growths": growths}, makers(made))


def cases(study: ScalingConfig, order: Order) -> dict[Key, Case]:
    """Every axis, method, size and rate."""
    found = {}
    for name, axis in study.axes.items():
        for method_name, method in study.methods.items():
            for place, size in enumerate(axis.settings):
                for rate in method.rates:
                    key = name, method_name, place, rate
                    own = {"client": {"optimizer": {"learning_rate": rate}}}
                    trees = [study.settings, axis.shared, method.settings, size, own]
                    config = configure(f"{study.paper}, {_label(key)}", trees, order.overrides)
                    found[key] = Case(_label(key), config, order.seeds or study.seeds)
    return found


def _label(key: Key) -> str:
    """What the runs of a size and rate are called."""
    *names, rate = key
    return ".".join([*map(str, names), f"{rate:g}"])


def _growth(study: ScalingConfig, name: str, method: str, made: Mapping[str, Made]) -> Growth:
    """The fewest rounds at each size."""
    axis = study.axes[name]
    sizes, rounds, rates = [], [], []
    for place in range(len(axis.settings)):
        best, best_rate, size = list[float](), None, 0
        for rate in study.methods[method].rates:
            found = made[_label((name, method, place, rate))]
            size = _size_of(axis, found) or size
            taken = [rounds_to(each.metrics, axis.target) for each in found.finished]
            known = [each for each in taken if each is not None]
            if len(known) == len(found.runs) and (not best or sum(known) < sum(best)):
                best, best_rate = known, rate
        sizes.append(size)
        rounds.append(best)
        rates.append(best_rate)
    # What was there from the start took no rounds, which no power of a size is.
    power = slope([(s, statistics.fmean(r)) for s, r in zip(sizes, rounds, strict=True) if any(r)])
    return {
        "axis": name,
        "method": method,
        "sizes": sizes,
        "rounds": rounds,
        "rates": rates,
        "power": power,
    }


def _size_of(axis: ScalingAxisConfig, found: Made) -> int:
    """What grows along an axis, of one case; 0 where none of its runs came to an end."""
    if axis.size == "embedding":
        return int(getattr(found.config.client.model, "outputs", 0))
    if not found.finished:
        return 0
    parameters = found.finished[0].summary["parameters"]
    return int(parameters["server"] if axis.size == "server" else parameters["clients"][0])


def _grid(study: ScalingConfig, axis: ScalingAxisConfig, own: Sequence[Growth]) -> Grid:
    """A line for each method, a column for each size, then how rounds grow."""
    lines = []
    for each in own:
        method, measured = each["method"], each["power"]
        proved = axis.exponents.get(method)
        lines.append(
            (
                study.methods[method].words,
                *(text_of(rounds, 0, "reached") for rounds in each["rounds"]),
                "–" if measured is None else f"{measured:.2f}",
                "–" if proved is None else f"{proved:g}",
                axis.theory.get(method, "–"),
            )
        )
    sizes = max((each["sizes"] for each in own), key=max)
    headings = (*(f"{size:,}" for size in sizes), "power", "proved", "rate in the paper")
    return Grid(f"Rounds to {100 * axis.target:g} % by {axis.words}", headings, tuple(lines))


def _picture(study: ScalingConfig, axis: ScalingAxisConfig, own: Sequence[Growth]) -> Picture:
    lines = []
    for each in own:
        places = zip(each["sizes"], each["rounds"], strict=True)
        points = tuple(Point.of(size, rounds) for size, rounds in places if rounds)
        if points:
            lines.append(Line(study.methods[each["method"]].words, points))
    title = f"Rounds to {100 * axis.target:g} %"
    return Picture(title, axis.words, "rounds", tuple(lines), log_x=True, log_y=True)
