"""Tables, sweeps and curves, from runs that are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vertizo.core.names import CONTROLS
from vertizo.lab.reproduction import grid
from vertizo.lab.reproduction.figures import Finished
from vertizo.lab.reproduction.outcome import Outcome
from vertizo.lab.reproduction.runs import Case, Made, Order
from vertizo.lab.reproduction.study import GridConfig

Make = Callable[..., Finished]
Study = Callable[..., GridConfig]
Of = Callable[..., Outcome]
ORDER = Order(Path("nowhere"), None)
TWO = {
    "vafl": {
        "words": "VAFL",
        "settings": {"method": {"name": "vafl"}},
        "published": {"accuracy": 97.7, "bytes": "many"},
        "controls": True,
    },
    "zoo": {"words": "ZOO", "settings": {"method": {"name": "zoo-vfl"}}, "skip": "too slow"},
}
COLUMNS = {
    "accuracy": {"words": "accuracy"},
    "bytes": {"words": "to 60 %", "figure": {"name": "bytes-to", "accuracy": 0.6}},
    "wide": {"words": "wide", "settings": {"client": {"model": {"outputs": 9}}}},
}


@pytest.fixture
def outcome_of(grid_study: Study, monkeypatch: pytest.MonkeyPatch) -> Of:
    """The outcome of a study of these keys where its runs became what is said."""

    def of(made: dict[str, Made], **keys: Any) -> Outcome:
        def make(cases: list[Case], order: Order) -> dict[str, Made]:
            return {case.label: made[case.label] for case in cases}

        monkeypatch.setattr(grid, "make", make)
        return grid.run(grid_study(**keys), ORDER)

    return of


def made(*runs: Finished | None, **controls: tuple[Finished, ...]) -> Made:
    return Made(tuple(runs), controls)


def lines(outcome: Outcome) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    above = ""
    for name, *cells in outcome.grids[0].rows:
        above = above if name.startswith(" ") else name
        found[f"{above}{name[1:]}" if name.startswith(" ") else name] = tuple(cells)
    return found


def test_columns_without_settings_share_runs(grid_study: Study) -> None:
    cases = grid.cases(grid_study(rows=TWO, columns=COLUMNS), ORDER)
    assert [(case.label, case.seeds, case.controls) for case in cases] == [
        ("vafl", 1, tuple(CONTROLS)),
        ("vafl.wide", 1, tuple(CONTROLS)),
    ]
    assert cases[1].config.client.model.outputs == 9


def test_a_cell_has_those_controls_that_it_names(grid_study: Study) -> None:
    row = TWO["vafl"] | {"cells": {"wide": {"controls": ["random"]}}}
    for controls, kept in ((True, [tuple(CONTROLS), ("random",)]), (False, [(), ()])):
        study = grid_study(rows={"vafl": row | {"controls": controls}}, columns=COLUMNS)
        assert [case.controls for case in grid.cases(study, ORDER)] == kept


def test_a_table(finished: Make, outcome_of: Of) -> None:
    runs = finished([0.1, 0.7, 0.9]), finished([0.1, 0.5, 0.8]), None
    frozen = finished([0.1, 0.3]), finished([0.1, 0.5])
    became = {"vafl": made(*runs, frozen=frozen), "vafl.wide": made(None, None)}
    outcome = outcome_of(became, rows=TWO, columns=COLUMNS)
    assert outcome.grids[0].columns == ("accuracy, %", "to 60 %, MB", "wide, %")
    some = "(1 of 3 diverged)"
    assert lines(outcome) == {
        "VAFL": (f"85.00 ± 7.07 {some}", f"1.50 ± 0.71 {some}", "diverged"),
        "VAFL published": ("97.7", "many", "–"),
        "VAFL frozen clients": ("40.00 ± 14.14", "–", "–"),
        "ZOO": ("not run", "not run", "not run"),
    }
    assert "Not run: ZOO: too slow" in outcome.notes
    cells = {(c["row"], c["column"]): c for c in outcome.figures["cells"]}
    assert cells["vafl", "accuracy"]["values"] == pytest.approx([90.0, 80.0])
    assert cells["vafl", "accuracy"]["diverged"] == 1
    assert cells["vafl", "accuracy"]["controls"] == {"frozen": pytest.approx([30.0, 50.0])}
    assert (cells["zoo", "wide"]["skip"], cells["zoo", "wide"]["values"]) == ("too slow", [])


def test_what_some_seeds_did_not_reach(finished: Make, outcome_of: Of) -> None:
    columns = {"bytes": COLUMNS["bytes"]}
    reached, never = finished([0.1, 0.7]), finished([0.1, 0.2])
    for runs, text in (((reached, never), "1.00 (1 of 2 reached)"), ((never,), "not reached")):
        assert lines(outcome_of({"vafl": made(*runs)}, columns=columns))["VAFL"] == (text,)


def test_noise_has_the_epsilon_that_holds_beside_it(finished: Make, outcome_of: Of) -> None:
    published = {"guarantee": "published", "noise_std": 1.0, "replies_alone_epsilon": 106.6}
    exact = {"guarantee": "exact", "noise_std": 1.0, "epsilon": 1.0}
    rows = {
        "published": {"words": "Published", "settings": {"method": {"name": "vafl"}}},
        "exact": {"words": "Exact", "settings": {"method": {"name": "dpzv"}}},
    }
    columns = {
        "a": {"words": "a", "settings": {"epochs": 3}},
        "b": {"words": "b", "settings": {"epochs": 4}},
    }
    became = {
        "published.a": made(finished([0.1, 0.2], published)),
        "published.b": made(finished([0.1, 0.2])),
        "exact.a": made(finished([0.1, 0.2], exact)),
        "exact.b": made(finished([0.1, 0.2], exact)),
    }
    outcome = outcome_of(became, rows=rows, columns=columns)
    assert lines(outcome)["Published ε that holds"] == ("none; replies 107", "–")
    assert "Exact: ε that holds is 1." in outcome.notes
    assert any(note.startswith("ε that holds is about labels") for note in outcome.notes)


def test_a_sweep_is_a_line_for_each_row(finished: Make, outcome_of: Of) -> None:
    columns = {
        "small": {"words": "0.1", "at": 0.1, "settings": {"epochs": 3}},
        "large": {"words": "none", "at": 1.0, "tick": "none", "settings": {"epochs": 4}},
    }
    rows: dict[str, Any] = {"vafl": {**TWO["vafl"], "published": {"small": 90.0, "large": "high"}}}
    became = {
        "vafl.small": made(finished([0.1, 0.2]), finished([0.1, 0.4])),
        "vafl.large": made(finished([0.1, 0.8])),
    }
    (picture,) = outcome_of(became, kind="sweep", axis="ε", rows=rows, columns=columns).pictures
    measured, published = picture.lines
    small, large = measured.points
    assert small == pytest.approx((0.1, 30.0, 20.0, 40.0))
    assert large == pytest.approx((1.0, 80.0, 80.0, 80.0))
    assert [(p.x, p.y) for p in published.points] == [(0.1, 90.0)]
    assert published.published
    assert picture.ticks == {0.1: "0.1", 1.0: "none"}
    assert picture.y == "test accuracy (%)"


def test_curves_are_means_over_seeds(finished: Make, outcome_of: Of) -> None:
    panels = [
        {"words": "by epochs", "y": "accuracy"},
        {"words": "by bytes", "x": "megabytes", "y": "train_accuracy", "log_x": True},
        {"words": "back", "x": "megabytes-down"},
        {"words": "up", "x": "megabytes-up"},
    ]
    became = {"vafl": made(finished([0.1, 0.4]), finished([0.1, 0.6, 0.7]), None)}
    pictures = outcome_of(became, kind="curves", panels=panels).pictures
    epochs, size, down, up = (picture.lines[0].points for picture in pictures)
    assert ([p.x for p in down], [p.x for p in up]) == ([0.0, 0.25], [0.0, 0.75])
    assert [(p.x, round(p.y, 6), round(p.low, 6)) for p in epochs] == [(0, 10, 10), (1, 50, 40)]
    assert [(p.x, round(p.y, 6)) for p in size] == [(1.0, 40.0)]


def test_a_long_curve_keeps_its_ends(grid_study: Study, finished: Make) -> None:
    panel = grid_study(kind="curves", panels=[{"words": "x"}]).panels[0]
    points = grid._curve(panel, [finished([0.001 * place for place in range(900)])])
    assert len(points) <= grid.MOST_POINTS + 1
    assert (points[0].x, points[-1].x) == (0.0, 899.0)
