"""``vertizo reproduce`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.command_line import Refuses, Vertizo
from tests.words import says

from vertizo.lab.reproduction import plots, study
from vertizo.run.results.folder import RunFolder

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
def test_the_list(call: Vertizo) -> None:
    says(call("reproduce", "--list").quietly(), *study.names())
    listed = json.loads(call("reproduce", "--list", "--json").out)
    assert [entry["name"] for entry in listed] == study.names()


MISTAKES = """\
 | --list
cascaded-tabel2 | did you mean 'cascaded-table2'
theory-scaling | made by a script: python experiments/growth.py, in a checkout
dpzv-figure4 --quick | python experiments/client_memory.py
cascaded-table2 --set epoch=3 | unknown key 'epoch'
cascaded-table2 --seeds 0 | --seeds
cascaded-table2 --engine cloud | '--engine': 'cloud' is not one of 'local', 'ray'
cascaded-table2 --ray-address a:1 | --ray-address a:1 is for --engine ray
nowhere.yaml | nowhere.yaml
cascaded-table2 --quick | VERTIZO_DATA
"""


def test_what_is_wrong_is_one_line_and_leaves_nothing(
    refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERTIZO_DATA", "missing")
    refuses(MISTAKES, "reproduce")


@pytest.mark.full
def test_a_whole_study(call: Vertizo, tmp_path: Path) -> None:
    out = call("reproduce", "own.yaml", "--jobs", "1").quietly()
    folder = tmp_path / "runs" / "reproduce-own"
    content = json.loads((folder / "own.json").read_text())
    assert (content["form"], content["seeds"], content["reduced"]) == ("full", 2, None)
    assert content["command"] == "vertizo reproduce own.yaml --jobs 1"
    cells = {(c["row"], c["column"]): c for c in content["figures"]["cells"]}
    first = cells["dpzv", "accuracy"]
    runs = [RunFolder(folder / "dpzv" / f"seed{seed}").summary() for seed in (0, 1)]
    assert first["values"] == pytest.approx([100 * one["test_accuracy"] for one in runs])
    assert set(first["controls"]) == {"frozen", "random", "label-free"}
    assert first["published"] == 90.5
    says(out, "DPZV", "published", "frozen clients", "random updates", "ε = 0", "90.5", "± ")
    if plots.available():
        assert (folder / "own.svg").is_file()
    assert len(content["pictures"][0]["lines"]["DPZV"]) >= 2

    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}
    assert len(stamps) == 10
    again = call("reproduce", "own.yaml", "--json").well()
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert json.loads(again)["figures"] == content["figures"]

    quick = call("reproduce", "own.yaml", "--quick").well()
    says(quick, "Reduced: one seed", "One seed: no spread.")
    assert (tmp_path / "runs" / "reproduce-own-quick" / "own-quick.json").is_file()
