"""Curves of two classes, from what run folders keep; and what a page with them must not become."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.lab.conftest import ran
from tests.lab.report.pages import page_of
from tests.words import says

from vertizo.core.errors import RunError
from vertizo.lab.report import ranking, read
from vertizo.run.results.folder import RunFolder

BINARY = ("data.name=breast-cancer", "data.limit=300", "seed=0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two controls, below a folder that holds nothing else."""
    run = ran(tmp_path_factory.mktemp("runs") / "one", *BINARY)
    ran(run / "controls" / "frozen", *BINARY, "control=frozen")
    ran(run / "controls" / "label-free", *BINARY, "control=label-free")
    return run


@pytest.mark.full
def test_curves_are_those_of_the_summary(folder: Path) -> None:
    run = read([folder]).runs[0]
    kept = ranking.tested(run)
    assert ranking._auc(kept) == pytest.approx(run.summary["test_auc"], abs=1e-6)
    curves = ranking._curves(kept)
    for name in ("roc", "pr"):
        assert len(curves[name]) <= ranking.MOST + 1
        assert curves[name][-1].at["share"] == 1, name
    area = sum(
        (b.at["share"] - a.at["share"]) * (a.mean + b.mean) / 2
        for a, b in zip(curves["roc"], curves["roc"][1:], strict=False)
    )
    assert area == pytest.approx(run.summary["test_auc"], abs=0.01)


@pytest.mark.full
def test_the_page_has_them_and_headlines_show_what_chose_the_model(folder: Path) -> None:
    page = page_of(folder)
    figure = page.one("div", id="ranking0")
    assert len(figure.all("figure", class_="plot")) == 3
    words = figure.one("p", id="ranking0-roc").text
    says(words, "dpzv ", "frozen clients", "raw head")
    card = page.one("section", id="overview").one("li", class_="card").text
    assert "Test AUC" in card
    assert "95 % (bootstrap)" in card
    assert "UTC" in card


@pytest.mark.full
def test_controls_below_a_folder_of_runs_are_no_runs_of_their_own(folder: Path) -> None:
    cards = page_of(folder.parent).one("section", id="overview").all("li", class_="card")
    assert len(cards) == 1
    assert "unfinished" not in cards[0].text
    assert "raw head" in cards[0].text


@pytest.mark.full
def test_a_run_without_test_records_beside_one_with_them(folder: Path, tmp_path: Path) -> None:
    """Such as a trial of a search: its own figure, and never a dash."""
    shutil.copytree(folder, tmp_path / "with")
    trial = ran(tmp_path / "trial", *BINARY, "batch_size=7")
    summary = RunFolder(trial).summary()
    kept = {key: value for key, value in summary.items() if not key.startswith("test_")}
    RunFolder(trial).write_summary(kept)
    cards = page_of(tmp_path).one("section", id="overview").all("li", class_="card")
    shown = {"Test" if "Test AUC" in card.text else "Validation" for card in cards}
    assert shown == {"Test", "Validation"}
    assert not any("–" in card.text for card in cards)


def test_what_there_is_nothing_to_draw_of(folder: Path, tmp_path: Path) -> None:
    many = ran(tmp_path / "digits")
    assert ranking.tested(read([many]).runs[0]) is None
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    file = damaged / "checkpoints" / "test_scores.safetensors"
    file.write_bytes(b"x")
    with pytest.raises(RunError, match="test_scores"):
        ranking.tested(read([damaged]).runs[0])
    file.unlink()
    shutil.rmtree(damaged / "controls")
    assert "ranking0" not in {d.attributes.get("id") for d in page_of(damaged).all("div")}
