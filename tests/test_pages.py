"""Pages whose code runs: writing a method, through all five commands; scikit-learn."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.command_line import run

from vertizo.run.loop.training import Training

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-method.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def vertizo(line: str, code: int = 0) -> None:
    program, *words = shlex.split(line)
    assert (program, run(*words)) == ("vertizo", code), line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside the repository, with the page's files."""
    (tmp_path / "my_method.py").write_text(block("python"))
    (tmp_path / "run.yaml").write_text(block("yaml"))
    shutil.copy(ROOT / "examples" / "loans.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_method", raising=False)
    return tmp_path


@pytest.mark.full
def test_the_pages_commands(folder: Path) -> None:
    for line in block("sh").splitlines():
        vertizo(line)
    summary = json.loads((folder / "runs/sign/summary.json").read_text())
    assert summary["method"] == "my_method:SignVfl"
    assert summary["privacy"]["guarantee"] == "none"
    assert "my_method:SignVfl" in (folder / "runs/sign/report.html").read_text()
    with (folder / "predictions.csv").open() as file, (folder / "loans.csv").open() as records:
        assert len(list(csv.reader(file))) == len(list(csv.reader(records)))


@pytest.mark.full
def test_the_pages_method_keeps_the_contract(folder: Path) -> None:
    exec(block("py"), {})


def test_a_run_that_stopped_goes_on_to_the_same_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vertizo("vertizo train run.yaml --out whole --set seed=1")
    evaluate, seen = Training._evaluate, []

    def stop_later(self: Training) -> None:
        evaluate(self)
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_evaluate", stop_later)
        part = "vertizo train run.yaml --out part --set seed=1 --set checkpoint_seconds=0"
        vertizo(part, code=130)
    vertizo("vertizo train --resume part")
    ends = [json.loads((folder / each / "summary.json").read_text()) for each in ("whole", "part")]
    assert len({(end["test_accuracy"], end["test_loss"]) for end in ends}) == 1


def test_noise_gives_a_method_that_declares_nothing_no_guarantee(folder: Path) -> None:
    more = "--set privacy.noise_std=1 --set seed=0 --set server.update=none"
    vertizo(f"vertizo train run.yaml --out noised {more}")
    summary = json.loads((folder / "noised/summary.json").read_text())
    assert summary["privacy"]["guarantee"] == "none"
    assert summary["privacy"].get("epsilon") is None


@pytest.mark.full
@pytest.mark.usefixtures("without_pandas")
def test_every_block_of_the_scikit_learn_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    text = (ROOT / "docs" / "scikit-learn.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert len(blocks) >= 7
    for number, each in enumerate(blocks, 1):
        exec(compile(each, f"scikit-learn.md, block {number}", "exec"), names)
    said = capsys.readouterr().out.splitlines()
    assert float(said[0]) > 0.85, "the accuracy of the first model"
    assert any("No privacy guarantee" in line for line in said)
    assert "['north', 'south']" in said
    bound = re.compile(r"(Simulated: )?ε = (2\.9\d*|3) at δ = 0\.0001 ")
    assert any(map(bound.match, said)), said
    assert (tmp_path / "tumours" / "estimator.json").is_file()
