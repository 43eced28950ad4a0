"""A run's figures in words: on a terminal, in one line, in a notebook."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.lazy import Lazy

import vertizo as vz
from vertizo.config import schema
from vertizo.run.experiment import Experiment, Result
from vertizo.run.results import summary_figures

sklearn = Lazy("sklearn")


@pytest.fixture(scope="module")
def result(trained_run: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = shutil.copytree(trained_run("vafl"), tmp_path_factory.mktemp("run") / "copy")
    return Experiment(schema.load(folder / "config.yaml")).run(folder, resume=True)


def words_of(html: str) -> list[str]:
    """What is shown; the HTML is well-formed."""
    return [word for word in ElementTree.fromstring(f"<div>{html}</div>").itertext() if word]


def test_figures_are_those_of_the_summary(result: Result) -> None:
    found = dict(summary_figures.rows(result.summary))
    assert found["test accuracy"] == f"{100 * result.summary['test_accuracy']:.2f} %"
    assert found["test AUC"] == f"{result.summary['test_auc']:.4f}"
    assert found["clients"] == "3"
    assert found["privacy"] == "none"
    assert not any(name.startswith("validation") for name in found)


def test_without_test_records_those_of_validation_stand_in(result: Result) -> None:
    summary = {k: v for k, v in result.summary.items() if not k.startswith("test_")}
    found = dict(summary_figures.rows(summary))
    best = summary["best"]["validation_accuracy"]
    assert found["validation accuracy"] == f"{100 * best:.2f} %"
    assert not any(name.startswith("test") for name in found)
    summary["best"], summary["model"] = None, "last"
    assert dict(summary_figures.rows(summary))["model"] == "last"


def test_a_notebook_gets_a_table_and_the_statement(result: Result) -> None:
    words = words_of(result._repr_html_())
    for name, text in summary_figures.rows(result.summary):
        assert name in words
        assert text in words
    assert any("No privacy guarantee" in word for word in words)


def test_names_from_a_table_are_no_html(result: Result) -> None:
    summary = {**result.summary, "dataset": "<script>alert(1)</script>", "classes": ["<b>", "&"]}
    text = summary_figures.html(summary)
    assert "<script>" not in text
    assert "alert(1)" in "".join(words_of(text))


def test_a_notebook_reads_what_came_out_and_what_is_guaranteed_first(result: Result) -> None:
    html = result._repr_html_()
    order = ["vafl on breast-cancer", "test AUC", "No privacy guarantee", "<table", "<details"]
    assert sorted(order, key=html.index) == order


def test_a_fitted_estimator_shows_its_run_and_then_itself(result: Result) -> None:
    model = vz.VerticalClassifier(method="vafl")
    assert "No privacy guarantee" not in (model._repr_html_() or "")
    model.result_, model.privacy_ = result, "Nothing holds <b>here</b>."
    for html in (model._repr_html_(), model._repr_mimebundle_()["text/html"]):
        order = ["test AUC", "Nothing holds &lt;b&gt;here", "<table", "VerticalClassifier"]
        assert sorted(order, key=html.index) == order
    with sklearn.config_context(display="text"):
        assert model._repr_html_() is None
        assert list(model._repr_mimebundle_()) == ["text/plain"]


def test_a_result_is_one_line(result: Result) -> None:
    assert "\n" not in repr(result)
    assert repr(result).startswith("vafl on breast-cancer: test AUC ")


@pytest.mark.parametrize(
    ("name", "run", "controls", "said"),
    [
        ("accuracy", (0.9, 0.8, 0.95), (0.7, 0.79), "the best is random updates: test accuracy 79"),
        ("accuracy", (0.9, 0.8, 0.95), (0.8, 0.7), "frozen clients: .* is not shown$"),
        ("accuracy", (0.9, 0.8, 0.95), (0.7, 0.96), r".* the run's \S+ %; training .* not paid$"),
        ("accuracy", (0.9, 0.8, 0.95), (0.7, 0.91), ".* though within its interval, .* not paid$"),
        ("rmse", (2.0, 1.5, 2.5), (2.6, 3.0), "the best is frozen clients: test RMSE 2.6; .* is b"),
        ("rmse", (2.0, 1.5, 2.5), (3.0, 2.5), "random updates: .* is not shown$"),
        ("rmse", (2.0, 1.5, 2.5), (1.9, 3.0), "frozen clients: .* has not paid$"),
    ],
)
def test_a_run_beside_its_controls(
    result: Result,
    name: str,
    run: tuple[float, float, float],
    controls: tuple[float, float],
    said: str,
) -> None:
    def summary(control: str, *figures: float) -> dict[str, object]:
        scores = zip((name, f"{name}_low", f"{name}_high"), figures, strict=False)
        bare = {key: value for key, value in result.summary.items() if not key.startswith("test_")}
        return {**bare, "control": control, **{f"test_{key}": value for key, value in scores}}

    beside = [summary("frozen", controls[0], 0, 9), summary("random", controls[1], 0, 9)]
    words = summary_figures.beside_controls(summary("none", *run), beside)
    assert re.match(said, words) is not None, words
    assert summary_figures.beside_controls(summary("none"), beside) is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            0.85,
            "the best is frozen, .*: test AUC 0.8150; the run's raw head's 0.8500, 0.83.* better",
        ),
        (0.82, ".* within the interval of the run's raw head's 0.8200, .* is not shown$"),
        (0.80, ".*: test AUC 0.8150, better than the run's raw head's 0.8000.* has not paid$"),
        (None, ".*: test AUC 0.8150, better than the run's 0.7413.*; training .* has not paid$"),
    ],
)
def test_a_raw_head_is_held_against_a_raw_head(
    result: Result, raw: float | None, said: str
) -> None:
    """A head that knows every label is ahead of a private one, whatever the clients learned."""

    def scores(auc: float) -> dict[str, float]:
        return {"test_auc": auc, "test_auc_low": auc - 0.02, "test_auc_high": auc + 0.02}

    bare = {key: value for key, value in result.summary.items() if not key.startswith("test_")}
    run = {**bare, "control": "none", **scores(0.7413)}
    if raw is not None:
        run["raw_head"] = {"kind": "logistic", "words": "", **scores(raw)}
    frozen = {**bare, "control": "frozen", **scores(0.6)}
    words = summary_figures.beside_controls(
        run, [frozen, {**bare, "control": "label-free", **scores(0.815)}]
    )
    assert re.match(said, words) is not None, words
