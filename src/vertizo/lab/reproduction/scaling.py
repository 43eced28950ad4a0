"""Studies of growth: rounds to a goal as one size grows, beside what the papers prove.

At each size every method has the learning rate that takes the fewest rounds, as a person would
choose it: with one rate for all, a curve would show the rate's fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.lab.reproduction.growth import fit, grow, is_visible
from vertizo.lab.reproduction.outcome import Grid, Line, Outcome, Picture, Point, text_of
from vertizo.lab.reproduction.planted import PlantedConfig
from vertizo.lab.reproduction.runs import Order, Task, configure, results
from vertizo.lab.reproduction.study import ScalingAxisConfig, ScalingConfig, Tree, changed

Growth = dict[str, Any]
"""What `grow` found of a method along an axis, with ``axis``, ``method``, ``bound`` and ``fit``."""
NOTE = (
    "'exponent': rounds grow as size^exponent. Least squares of the mean log rounds of each size, "
    "with a 95 % interval (Student's t, two degrees of freedom less than sizes). 'none visible': "
    "the interval holds 0, or the power law says less than half of how rounds differ (R² < 0.5). "
    "'bound': the exponent that would keep the paper's upper bound on the mean squared gradient "
    "the same. Every size has its own best rate."
)


@dataclass(frozen=True)
class Size:
    """One size of an axis for one method: what is run there, at rates that are searched."""

    label: str
    config: ExperimentConfig
    planted: PlantedConfig | None


def run(study: ScalingConfig, order: Order) -> Outcome:
    """Search every size's best rate, count rounds, and fit."""
    seeds = order.seeds or study.seeds
    tasks = {}
    for (name, method), sizes in cases(study, order).items():
        axis = study.axes[name]
        trees = [
            {
                "config": each.config.model_dump(mode="json"),
                "planted": None if each.planted is None else each.planted.model_dump(mode="json"),
            }
            for each in sizes
        ]
        rates = study.methods[method].rates
        arguments = (trees, rates, axis.size, axis.goal, axis.target, seeds)
        tasks[name, method] = Task(f"{name}-{method}", grow, arguments)
    done, by = results(tasks, order.folder, order.jobs, order.report, reused=True)
    growths, grids, pictures, left_out = list[Growth](), [], [], list[str]()
    for name, axis in study.axes.items():
        own = [_growth(study, name, method, done[name, method]) for method in axis.bounds]
        growths += own
        grids.append(_grid(study, axis, own))
        pictures.append(_picture(study, axis, own))
        left_out += [_censored(study, axis, each) for each in own if not all(each["rounds"])]
    notes = (NOTE, *left_out)
    return Outcome(tuple(grids), tuple(pictures), notes, {"growths": growths}, by)


def cases(study: ScalingConfig, order: Order) -> dict[tuple[str, str], list[Size]]:
    """Every axis and method: its sizes."""
    found = {}
    for name, axis in study.axes.items():
        for method in axis.bounds:
            own = study.methods[method]
            sizes = []
            for place, size in enumerate(axis.sizes):
                label = f"{name}.{method}.{place}"
                # The search sets it; a configuration that a study states has one.
                rate = {"client": {"optimizer": {"learning_rate": own.rates[0]}}}
                trees = [study.settings, axis.shared, own.settings, size.settings, rate]
                where = f"{study.paper}, {label}"
                config = configure(where, trees, order.overrides)
                sizes.append(Size(label, config, _planted(axis, size.planted, where)))
            found[name, method] = sizes
    return found


def _planted(axis: ScalingAxisConfig, own: Tree, where: str) -> PlantedConfig | None:
    if axis.planted is None:
        return None
    try:
        return PlantedConfig.model_validate(changed(axis.planted, own))
    except ValueError as error:
        raise ConfigError(f"{where}: planted: {error}") from None


def _growth(study: ScalingConfig, name: str, method: str, found: Mapping[str, Any]) -> Growth:
    bound = study.axes[name].bounds[method]
    return {
        "axis": name,
        "method": method,
        **found,
        "bound": bound.exponent,
        "fit": fit(found["sizes"], found["rounds"]),
    }


def exponent_text(found: Mapping[str, float] | None) -> str:
    """An exponent with its interval, or why there is none.

    >>> exponent_text({"exponent": 1.04, "low": 0.9, "high": 1.18, "r_squared": 0.98, "sizes": 6})
    '1.04 (0.90 to 1.18)'
    >>> exponent_text({"exponent": 0.04, "low": -0.1, "high": 0.18, "r_squared": 0.1, "sizes": 6})
    'none visible: 0.04 (-0.10 to 0.18)'
    >>> exponent_text(None)
    'too few sizes'
    """
    if found is None:
        return "too few sizes"
    text = f"{found['exponent']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
    return text if is_visible(found) else f"none visible: {text}"


def _grid(study: ScalingConfig, axis: ScalingAxisConfig, own: Sequence[Growth]) -> Grid:
    """A line for each method, a column for each size, then how rounds grow."""
    lines = []
    for each in own:
        bound = axis.bounds[each["method"]]
        exponent = bound.exponent if isinstance(bound.exponent, str) else f"{bound.exponent:g}"
        lines.append(
            (
                study.methods[each["method"]].words,
                *(text_of(rounds, 0, "reached") for rounds in each["rounds"]),
                exponent_text(each["fit"]),
                exponent,
                bound.rate,
            )
        )
    sizes = max((each["sizes"] for each in own), key=max)
    headings = (*(f"{size:,}" for size in sizes), "exponent", "bound", "what the paper proves")
    return Grid(f"{_goal(axis)}, by {axis.words}", headings, tuple(lines))


def _goal(axis: ScalingAxisConfig) -> str:
    if axis.goal == "loss":
        return f"Rounds to a loss of {axis.target:g}"
    return f"Rounds to {100 * axis.target:g} %"


def _picture(study: ScalingConfig, axis: ScalingAxisConfig, own: Sequence[Growth]) -> Picture:
    lines = []
    for each in own:
        places = zip(each["sizes"], each["rounds"], strict=True)
        points = tuple(Point.of(size, rounds) for size, rounds in places if rounds)
        if points:
            words = f"{study.methods[each['method']].words}: {exponent_text(each['fit'])}"
            colour = list(study.methods).index(each["method"])
            lines.append(Line(words, points, colour=colour))
    ticks = {float(size): f"{size:,}" for size in own[0]["sizes"]}
    goal, drawn = _goal(axis), tuple(lines)
    return Picture(goal, axis.words, "rounds", drawn, log_x=True, log_y=True, ticks=ticks)


def _censored(study: ScalingConfig, axis: ScalingAxisConfig, own: Growth) -> str:
    """What was left out of a fit."""
    pairs = zip(own["sizes"], own["rounds"], strict=True)
    sizes = ", ".join(f"{size:,}" for size, rounds in pairs if not rounds)
    words = study.methods[own["method"]].words
    return f"Left out of the fit, not reached at any rate: {words}, {axis.words} {sizes}."
