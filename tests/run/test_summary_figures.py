"""A run's figures in words: on a terminal, in one line, in a notebook."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from vertizo.config import schema
from vertizo.run import summary_figures
from vertizo.run.experiment import Experiment, Result


@pytest.fixture(scope="module")
def result() -> Result:
    settings = ["data.name=breast-cancer", "epochs=1", "batch_size=50", "method.name=vafl"]
    return Experiment(schema.load(None, settings)).run()


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


def test_a_result_is_one_line(result: Result) -> None:
    assert "\n" not in repr(result)
    assert repr(result).startswith("vafl on breast-cancer: test AUC ")
