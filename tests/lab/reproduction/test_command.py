"""``vertizo reproduce`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.conftest import Call

from vertizo.lab.reproduction import plots, study

OWN = """
title: Two methods on digits
paper: none
kind: curves
seeds: 2
settings:
  epochs: 2
  batch_size: 9
  data: {name: digits, limit: 60, parties: 2}
  client: {optimizer: {learning_rate: 0.003}}
  server: {optimizer: {learning_rate: 0.01}}
columns:
  accuracy: {words: test accuracy}
  last: {words: last epoch, figure: {name: at-epoch, of: train_accuracy}}
panels:
  - {words: by epochs, y: train_accuracy}
rows:
  dpzv: {words: DPZV, settings: {method: {name: dpzv}}, controls: true, published: {accuracy: 90.5}}
  vafl: {words: VAFL, settings: {method: {name: vafl}}}
quick:
  reduced: one seed
  seeds: 1
"""


@pytest.fixture(autouse=True)
def _own(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)


@pytest.mark.full
def test_the_list(call: Call) -> None:
    code, out, errors = call("reproduce", "--list")
    assert (code, errors) == (0, "")
    for name in study.names():
        assert name in out
    _, out, _ = call("reproduce", "--list", "--json")
    assert [entry["name"] for entry in json.loads(out)] == study.names()


def test_what_is_wrong_is_one_line_and_leaves_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERTIZO_DATA", str(tmp_path / "missing"))
    for command, words in (
        ("", "--list"),
        ("cascaded-tabel2", "did you mean 'cascaded-table2'"),
        ("theory-scaling", "made by a script: python experiments/growth.py, in a checkout"),
        ("dpzv-figure4 --quick", "python experiments/client_memory.py"),
        ("cascaded-table2 --set epoch=3", "unknown key 'epoch'"),
        ("cascaded-table2 --seeds 0", "--seeds"),
        ("cascaded-table2 --engine cloud", "'--engine': 'cloud' is not one of 'local', 'ray'"),
        ("cascaded-table2 --ray-address a:1", "--ray-address a:1 is for --engine ray"),
        ("nowhere.yaml", "nowhere.yaml"),
        ("cascaded-table2 --quick", "VERTIZO_DATA"),
    ):
        code, out, errors = call("reproduce", *command.split())
        assert (code, out) == (2, ""), command
        assert errors.count("\n") == 1, command
        assert words in errors
        assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]


@pytest.mark.full
def test_a_whole_study(call: Call, tmp_path: Path) -> None:
    code, out, errors = call("reproduce", "own.yaml", "--jobs", "1")
    assert (code, errors) == (0, "")
    folder = tmp_path / "runs" / "reproduce-own"
    content = json.loads((folder / "own.json").read_text())
    assert (content["form"], content["seeds"], content["reduced"]) == ("full", 2, None)
    assert content["command"] == "vertizo reproduce own.yaml --jobs 1"
    cells = {(c["row"], c["column"]): c for c in content["figures"]["cells"]}
    first = cells["dpzv", "accuracy"]
    summaries = [
        json.loads((folder / "dpzv" / f"seed{seed}" / "summary.json").read_text())
        for seed in (0, 1)
    ]
    assert first["values"] == pytest.approx([100 * one["test_accuracy"] for one in summaries])
    assert set(first["controls"]) == {"frozen", "random", "label-free"}
    assert first["published"] == 90.5
    for words in ("DPZV", "published", "frozen clients", "random updates", "ε = 0", "90.5", "± "):
        assert words in out
    if plots.available():
        assert (folder / "own.svg").is_file()
    assert len(content["pictures"][0]["lines"]["DPZV"]) >= 2

    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}
    assert len(stamps) == 10
    code, again, _ = call("reproduce", "own.yaml", "--json")
    assert code == 0
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert json.loads(again)["figures"] == content["figures"]

    code, out, _ = call("reproduce", "own.yaml", "--quick")
    assert code == 0
    assert "Reduced: one seed" in out
    assert "One seed: no spread." in out
    assert (tmp_path / "runs" / "reproduce-own-quick" / "own-quick.json").is_file()
