"""What is reached without a federation, beside the curves and figures of runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vertizo.config.schema import parse
from vertizo.lab.report import curves, measures, plot, tables
from vertizo.lab.report.reading import Run
from vertizo.lab.report.variants import Study, studies

AUC = "validation_auc"


def run(
    method: str,
    pooled: dict[str, float],
    seed: int = 0,
    alone: dict[str, float] | None = None,
    metric: str = "auc",
    **data: Any,
) -> Run:
    """A finished run whose references of validation records are a tenth below those of test."""
    given = {"seed": seed, "method": {"name": method}, "data": {"name": "breast-cancer", **data}}
    rows = tuple(
        {"round": at, AUC: 0.6 + at / 1000, "validation_rmse": 2.0, "bytes_up": at, "bytes_down": 0}
        for at in (0, 50, 100)
    )
    lower = [each and {kind: f - 0.1 for kind, f in each.items()} for each in (alone, pooled)]
    about = {"metric": metric, "alone": alone, "pooled": pooled}
    about["validation"] = dict(zip(("alone", "pooled"), lower, strict=True))
    privacy = {"guarantee": "none", "epsilon": None}
    summary = {"dataset": "t", "privacy": privacy, "references": about, f"test_{metric}": 0.7}
    summary["finished"] = "2026-11-28T11:00:00+00:00"
    return Run(Path(f"/runs/{method}{seed}{data}"), parse(given), "", rows, summary)


def lines(*runs: Run) -> tuple[Study, dict[str, curves.Line]]:
    (study,) = studies(runs)
    drawn = curves.drawing(study, measures.CURVES)
    return study, {line.name: line for line in drawn.lines}


def test_level_lines_are_those_of_the_same_records_and_in_the_frame() -> None:
    one = run("dpzv", {"boosting": 0.95, "linear": 0.9}, alone={"boosting": 0.3, "linear": 0.4})
    study, found = lines(one)
    assert list(found) == ["dpzv", "label holder alone", "all columns pooled"]
    for name, value in (("label holder alone", 0.3), ("all columns pooled", 0.85)):
        points = found[name].points[AUC]
        assert [p.at["round"] for p in points] == [0, 100]
        assert {round(p.mean, 9) for p in points} == {value}
    drawn = curves.drawing(study, measures.CURVES)
    for axis in drawn.axes[:2]:
        made = plot.plot(drawn, drawn.measures[0], axis)
        for stroke in made.strokes[1:]:
            x0, y0, x1, y1 = (float(n) for n in re.findall(r"[-\d.]+", stroke.path))
            assert (x0, x1) == (0, 1000)
            assert 0 < y0 == y1 < 1000
    words = plot.describe(drawn, drawn.measures[0])
    assert "label holder alone 0.3000; all columns pooled 0.8500, of the same records" in words
    assert "Dashes" not in words
    assert curves.drawing(study, measures.TIMING, of_time=True) is None
    rows = [row for row in plot.table(drawn)["rows"] if row["name"] in list(found)[1:]]
    assert [row["places"] for row in rows] == [[""] * len(drawn.axes)] * 2


def test_runs_of_the_same_data_share_lines_and_others_have_their_own() -> None:
    same = {"linear": 0.9}
    runs = run("dpzv", same), run("vafl", same), run("vafl", {"linear": 0.8}, seed=1)
    _, found = lines(*runs)
    level = [line for line in found.values() if line.control == "pooled"]
    assert [(line.name, line.seeds) for line in level] == [("all columns pooled", 2)]
    assert round(level[0].points[AUC][0].mean, 9) == 0.75
    _, found = lines(*runs, run("split", {"linear": 0.7}, limit=90))
    pooled = [name for name in found if "pooled" in name]
    assert pooled == ["all columns pooled (dpzv, vafl)", "all columns pooled (split)"]
    looks = {plot.look(found[name])["colour"] for name in found}
    assert len(looks) == 5


def test_figures_beside_those_of_the_run() -> None:
    study, _ = lines(run("dpzv", {"boosting": 0.9}, alone={"boosting": 0.6, "linear": 0.5}))
    (card,) = tables.headlines(study)
    assert card["controls"] == [("label holder alone", "0.6000"), ("all columns pooled", "0.9000")]
    table = tables.methods(study)
    assert table["heads"][:3] == ["Test AUC", "label holder alone", "all columns pooled"]
    study, found = lines(run("dpzv", {"boosting": 3.0, "linear": 2.5}, metric="rmse"))
    assert tables.headlines(study)[0]["controls"] == [("all columns pooled", "2.5000")]
    assert list(found["all columns pooled"].points) == ["validation_rmse"]
