"""Rounds to a goal over the sizes of one axis, by one method, at each size's own best rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from vertizo.config import schema as configuration
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import RunError
from vertizo.data.vertical import VerticalData
from vertizo.lab.comparison import value_of
from vertizo.lab.reproduction.planted import PlantedConfig, planted
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import build

Tree = dict[str, Any]
Rounds = list[float | None]
"""Of each seed; None where the goal was not reached, after which no further seed is tried."""
LEAST = 4
"""Sizes that a fit takes."""
LOST = 10
"""A run whose loss is so many times that before training is given up."""
STEP = 8
"""A run is given up after so many times the rounds of the size before: what wanders at too large a
rate would take most of the time."""


class _OverError(Exception):
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
            raise _OverError


def rounds_to_goal(config: ExperimentConfig, data: VerticalData, watch: Goal) -> float | None:
    """Rounds of one run until its goal; None where it diverged, or was given up."""
    try:
        Experiment(config, data).run(callbacks=[watch])
    except _OverError:
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
        data = [_data(run, tree["planted"]) for run in runs]
        limit = min(config.rounds or math.inf, STEP * before)
        count = partial(
            _count, list(zip(runs, data, strict=True)), partial(Goal, goal, target), limit
        )
        best, tried = best_rate(rates, start, count)
        taken = [] if best is None else tried[best]
        found["sizes"].append(size_of(size, config, data[0]))
        found["rounds"].append(taken)
        found["rates"].append(None if best is None else rates[best])
        found["tried"].append({f"{rates[place]:g}": tried[place] for place in sorted(tried)})
        if best is not None:
            start, before = best, max(each or 0.0 for each in taken)
    return found


def _count(
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


def _data(config: ExperimentConfig, drawn: Tree | None) -> VerticalData:
    if drawn is not None:
        return planted(PlantedConfig.model_validate(drawn), config.seed)
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
