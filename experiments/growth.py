"""Rounds to a goal as one size grows, beside what the papers' convergence theorems prove.

At each size every method has the learning rate that takes the fewest rounds, as a person would
choose it: with one rate for all, a curve would show the rate's fit. Records are planted
(`planted.py`), or scikit-learn's digits.

Run: ``python experiments/growth.py [--quick] [--seeds N] [--jobs N] [--out DIR]``. A run that was
broken off goes on with what ``runs/theory-scaling`` lacks. Eight minutes of one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from planted import Planted, planted
from scripted import Do, Tree, make

from vertizo.config import schema as configuration
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import RunError
from vertizo.data.vertical import VerticalData
from vertizo.lab.comparison import value_of
from vertizo.lab.reproduction import plots
from vertizo.lab.reproduction.outcome import Grid, Line, Outcome, Picture, Point, text_of
from vertizo.lab.reproduction.runs import Task, configure
from vertizo.lab.reproduction.study import Study
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import build

NAME = "theory-scaling"
TITLE = "Rounds to a goal as parameters, embedding, parties, directions, batch and server grow"
PAPER = "DPZV, VFL-CZOFO and VFL-Cascaded, convergence theorems"
ABOUT = [
    "The theorems bound the mean squared gradient: VFL-Cascaded by d*/√T with the largest "
    "client's parameters (Corollary IV.10), VFL-CZOFO by d_h/√T with the embedding's numbers "
    "(Remark 5.3), DPZV by √(d*/T) and (σ²/B)√(d*/T) (Theorem V.4). A bound of size^a/√T stays "
    "the same if rounds grow as size^2a. All three have a factor 1/min q_m besides, which is M "
    "where clients are equally active (VFL-Cascaded, Theorem IV.8; VFL-CZOFO, Theorem 5.2; "
    "DPZV, the appendix of its conference version). No theorem has VFL-CZOFO's q; only DPZV's "
    "has B.",
    "Planted: least squares over independent normal columns, whose curvature is 1 in every "
    "direction; linear clients, a server that adds up and learns nothing, plain SGD. A client's"
    " directions all matter there, so that a bound's size can show.",
    "Digits: the classes of scikit-learn's digits, two clients, momentum 0.9. While clients "
    "grow in width, the server adds up their ten outputs; while embeddings grow, it is a fixed "
    "random linear map. Both learn nothing, so that clients alone must. While the server grows,"
    " it learns, and clients have 3 numbers to say. Growing a layer also changes what the model"
    " can learn.",
    "While parties grow, the same 64 columns are split among more of them, so that d* falls as "
    "1/M. In VFL-CZOFO's q and DPZV's K the squared length of the estimate is ((d − 1)/q + "
    "1)‖g‖², which alone would make rounds fall as 1/q until q is about d.",
]
REDUCED = (
    "planted records alone, three methods or fewer, two sizes along each axis, too few for a fit; "
    "1 seed in place of 3"
)
Growth = dict[str, Any]
"""What `grow` found of a method along an axis, with ``axis``, ``method``, ``bound`` and ``fit``."""
Rounds = list[float | None]
"""Of each seed; None where the goal was not reached, after which no further seed is tried."""
LEAST = 4
"""Sizes that a fit takes."""
LOST = 10
"""A run whose loss is so many times that before training is given up."""
STEP = 8
"""A run is given up after so many times the rounds of the size before: what wanders at too large a
rate would take most of the time."""
NOTE = (
    "'exponent': rounds grow as size^exponent. Least squares of the mean log rounds of each size, "
    "with a 95 % interval (Student's t, two degrees of freedom less than sizes). 'none visible': "
    "the interval holds 0, or the power law says less than half of how rounds differ (R² < 0.5). "
    "'bound': the exponent that would keep the paper's upper bound on the mean squared gradient "
    "the same. Every size has its own best rate."
)
SETTINGS: Tree = {
    "epochs": 4000,
    "rounds": 5000,
    "batch_size": 256,
    "evaluate_every": 4,
    "data": {"name": "frame"},
    "client": {
        "model": {"name": "mlp", "hidden": [], "outputs": 1, "last_layer": "zeros"},
        "optimizer": {"momentum": 0.0},
    },
    "server": {
        "update": "none",
        "model": {"name": "sum"},
        "optimizer": {"learning_rate": 0.01, "momentum": 0.9},
    },
}
DIGITS: Tree = {
    "batch_size": 32,
    "evaluate_every": 20,
    "data": {"name": "digits", "parties": 2, "validation": 0.2},
    "client": {"model": {"last_layer": "random"}, "optimizer": {"momentum": 0.9}},
}
RATES = [
    *(0.00003, 0.00006, 0.000125, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.031),
    *(0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
]
"""Client learning rates. From the middle one, and later from the best of the size before, the
search walks to the one with the fewest rounds."""


@dataclass(frozen=True)
class Method:
    """A method whose rounds are counted."""

    words: str
    settings: Tree


METHODS = {
    "vafl": Method("VAFL", {"method": {"name": "vafl"}, "evaluate_every": 1}),
    "czofo": Method("VFL-CZOFO", {"method": {"name": "czofo", "num_directions": 1}}),
    "cascaded": Method("VFL-Cascaded", {"method": {"name": "cascaded"}}),
    "dpzv": Method("DPZV", {"method": {"name": "dpzv"}}),
}


@dataclass(frozen=True)
class Axis:
    """What grows."""

    words: str
    size: str
    """What is counted, see `size_of`."""
    target: float
    """Of the goal whose rounds are counted."""
    sizes: Sequence[int]
    at: Callable[[int], list[Tree]]
    """The settings of a size, one after the other."""
    bounds: Mapping[str, tuple[str, float | str]]
    """By method, those that are run: the rate of the bound that its paper proves, and the exponent
    of the size in the rounds that keep this bound the same; words where it is no number."""
    goal: str = "loss"
    """On validation records: an accuracy to rise to, or a loss to fall to."""
    drawn: Callable[[int], Planted] | None = None
    """Draws the records of a size in place of loading them."""


def outputs(count: int) -> Tree:
    """Settings of so many numbers in an embedding."""
    return {"client": {"model": {"outputs": count}}}


def no_settings(_: int) -> list[Tree]:
    """Of an axis whose records alone differ."""
    return []


AXES = {
    "columns": Axis(
        "parameters of a client, by its columns (planted)",
        "clients",
        0.03,
        (8, 16, 32, 64, 128),
        no_settings,
        {
            "vafl": ("1/√T", 0.0),
            "czofo": ("d_h/√T", 0.0),
            "cascaded": ("d*/√T", 2.0),
            "dpzv": ("√(d*/T)", 1.0),
        },
        drawn=lambda size: Planted(columns=size),
    ),
    "labels": Axis(
        "numbers of an embedding, each a label's (planted)",
        "embedding",
        0.03,
        (1, 2, 4, 8, 16),
        lambda size: [outputs(size)],
        {
            "vafl": ("1/√T", 0.0),
            "czofo": ("d_h/√T", 2.0),
            "cascaded": ("d*/√T, d* grows with d_h", 2.0),
            "dpzv": ("√(d*/T), d* grows with d_h", 1.0),
        },
        drawn=lambda size: Planted(columns=8, labels=size),
    ),
    "directions": Axis(
        "directions q of a query (planted)",
        "directions",
        0.03,
        (1, 2, 4, 8, 16, 32),
        lambda size: [{"batch_size": 64}, outputs(8), {"method": {"num_directions": size}}],
        {"czofo": ("d_h/√T, no q", 0.0), "dpzv": ("one direction", "not stated")},
        drawn=lambda _: Planted(columns=32, labels=8),
    ),
    "batch": Axis(
        "records B of a batch (planted)",
        "batch",
        0.03,
        (1, 2, 4, 8, 16, 32),
        lambda size: [{"batch_size": size}],
        {
            "vafl": ("1/√T", "not stated"),
            "czofo": ("d_h/√T, no B", 0.0),
            "dpzv": ("(F + σ²/B)√(d*/T)", "−2 to 0"),
        },
        drawn=lambda _: Planted(columns=16),
    ),
    "parties": Axis(
        "parties M of the same 64 columns (planted)",
        "parties",
        0.03,
        (1, 2, 4, 8, 16),
        no_settings,
        {
            "vafl": ("1/√T", "not stated"),
            "czofo": ("M·d_h/√T", 2.0),
            "cascaded": ("M·d*/√T", 0.0),
            "dpzv": ("M·√(d*/T)", 1.0),
        },
        drawn=lambda size: Planted(columns=64, parties=size),
    ),
    "width": Axis(
        "parameters of a client, by its width (digits)",
        "clients",
        0.5,
        (4, 16, 64, 256, 1024),
        lambda size: [DIGITS, outputs(10), {"client": {"model": {"hidden": [size]}}}],
        {"cascaded": ("d*/√T", 2.0), "dpzv": ("√(d*/T)", 1.0)},
        goal="accuracy",
    ),
    "embedding": Axis(
        "numbers of an embedding, joined by a random map (digits)",
        "embedding",
        0.5,
        (8, 32, 128, 512, 2048),
        lambda size: [DIGITS, {"server": {"model": {"name": "mlp", "hidden": []}}}, outputs(size)],
        {"czofo": ("d_h/√T", 2.0)},
        goal="accuracy",
    ),
    "server": Axis(
        "parameters of the server (digits)",
        "server",
        0.8,
        (8, 32, 128, 512, 2048),
        lambda size: [
            *(DIGITS, outputs(3)),
            {"server": {"update": "sgd", "model": {"name": "mlp", "hidden": [size]}}},
        ],
        {"cascaded": ("d*/√T, no d_0", 0.0)},
        goal="accuracy",
    ),
}
QUICK: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "columns": ((8, 32), ("vafl", "cascaded", "dpzv")),
    "labels": ((1, 4), ("czofo", "dpzv")),
    "directions": ((16, 64), ("czofo",)),
    "batch": ((16, 256), ("vafl", "dpzv")),
    "parties": ((2, 8), ("vafl", "dpzv")),
}
"""Axes of the quick form, their sizes and methods."""


def form(quick: bool) -> Study:
    """The study's words."""
    reduced, seeds = (REDUCED, 1) if quick else (None, 3)
    return Study(title=TITLE, paper=PAPER, notes=ABOUT, reduced=reduced, seeds=seeds)


def axes_of(quick: bool) -> Mapping[str, Axis]:
    """What grows in a form of the study."""
    if not quick:
        return AXES
    return {
        name: replace(
            AXES[name], sizes=sizes, bounds={one: AXES[name].bounds[one] for one in methods}
        )
        for name, (sizes, methods) in QUICK.items()
    }


def run(quick: bool, seeds: int, do: Do) -> Outcome:
    """Search every size's best rate, count rounds, and fit."""
    axes = axes_of(quick)
    tasks = {}
    for name, axis in axes.items():
        for method in axis.bounds:
            trees = [tree_of(axis, name, method, size) for size in axis.sizes]
            arguments = (trees, RATES, axis.size, axis.goal, axis.target, seeds)
            tasks[name, method] = Task(f"{name}-{method}", grow, arguments)
    done, by = do(tasks)
    growths, grids, pictures, left_out = list[Growth](), [], [], list[str]()
    for name, axis in axes.items():
        own: list[Growth] = []
        for method, (_, bound) in axis.bounds.items():
            found = done[name, method]
            fitted = fit(found["sizes"], found["rounds"])
            own.append({"axis": name, "method": method, **found, "bound": bound, "fit": fitted})
        growths += own
        grids.append(grid_of(axis, own))
        pictures.append(picture_of(axis, own))
        left_out += [censored(axis, each) for each in own if not all(each["rounds"])]
    notes = (NOTE, *left_out)
    return Outcome(tuple(grids), tuple(pictures), notes, {"growths": growths}, by)


def tree_of(axis: Axis, name: str, method: str, size: int) -> Tree:
    """What a process is told of a size: the configuration, and how its records are drawn."""
    # The search sets the rate; a configuration that a study states has one.
    rate = {"client": {"optimizer": {"learning_rate": RATES[0]}}}
    trees = [SETTINGS, METHODS[method].settings, *axis.at(size), rate]
    config = configure(f"{name}, {method}, {size}", trees)
    drawn = None if axis.drawn is None else asdict(axis.drawn(size))
    return {"config": config.model_dump(mode="json"), "planted": drawn}


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


def grid_of(axis: Axis, own: Sequence[Growth]) -> Grid:
    """A line for each method, a column for each size, then how rounds grow."""
    lines = []
    for each in own:
        rate, bound = axis.bounds[each["method"]]
        lines.append(
            (
                METHODS[each["method"]].words,
                *(text_of(rounds, 0, "reached") for rounds in each["rounds"]),
                exponent_text(each["fit"]),
                bound if isinstance(bound, str) else f"{bound:g}",
                rate,
            )
        )
    sizes = max((each["sizes"] for each in own), key=max)
    headings = (*(f"{size:,}" for size in sizes), "exponent", "bound", "what the paper proves")
    return Grid(f"{goal_words(axis)}, by {axis.words}", headings, tuple(lines))


def goal_words(axis: Axis) -> str:
    """What rounds are counted to."""
    if axis.goal == "loss":
        return f"Rounds to a loss of {axis.target:g}"
    return f"Rounds to {100 * axis.target:g} %"


def picture_of(axis: Axis, own: Sequence[Growth]) -> Picture:
    """A line for each method, over sizes; a method has its colour on every axis."""
    lines = []
    for each in own:
        places = zip(each["sizes"], each["rounds"], strict=True)
        points = tuple(Point.of(size, rounds) for size, rounds in places if rounds)
        if points:
            words = f"{METHODS[each['method']].words}: {exponent_text(each['fit'])}"
            colour = list(METHODS).index(each["method"])
            lines.append(Line(words, points, colour=colour))
    ticks = {float(size): f"{size:,}" for size in own[0]["sizes"]}
    goal, drawn = goal_words(axis), tuple(lines)
    return Picture(goal, axis.words, "rounds", drawn, log_x=True, ticks=ticks)


def censored(axis: Axis, own: Growth) -> str:
    """What was left out of a fit."""
    pairs = zip(own["sizes"], own["rounds"], strict=True)
    sizes = ", ".join(f"{size:,}" for size, rounds in pairs if not rounds)
    words = METHODS[own["method"]].words
    return f"Left out of the fit, not reached at any rate: {words}, {axis.words} {sizes}."


def draw(pictures: Sequence[Picture], path: Path) -> None:
    """Lines over sizes, both on a scale of powers."""
    with plots.sheet(len(pictures), path) as places:
        for axes, picture in zip(places, pictures, strict=True):
            plots.draw_lines(axes, picture)
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            if high < 10 * low:  # what hardly differs is to look so
                middle = math.sqrt(low * high)
                axes.set_ylim(middle / math.sqrt(10), middle * math.sqrt(10))


class OverError(Exception):
    """A run has reached its goal, or used up its rounds."""


class Goal:
    """Ends a run at the first evaluation that reaches a goal, or that comes after ``most`` rounds.

    A goal is an accuracy to rise to, or a loss to fall to, on validation records.
    """

    def __init__(self, goal: str, target: float, most: float) -> None:
        self.goal, self.target, self.most = goal, target, most
        self.reached: float | None = None
        self._first = math.nan

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """One of a run's evaluations, the first before training."""
        value, loss = value_of(row, self.goal), value_of(row, "loss")
        assert value is not None, f"the records have no {self.goal}"
        assert loss is not None
        self._first = loss if math.isnan(self._first) else self._first
        if value <= self.target if self.goal == "loss" else value >= self.target:
            self.reached = float(row["round"])
        is_lost = not loss <= LOST * self._first
        if self.reached is not None or is_lost or row["round"] >= self.most:
            raise OverError


def rounds_to_goal(config: ExperimentConfig, data: VerticalData, watch: Goal) -> float | None:
    """Rounds of one run until its goal; None where it diverged, or was given up."""
    try:
        Experiment(config, data).run(callbacks=[watch])
    except OverError:
        pass
    except RunError as error:
        if "diverged" not in str(error):
            raise
    return watch.reached


def best_rate(
    rates: Sequence[float], start: int, count: Callable[[float, float], Rounds]
) -> tuple[int | None, dict[int, Rounds]]:
    """Walk along ascending ``rates`` from place ``start`` to the one with the fewest rounds.

    It ends where the next rates on both sides take more rounds. ``count`` is given a rate and the
    most rounds that all seeds together may take.

    Returns:
        (place of the best, None where no rate took all seeds there; place → rounds of all tried).
    """
    tried: dict[int, Rounds] = {}
    best, fewest = None, math.inf
    while True:
        if best is None:
            near = sorted(range(len(rates)), key=lambda place: abs(place - start))
        else:
            near = [place for place in (best + 1, best - 1) if 0 <= place < len(rates)]
        place = next((each for each in near if each not in tried), None)
        if place is None:
            return best, tried
        tried[place] = count(rates[place], fewest)
        known = [each for each in tried[place] if each is not None]
        if len(known) == len(tried[place]) and sum(known) < fewest:
            best, fewest = place, sum(known)


def grow(
    sizes: Sequence[Tree],
    rates: Sequence[float],
    size: str,
    goal: str,
    target: float,
    seeds: int,
) -> dict[str, Any]:
    """All sizes of one axis by one method, in a process of its own.

    Args:
        sizes: for each ``config``, and ``planted`` where its records are drawn.
        rates: client learning rates, ascending.
        size: what is counted, see `size_of`.
        goal: ``accuracy`` or ``loss``, of which ``target`` is to be reached.
        target: a share, or nats or squared units.
        seeds: runs at each rate.

    Returns:
        ``sizes``, ``rounds`` (of each size's seeds at its best rate, empty where none took all
        there), ``rates`` (the best) and ``tried`` (at each size rate → every seed's rounds).
    """
    found: dict[str, Any] = {"sizes": [], "rounds": [], "rates": [], "tried": []}
    start, before = len(rates) // 2, math.inf
    for tree in sizes:
        config = configuration.parse(tree["config"])
        runs = [config.model_copy(update={"seed": config.seed + each}) for each in range(seeds)]
        data = [data_of(run, tree["planted"]) for run in runs]
        limit = min(config.rounds or math.inf, STEP * before)
        counted = partial(
            count, list(zip(runs, data, strict=True)), partial(Goal, goal, target), limit
        )
        best, tried = best_rate(rates, start, counted)
        taken = [] if best is None else tried[best]
        found["sizes"].append(size_of(size, config, data[0]))
        found["rounds"].append(taken)
        found["rates"].append(None if best is None else rates[best])
        found["tried"].append({f"{rates[place]:g}": tried[place] for place in sorted(tried)})
        if best is not None:
            start, before = best, max(each or 0.0 for each in taken)
    return found


def count(
    runs: Sequence[tuple[ExperimentConfig, VerticalData]],
    watch: Callable[[float], Goal],
    limit: float,
    rate: float,
    most: float,
) -> Rounds:
    """Rounds of each seed at a rate: at most ``limit`` of each, and ``most`` of all together."""
    taken: Rounds = []
    for config, data in runs:
        optimizer = config.client.optimizer.model_copy(update={"learning_rate": rate})
        client = config.client.model_copy(update={"optimizer": optimizer})
        left = min(limit, most - sum(each or 0.0 for each in taken))
        own = config.model_copy(update={"client": client})
        taken.append(rounds_to_goal(own, data, watch(left)))
        if taken[-1] is None:
            break
    return taken


def data_of(config: ExperimentConfig, drawn: Tree | None) -> VerticalData:
    """Records that are planted for a seed, or loaded."""
    if drawn is not None:
        return planted(Planted(**drawn), config.seed)
    return Experiment(config).data()


def size_of(size: str, config: ExperimentConfig, data: VerticalData) -> int:
    """What grows along an axis, of one configuration."""
    if size == "parties":
        return len(data.parties)
    if size == "batch":
        return config.batch_size
    if size == "directions":
        return int(getattr(config.method, "num_directions", 1))
    made = build(config, data)
    if size == "embedding":
        return int(getattr(config.client.model, "outputs", 0))
    model = made.server.side.model if size == "server" else made.models[0]
    return int(model.parameters.numel())


def fit(sizes: Sequence[float], rounds: Sequence[Sequence[float]]) -> dict[str, float] | None:
    """Least squares of the mean log rounds of each size over its log; None below four sizes.

    Seeds of one size share its rate, so each size is one point. The interval is Student's t with
    two degrees of freedom less than sizes; it holds what seeds scatter and what is no power.

    Returns:
        ``exponent``, ``low`` and ``high`` (95 %), ``r_squared``, and ``sizes``, their number.
        Sizes without rounds are left out.
    """
    from scipy.stats import linregress, t

    points = [
        (math.log(size), fmean(map(math.log, taken)))
        for size, taken in zip(sizes, rounds, strict=True)
        if taken and min(taken) > 0
    ]
    if len({x for x, _ in points}) < LEAST:
        return None
    found = linregress(*zip(*points, strict=True))
    half = float(t.ppf(0.975, len(points) - 2)) * float(found.stderr)
    slope = float(found.slope)
    return {
        "exponent": slope,
        "low": slope - half,
        "high": slope + half,
        "r_squared": float(found.rvalue) ** 2,
        "sizes": len(points),
    }


def is_visible(found: Mapping[str, float]) -> bool:
    """Whether rounds grow or fall: 0 is outside the interval, and a power says at least half."""
    return not found["low"] <= 0 <= found["high"] and found["r_squared"] >= 0.5


def main() -> None:
    """Make the study."""
    make(NAME, __file__, form, run, draw)


if __name__ == "__main__":
    main()
