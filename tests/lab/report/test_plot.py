"""Lines over seeds, and where they are drawn."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vertizo.lab.report import clients, curves, measures, plot, read
from vertizo.lab.report.curves import Drawing, Line, Point
from vertizo.lab.report.variants import Study, Variant, studies

ACCURACY = measures.Measure("validation_accuracy", "Validation accuracy", "%", 100, 2)
ROUND, BYTES, *_ = measures.AXES

pytestmark = pytest.mark.full  # over a comparison in processes


@pytest.fixture(scope="module")
def study(comparison: Path) -> Study:
    (found,) = studies(read([comparison]).runs)
    return found


def drawing(study: Study) -> Drawing:
    return curves.drawing(study, measures.CURVES)


@pytest.fixture(scope="module")
def drawn(study: Study) -> Drawing:
    return drawing(study)


def test_a_line_is_the_mean_over_seeds(study: Study, drawn: Drawing) -> None:
    runs = study.variants[0].runs
    line = drawn.lines[0]
    assert (line.name, line.seeds, line.control) == ("vafl", 2, "none")
    points = line.points["validation_loss"]
    assert len(points) == len(runs[0].rows)
    for place, point in enumerate(points):
        rows = [run.rows[place] for run in runs]
        values = [row["validation_loss"] for row in rows]
        assert point.mean == statistics.fmean(values)
        assert point.spread == statistics.stdev(values)
        assert point.at["round"] == rows[0]["round"]
        assert point.at["bytes"] == statistics.fmean(r["bytes_up"] + r["bytes_down"] for r in rows)


def test_controls_have_lines_of_their_own(drawn: Drawing) -> None:
    kinds = ("", ", frozen clients", ", random updates")
    names = [f"{method}{kind}" for method in ("vafl", "dpzv") for kind in kinds]
    assert [line.name for line in drawn.lines] == names
    looks = [tuple(plot.look(line).values()) for line in drawn.lines]
    assert len(set(looks)) == 6
    assert len({look[1:] for look in looks}) == 6, "colour is never the only difference"


def test_an_unfinished_seed_is_by_itself(study: Study) -> None:
    first, second = study.variants[0].runs
    stopped = replace(second, summary=None, rows=second.rows[:2])
    variant = replace(study.variants[0], runs=(first, stopped), controls={})
    found = drawing(Study("digits", (variant,)))
    assert [line.name for line in found.lines] == ["vafl", "vafl, seed 1, unfinished"]
    whole, part = (line.points["validation_loss"] for line in found.lines)
    assert (len(whole), len(part)) == (4, 2)
    assert whole[0].spread is None
    # Rounds that one seed lacks are left out.
    variant = Variant("a", (first, replace(second, rows=second.rows[::2])), {})
    lines = drawing(Study("digits", (variant,))).lines
    rounds = [point.at["round"] for point in lines[0].points["validation_loss"]]
    assert rounds == [first.rows[0]["round"], first.rows[2]["round"]]


def plotted(*points: tuple[float, float]) -> plot.Plot:
    made = [Point({"round": x}, y, None) for x, y in points]
    line = Line("a", 0, "none", 1, {ACCURACY.key: made})
    return plot.plot(Drawing((line,), (ACCURACY,), (ROUND,)), ACCURACY, ROUND)


def test_positions() -> None:
    found = plotted((0, 0.5), (50, 0.7), (200, 1.0))
    numbers = [float(text) for text in re.findall(r"[-\d.]+", found.strokes[0].path)]
    assert numbers[::2] == [0, 250, 1000]
    low, high = 0.5 - 0.02, 1.0 + 0.02
    assert numbers[1::2] == [round(1000 * (high - y) / (high - low), 1) for y in (0.5, 0.7, 1.0)]
    assert [tick.text for tick in found.across] == ["0", "50", "100", "150", "200"]
    assert [tick.text for tick in found.upright] == ["50", "60", "70", "80", "90", "100"]
    by_text = {tick.text: tick.at for tick in found.upright}
    assert by_text["70"] == numbers[3]
    assert found.strokes[0].band is None


def test_one_point_and_a_flat_line_can_be_drawn() -> None:
    for points in ([(0.0, 0.5)], [(0.0, 0.5), (10.0, 0.5)]):
        found = plotted(*points)
        assert "nan" not in found.strokes[0].path
        assert len(found.upright) > 1


def test_long_lines_are_thinned() -> None:
    points = [(float(x), x / 10_000) for x in range(10_000)]
    assert plotted(*points).strokes[0].path.count("L") == plot.MOST_POINTS - 1
    chosen = curves.thinned([Point({}, y, None) for _, y in points], 9)
    assert (len(chosen), chosen[0].mean, chosen[-1].mean) == (9, 0.0, 0.9999)


def test_ticks_are_round() -> None:
    for low, high, found in (
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.48, 1.02, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        (0, 10080, [0, 2000, 4000, 6000, 8000, 10000]),
        (-3, 2, [-3, -2, -1, 0, 1, 2]),
        (1, 1, [1]),
    ):
        assert [tick for tick, _ in plot.ticks(low, high)] == pytest.approx(found)


def test_epsilons_of_other_things_have_axes_of_their_own(private: Path) -> None:
    (run,) = read([private]).runs
    privacy = {**run.summary["privacy"], "covers": ["labels"]}
    other = replace(run, label="other", summary={**run.summary, "privacy": privacy})
    found = drawing(*studies([run, other]))
    axes = [axis for axis in found.axes if axis.key.startswith("epsilon")]
    assert len({axis.name for axis in axes}) == 2
    for axis in axes:
        assert len(found.shown(found.measures[0], axis)) == 1
    assert drawing(*studies([run])).axes[-1].name == "ε spent"


def test_bars_say_who_was_answered_when(study: Study) -> None:
    run = study.variants[1].runs[0]
    found = clients.timeline(run)
    assert [client["answered"] for client in found["clients"]] == run.rows[-1]["queries"]
    assert sum(client["share"] for client in found["clients"]) == pytest.approx(1)
    assert [bool(client["note"]) for client in found["clients"]] == [False, True, False, False]
    assert "6 times slower" in found["clients"][1]["note"]
    for client in found["clients"]:
        assert sum(width for _, width, _ in client["bars"]) == pytest.approx(1000, abs=0.5)
    area = [sum(w * h for _, w, h in client["bars"]) for client in found["clients"]]
    answered = [client["answered"] for client in found["clients"]]
    scaled = [a / n for a, n in zip(area, answered, strict=True)]
    assert scaled == pytest.approx([scaled[0]] * 4, rel=0.01), "bars of one scale"
    early = [client["bars"][0][2] for client in found["clients"]]
    assert early[1] < 0.6 * min(early[0], early[2], early[3])
    queries: Any
    for queries in (None, [], "1", [1.5, 2], [-1, 3]):  # rows that do not say it
        rows = tuple({**row, "queries": queries} for row in run.rows)
        assert clients.timeline(replace(run, rows=rows)) is None


def test_what_comes_before_training_does_not_flatten_the_curves() -> None:
    """It is cut and marked where it would take most of the height, and drawn where it does not."""

    def drawn(first: float) -> plot.Plot:
        losses = [first, 0.9, 0.7, 0.6]
        points = [Point({"round": float(at)}, loss, None) for at, loss in enumerate(losses)]
        loss = measures.Measure("validation_loss", "Validation loss")
        lines = (Line("dpzv", 0, "none", 1, {"validation_loss": points}),)
        return plot.plot(Drawing(lines, (loss,), (ROUND,)), loss, ROUND)

    low, high = drawn(0.5), drawn(80.0)
    assert not low.cut
    assert high.cut == [(0.0, True)]
    assert max(float(tick.text) for tick in high.upright) < 1
    (stroke,) = high.strokes
    assert all(0 <= y <= 100 for _, y in stroke.marks)
    assert len(stroke.marks) == 3
    assert len(stroke.readings) == 4
