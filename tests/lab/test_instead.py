"""What is said beside the verdict that training the clients has not paid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.command_line import Vertizo
from tests.lab.report.pages import page_of
from tests.words import says

from vertizo.config.schema import parse
from vertizo.core.errors import RunError
from vertizo.run import auto, instead
from vertizo.run.experiment import Experiment

SUMMARY: dict[str, Any] = {
    "best": {"validation_auc": 0.8, "round": 9},
    "rounds": 20,
    "references": {
        "metric": "auc",
        "validation": {"alone": {"boosting": 0.7, "linear": 0.82}, "pooled": {"linear": 0.95}},
    },
}


@pytest.fixture(scope="module")
def plain() -> Experiment:
    return made()


def made(**changed: Any) -> Experiment:
    data = {"name": "breast-cancer", "limit": 80, "validation": 0.2}
    experiment = Experiment(parse({"seed": 0, "epochs": 3, "data": data, **changed}))
    experiment.data()
    return experiment


def said(experiment: Experiment, **changed: Any) -> tuple[str, dict[str, float]]:
    found = instead.advised(experiment.config, experiment.data(), {**SUMMARY, **changed})
    return found["words"], found["tried"]


def trials(monkeypatch: pytest.MonkeyPatch, *figures: float) -> None:
    """Candidates of method auto answer with these in turn, on the run's validation records."""
    each = iter(figures)
    monkeypatch.setattr(auto, "_trained", lambda config, part, tell: {"test_auc": next(each)})


def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_trained", lambda config, part, tell: pytest.fail("it was trained"))


def test_what_is_ahead_on_validation_records(
    plain: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials(monkeypatch, 0.85, 0.9, 0.75)
    words, tried = said(plain)
    assert tried == {"network": 0.85, "linear": 0.9, "dpzv": 0.75}
    assert words.startswith("`method: {name: auto}`")
    says(
        words,
        "AUC of validation records 0.9 by split learning of linear parts, 0.85 by split",
        "this run 0.8. Its clients receive gradients, from which labels can be told",
        "no federation: AUC of validation records 0.82 by the label holder alone, this run 0.8",
        "no federation: AUC of validation records 0.95 by all columns in one table",
    )
    assert "epochs" not in words


def test_where_nothing_is_ahead(plain: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    trials(monkeypatch, 0.7, 0.8, 0.75)
    about = {"metric": "auc", "validation": {"alone": None, "pooled": {"linear": 0.6}}}
    best = {"validation_auc": 0.8, "round": 20}
    words, tried = said(plain, references=about, best=best)
    assert len(tried) == 3
    assert words.startswith("none of `method: {name: auto}`")
    assert words.endswith("; more `epochs`: the best evaluation was the last")
    assert "no federation" not in words

    def diverged(config: Any, part: Any, tell: Any) -> dict[str, Any]:
        raise RunError("it diverged")

    monkeypatch.setattr(auto, "_trained", diverged)
    assert "every trial diverged" in said(plain)[0]


def test_what_cannot_be_tried_is_named(plain: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    untried(monkeypatch)
    assert "`method: {name: auto}` tried others already" in said(plain, choice={"words": ""})[0]
    assert said(plain, best=None) == (
        "not tried: `method: {name: auto}` beside this `seed` and `data` alone, which tries other "
        "methods on validation records",
        {},
    )
    monkeypatch.setattr(instead, "MOST", 10)
    assert said(plain)[0].startswith("not tried: `method: {name: auto}`")


def test_under_noise_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    untried(monkeypatch)
    wide = made(privacy={"epsilon": 1.0}, batch_size=20)
    words, tried = said(wide, references=None)
    assert tried == {}
    says(
        words,
        "nothing was tried, which would read labels",
        "method: label-statistic",
        "`method: {name: one-shot}`, one upload that depends on no label (ε = 0)",
        "fewer numbers of a record",
        "a larger `batch_size` than 20",
    )
    narrow = made(
        method={"name": "label-statistic"},
        client={"model": {"name": "mlp", "outputs": 1}},
        privacy={"epsilon": 1.0},
    )
    words, _ = said(narrow, references=None)
    assert "one-shot" in words
    for part in ("method: label-statistic", "fewer", "batch_size", "epochs"):
        assert part not in words


@pytest.mark.full
def test_a_run_that_has_not_paid_says_so_in_a_terminal_a_summary_and_a_report(
    call: Vertizo, tmp_path: Path
) -> None:
    """Two epochs of DPZV on a table whose labels depend on both clients' numbers together."""
    import numpy as np

    chance = np.random.default_rng(0)
    one, other = chance.normal(size=(2, 600))
    frame = {"one": one, "other": other, "y": np.where(one + other > 0, "yes", "no")}
    pl.DataFrame(frame).write_csv(tmp_path / "t.csv")
    (tmp_path / "c.yaml").write_text(
        "{seed: 0, epochs: 1, method: {name: dpzv}, data: {name: table, path: t.csv, label: y,\n"
        "  columns: {a: [one], b: [other]}}}\n"
    )
    out = call("train", "c.yaml", "--controls", "--out", "run").well()
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert "has not paid" in out
    assert set(summary["instead"]["tried"]) == {"network", "linear", "dpzv"}
    best = max(summary["instead"]["tried"].values())
    assert best > summary["best"]["validation_auc"]
    words = " ".join(out.split())
    assert " ".join(f"instead: {summary['instead']['words']}".split()) in words
    card = page_of(tmp_path / "run").one("li", class_="card")
    assert "Instead: `method: {name: auto}`" in card.text
    again = call("train", "--resume", "run", "--controls").well()
    assert "method auto: trying" not in again
