"""Methods side by side: the same runs as alone, nothing made twice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.lab.conftest import TINY, Compared
from tests.refusals import one_line
from tests.same import timeless

from vertizo.config import schema as configuration
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.names import CONTROLS
from vertizo.lab import comparison
from vertizo.lab.comparison import Row, bytes_to, mean_and_spread, rows
from vertizo.lab.comparison_table import brief, lines, paid, verdict
from vertizo.lab.engines import Processes
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder

pytestmark = pytest.mark.full
RATE = "client.optimizer.learning_rate"


def configs(*labels: str, path: Path | None = None, more: str = "") -> dict[str, ExperimentConfig]:
    return comparison.configurations(path, [*TINY, *more.split()], labels)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "compare.yaml"
    path.write_text(text)
    return path


ENTRIES = """
seed: 4
client: {optimizer: {learning_rate: 0.5, momentum: 0.25}}
method: {name: dpzv, smoothing: 0.01}
methods:
  vafl: {client: {optimizer: {learning_rate: 0.125}}}
  ten: {method: {name: czofo, num_directions: 10}}
"""


def test_an_entry_replaces_its_own_keys_only(tmp_path: Path) -> None:
    path = written(tmp_path, ENTRIES)
    found = configs("dpzv", "vafl", "ten", path=path)
    rates = {label: c.client.optimizer.learning_rate for label, c in found.items()}
    assert rates == {"dpzv": 0.5, "vafl": 0.125, "ten": 0.5}
    assert {c.client.optimizer.momentum for c in found.values()} == {0.25}
    assert [c.method.name for c in found.values()] == ["dpzv", "vafl", "czofo"]
    assert found["dpzv"].method.smoothing == 0.01
    assert found["ten"].method.num_directions == 10
    assert list(configs(path=path)) == ["vafl", "ten"], "without labels all entries are meant"
    assert configs() == {}


def test_train_takes_the_entry_of_the_method_that_is_chosen(tmp_path: Path) -> None:
    path = written(tmp_path, ENTRIES)
    for overrides, expected in (
        ([], ("dpzv", 0.5)),
        (["method.name=vafl"], ("vafl", 0.125)),
        (["method.name=vafl", f"{RATE}=2"], ("vafl", 2)),
    ):
        found = configuration.load(path, overrides)
        assert (found.method.name, found.client.optimizer.learning_rate) == expected
    # An entry's own keys of its method, with the method's name or without.
    path = written(tmp_path, "methods: {czofo: {method: {num_directions: 10}}}")
    chosen = configuration.load(path, ["method.name=czofo"])
    for each in (chosen, configs("czofo", path=path)["czofo"]):
        assert each.method.num_directions == 10


WRONG = [
    ("", "vafll", ["--methods vafll", "did you mean 'vafl'"]),
    ("methods: {vafll: {epochs: 1}}", "vafl", ["methods.vafll", "did you mean 'vafl'"]),
    ("methods: [vafl]", "vafl", ["methods must hold"]),
    ("methods: {vafl: 3}", "vafl", ["methods must hold"]),
    ("methods: {1: {epochs: 1}}", "vafl", ["entry 1"]),
    ("methods: {../x: {method: {name: vafl}}}", "../x", ["entry '../x'"]),
    ("methods: {vafl: {method: null}}", "vafl", ["methods.vafl.method is None"]),
    ("methods: {vafl: {method: vafl}}", "vafl", ["methods.vafl.method is 'vafl'"]),
    ("methods: {vafl: {epoch: 3}}", "vafl", ["unknown key 'epoch'", "'epochs'"]),
    ("methods: {czofo: {method: {num_direction: 10}}}", "czofo", ["mean 'num_directions'"]),
    ("simulation: {timing: asynchronous}", "split", ["'asynchronous'", "'split'"]),
]


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    for text, label, words in WRONG:
        with one_line(ConfigError, *words, case=text):
            configs(label, path=written(tmp_path, text))
    for setting in ("method.name=vafl", "method={name: vafl}"):
        with pytest.raises(ConfigError, match="contradicts --methods"):
            comparison.configurations(None, [setting], ["dpzv", "split"])
    with pytest.raises(ConfigError, match="control is 'frozen'"):
        comparison.plan(configs("vafl", more="control=frozen"), 1, tmp_path, controls=CONTROLS)


def test_every_method_every_seed_every_control(tmp_path: Path) -> None:
    runs = comparison.plan(configs("vafl", "dpzv"), 2, tmp_path, controls=CONTROLS)
    assert [(r.label, r.config.seed, r.config.control) for r in runs] == [
        (label, seed, control)
        for label in ("vafl", "dpzv")
        for seed in (0, 1)
        for control in ("none", "frozen", "random", "label-free")
    ]
    assert len({run.folder for run in runs}) == 16
    plain = comparison.plan(configs("vafl"), 1, tmp_path, controls=())
    assert [run.control for run in plain] == ["none"]
    wrong = configs("vafl", more="server.join=sum batch_size=61")
    with pytest.raises(ConfigError, match="batch_size is 61"):
        comparison.check(comparison.plan(wrong, 1, tmp_path, controls=CONTROLS))
    assert list(tmp_path.iterdir()) == [], "what cannot start fails before anything runs"


def test_each_run_is_as_if_alone_and_none_is_made_twice(compared: Compared) -> None:
    assert compared.standings[-1].finished == compared.standings[-1].total == 16
    run = compared.runs[8]
    assert (run.label, run.control) == ("dpzv", "none")
    alone = Experiment(run.config).run().summary
    assert timeless(compared.summaries[run]) == timeless(alone)
    stamps = [path.stat().st_mtime_ns for path in compared.folder.rglob("summary.json")]
    again = comparison.execute(compared.runs, Processes(2))
    assert again == compared.summaries
    assert [path.stat().st_mtime_ns for path in compared.folder.rglob("summary.json")] == stamps
    comparison.check(compared.runs)
    others = comparison.plan(configs("vafl", more="epochs=4"), 1, compared.folder, controls=())
    with pytest.raises(RunError, match="another configuration"):
        comparison.check(others)


def test_rows_and_file(compared: Compared) -> None:
    row = compared.rows[0]
    own = [run for run in compared.runs if (run.label, run.control) == ("vafl", "none")]
    plain = [compared.summaries[run] for run in own]
    assert row.figures("test_accuracy") == [s["test_accuracy"] for s in plain]
    assert len(row.figures("test_accuracy", "frozen")) == 2
    assert row.bytes_to[1.0] == (None, None)
    found = json.loads((compared.folder / "comparison.json").read_text())["methods"]["vafl"]
    assert found["seeds"] == [0, 1]
    assert found["test_accuracy"] == row.figures("test_accuracy")
    assert found["controls"]["random"]["test_accuracy"] == row.figures("test_accuracy", "random")


def test_the_table_has_epsilon_the_label_advantage_and_what_costs_nothing(tmp_path: Path) -> None:
    private = configs("dpzv", more="privacy.epsilon=1 privacy.clip=1 server.update=none")
    runs = comparison.plan({**private, **configs("vafl")}, 1, tmp_path, controls=["label-free"])
    summaries = comparison.execute(runs, Processes(2))
    made = rows(runs, summaries, [], "validation")
    table = {name: cells for name, *cells in lines(made)}
    assert table["label advantage"] == ["0.107", "-"]
    assert table["privacy"] == ["simulated: ε 1, δ 1e-05", "none"]
    headings, *each = brief(made)
    assert [line[headings.index("simulated ε")] for line in each] == ["1", "none"]
    assert [line[2] for line in each] == table["frozen, label-free, raw head, ε = 0"]
    accuracies = [100 * summaries[runs[place]]["raw_head"]["test_accuracy"] for place in (1, 3)]
    said = table["frozen, label-free, raw head, ε = 0"]
    assert [float(each) for each in said] == pytest.approx(accuracies, abs=0.01)
    found = made[0].as_dict()
    assert (found["epsilon"], found["delta"]) == (pytest.approx(1), 1e-5)
    assert found["label_advantage"] == pytest.approx(0.1066, abs=1e-4)


def test_the_same_data_and_first_parameters_for_every_method(tmp_path: Path) -> None:
    """Frozen clients under the same server are the same run, whatever the method."""
    runs = comparison.plan(configs("vafl", "cascaded"), 1, tmp_path, controls=CONTROLS)
    frozen = [Experiment(run.config).run().summary for run in runs if run.control == "frozen"]
    assert frozen[0]["test_loss"] == pytest.approx(frozen[1]["test_loss"], rel=1e-5)


def test_the_verdict_counts_the_seeds_in_which_training_the_clients_paid() -> None:
    """The best method by its mean, held against the best of its controls in every seed."""

    def row(label: str, key: str, own: list[float], **controls: list[float]) -> Row:
        each = {"none": own, **controls}
        return Row(label, {kind: [{key: v} for v in given] for kind, given in each.items()}, {})

    best = row("vafl", "test_accuracy", [0.9, 0.8], frozen=[0.5, 0.6], random=[0.7, 0.6])
    worse = row("dpzv", "test_accuracy", [0.6, 0.6], frozen=[0.7, 0.7])
    winner, (first, second) = verdict([worse, best])
    assert winner is best
    assert first == "vafl: highest test accuracy 85.00 ± 7.07 %"
    assert "the best is random updates: test accuracy 65.00 ± 7.07 %; vafl is better in 2" in second
    assert "has not paid" in (paid(worse) or "")
    assert "is not shown" in (paid(row("a", "test_auc", [0.9, 0.5], frozen=[0.8, 0.55])) or "")
    low = row("b", "test_rmse", [1.0, 1.0], frozen=[2.0, 2.0])
    assert (paid(low) or "").endswith("b is better in 2 of 2 seeds")
    assert verdict([row("c", "test_rmse", [1.0])])[1] == ["c: test RMSE 1.0000"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ([0.85, 0.84], "better in 2 of 2"),
        ([0.85, 0.80], "is not shown"),
        ([0.8, 0.8], "has not paid"),
        ([], "has not paid"),
    ],
)
def test_a_raw_head_is_held_against_a_raw_head(raw: list[float], said: str) -> None:
    """A label-free control predicts by one, and so may the method."""
    own = [{"test_auc": 0.74, "raw_head": {"test_auc": each}} for each in raw]
    control = [{"test_auc": 0.81}, {"test_auc": 0.82}]
    frozen = [{"test_auc": 0.6}, {"test_auc": 0.6}]
    summaries = {"none": own or [{"test_auc": 0.74}] * 2, "frozen": frozen, "label-free": control}
    assert said in (paid(Row("a", summaries, {})) or "")


def test_a_table_where_figures_are_missing() -> None:
    """On validation records without test records; a run without a figure has none in the table."""
    privacy = {"guarantee": "none", "epsilon": None}
    sizes = dict.fromkeys(["bytes_up", "bytes_table", "bytes_down", "rounds", "seconds"], 1)

    def row(label: str, **own: Any) -> Row:
        summary = {"privacy": privacy, "best": None, **sizes, **own}
        return Row(label, {"none": [summary], "frozen": [summary]}, {})

    nothing, low = row("a"), row("b", best={"validation_auc": 0.7})
    high, tested = row("c", best={"validation_auc": 0.8}), row("d", test_accuracy=0.5)
    for found, said, column in (
        ([nothing], "no verdict: there are neither test nor validation records", ["-"]),
        ([nothing, low, high], "c: highest validation AUC 0.8000", ["-", "0.7000", "0.8000"]),
        ([high, tested], "d: highest test accuracy 50.00 %", ["-", "50.00"]),
    ):
        assert verdict(found)[1][0] == said
        headings, *shown = brief(found)
        assert [line[1] for line in shown] == column
        assert all(len(line) == len(headings) for line in shown)
        table = lines(found)
        assert all(len(line) == 1 + len(found) for line in table)
        assert paid(nothing) is paid(low) is None


KILLED = """
import os
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(16, 2)
        if "spawn" in str(os.environ.get("HERE")):
            os._exit(9)

    def forward(self, x):
        return super().forward(x.flatten(1))
"""


def test_a_process_that_was_killed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(KILLED)
    model = f"client.model={{name: module, path: '{tmp_path}/net.py:Net'}}"
    found = comparison.configurations(None, [*TINY, model], ["vafl"])
    runs = comparison.plan(found, 1, tmp_path, controls=())
    comparison.check(runs)
    monkeypatch.setenv("HERE", "spawned")
    with pytest.raises(RunError, match="was killed"):
        comparison.execute(runs, Processes(1))


def test_one_that_diverges_ends_the_comparison_unless_it_is_forgiven(tmp_path: Path) -> None:
    runs = comparison.plan(configs("vafl", more=f"{RATE}=1e30"), 1, tmp_path, controls=CONTROLS)
    words = rf"^{re.escape(str(tmp_path))}/vafl\S*: training diverged in round"
    with pytest.raises(RunError, match=words):
        comparison.execute(runs, Processes(2))
    ended = {run.control for run in runs if RunFolder(run.folder).summary() is not None}
    assert "frozen" in ended, "others are finished first"
    assert "none" not in ended
    failed = []
    found = comparison.execute(runs, Processes(2), None, lambda run, error: not failed.append(run))
    assert {run.control for run in failed} == {"none", "random"} - ended
    assert {run for run in runs if not found[run]} == set(failed)


def test_bytes_to_the_first_evaluation_that_is_high_enough() -> None:
    names = ("bytes_up", "bytes_down", "validation_accuracy", "train_accuracy")
    figures = [(0, 0, 0.1, None), (70, 30, 0.5, 0.4), (140, 60, 0.4, 0.6)]
    rows = [dict(zip(names, row, strict=True)) for row in figures]
    tested = [{"bytes_up": 1, "bytes_down": 1, "test_accuracy": 0.9}]  # test records stand in
    for metrics, target, by, table, expected in (
        (rows, 0.1, "validation", 0, 0),
        (rows, 0.45, "validation", 0, 100),
        (rows, 0.45, "train", 0, 200),
        (rows, 0.5, "validation", 7, 107),
        (rows, 0.51, "validation", 0, None),
        ([], 0.5, "train", 0, None),
        (tested, 0.9, "validation", 0, 2),
    ):
        assert bytes_to(metrics, target, by, table) == expected, (target, by)
    assert mean_and_spread([2.0]) == (2.0, None)
    assert mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
