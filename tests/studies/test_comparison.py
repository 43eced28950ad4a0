"""Methods side by side: the same runs as alone, nothing made twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vertizo.config import schema as configuration
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder
from vertizo.studies import comparison
from vertizo.studies.comparison import bytes_to, mean_and_spread
from vertizo.studies.engines import Processes

TINY = ["data.limit=60", "batch_size=9", "epochs=2"]
CLOCK = {"seconds", "rounds_per_second", "peak_memory_mib"}


def configs(*labels: str, path: Path | None = None) -> dict[str, ExperimentConfig]:
    return comparison.configurations(path, TINY, labels)


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


class TestConfigurations:
    def test_an_entry_replaces_its_own_keys_only(self, tmp_path: Path) -> None:
        path = written(tmp_path, ENTRIES)
        found = configs("dpzv", "vafl", "ten", path=path)
        rates = {label: c.client.optimizer.learning_rate for label, c in found.items()}
        assert rates == {"dpzv": 0.5, "vafl": 0.125, "ten": 0.5}
        assert {c.client.optimizer.momentum for c in found.values()} == {0.25}
        assert [c.method.name for c in found.values()] == ["dpzv", "vafl", "czofo"]
        assert found["dpzv"].method.smoothing == 0.01
        assert found["ten"].method.num_directions == 10  # type: ignore[union-attr]

    def test_without_labels_all_entries_are_meant(self, tmp_path: Path) -> None:
        assert list(configs(path=written(tmp_path, ENTRIES))) == ["vafl", "ten"]
        assert configs() == {}

    def test_train_takes_the_entry_of_the_method_that_is_chosen(self, tmp_path: Path) -> None:
        path = written(tmp_path, ENTRIES)
        plain = configuration.load(path)
        assert (plain.method.name, plain.client.optimizer.learning_rate) == ("dpzv", 0.5)
        chosen = configuration.load(path, ["method.name=vafl"])
        assert (chosen.method.name, chosen.client.optimizer.learning_rate) == ("vafl", 0.125)
        last = configuration.load(path, ["method.name=vafl", "client.optimizer.learning_rate=2"])
        assert last.client.optimizer.learning_rate == 2

    def test_an_entrys_own_keys_of_its_method(self, tmp_path: Path) -> None:
        """With the method's name or without; a key that it does not have is not passed over."""
        path = written(tmp_path, "methods: {czofo: {method: {num_directions: 10}}}")
        assert configs("czofo", path=path)["czofo"].method.num_directions == 10  # type: ignore[union-attr]
        chosen = configuration.load(path, ["method.name=czofo"])
        assert chosen.method.num_directions == 10  # type: ignore[union-attr]
        path = written(tmp_path, "methods: {czofo: {method: {num_direction: 10}}}")
        with pytest.raises(ConfigError, match="did you mean 'num_directions'"):
            configs("czofo", path=path)

    @pytest.mark.parametrize("setting", ["method.name=vafl", "method={name: vafl}"])
    def test_another_method_for_all_of_them(self, setting: str) -> None:
        with pytest.raises(ConfigError, match="contradicts --methods"):
            comparison.configurations(None, [setting], ["dpzv", "split"])

    def test_methods_keep_their_own_timing_and_server(self) -> None:
        found = configs("split", "zoo-vfl", "compressed-vfl")
        assert found["split"].simulation.timing == "synchronous"
        assert found["zoo-vfl"].server.update == "forward-difference"
        assert found["compressed-vfl"].codecs.up.name == "uniform"

    @pytest.mark.parametrize(
        ("text", "label", "words"),
        [
            ("", "vafll", ["--methods vafll", "did you mean 'vafl'"]),
            ("methods: {vafll: {epochs: 1}}", "vafl", ["methods.vafll", "did you mean 'vafl'"]),
            ("methods: [vafl]", "vafl", ["methods must hold"]),
            ("methods: {vafl: 3}", "vafl", ["methods must hold"]),
            ("methods: {1: {epochs: 1}}", "vafl", ["entry 1"]),
            ("methods: {../x: {method: {name: vafl}}}", "../x", ["entry '../x'"]),
            ("methods: {vafl: {method: null}}", "vafl", ["methods.vafl.method is None"]),
            ("methods: {vafl: {method: vafl}}", "vafl", ["methods.vafl.method is 'vafl'"]),
            ("methods: {vafl: {epoch: 3}}", "vafl", ["unknown key 'epoch'", "'epochs'"]),
            ("simulation: {timing: asynchronous}", "split", ["'asynchronous'", "'split'"]),
        ],
    )
    def test_what_is_wrong_is_one_line(
        self, tmp_path: Path, text: str, label: str, words: list[str]
    ) -> None:
        with pytest.raises(ConfigError) as error:
            configs(label, path=written(tmp_path, text))
        assert "\n" not in str(error.value)
        for word in words:
            assert word in str(error.value)


class TestPlan:
    def test_every_method_every_seed_every_control(self, tmp_path: Path) -> None:
        runs = comparison.plan(configs("vafl", "dpzv"), 2, tmp_path, controls=True)
        assert [(r.label, r.config.seed, r.config.control) for r in runs] == [
            (label, seed, control)
            for label in ("vafl", "dpzv")
            for seed in (0, 1)
            for control in ("none", "frozen", "random")
        ]
        assert len({run.folder for run in runs}) == 12
        plain = comparison.plan(configs("vafl"), 1, tmp_path, controls=False)
        assert [run.control for run in plain] == ["none"]

    def test_what_cannot_start_fails_before_anything_runs(self, tmp_path: Path) -> None:
        wrong = comparison.configurations(
            None, [*TINY, "server.join=sum", "batch_size=61"], ["vafl"]
        )
        with pytest.raises(ConfigError, match="batch_size is 61"):
            comparison.check(comparison.plan(wrong, 1, tmp_path, controls=True))
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_of_another_comparison_is_refused(self, tmp_path: Path) -> None:
        runs = comparison.plan(configs("vafl"), 1, tmp_path, controls=False)
        Experiment(runs[0].config).run(runs[0].folder)
        comparison.check(runs)
        others = comparison.plan(
            comparison.configurations(None, [*TINY, "epochs=3"], ["vafl"]),
            1,
            tmp_path,
            controls=False,
        )
        with pytest.raises(RunError, match="another configuration"):
            comparison.check(others)


def timeless(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key not in CLOCK}


class TestExecution:
    @pytest.mark.processes
    def test_each_run_is_as_if_alone_and_none_is_made_twice(self, tmp_path: Path) -> None:
        runs = comparison.plan(configs("vafl", "dpzv"), 1, tmp_path, controls=False)
        comparison.check(runs)
        Experiment(runs[0].config).run(runs[0].folder)
        marked = RunFolder(runs[0].folder).summary() or {}
        RunFolder(runs[0].folder).write_summary({**marked, "mark": 1})
        standings = []
        summaries = comparison.execute(runs, Processes(2), standings.append)
        assert summaries[runs[0]]["mark"] == 1
        alone = Experiment(runs[1].config).run().summary
        assert timeless(summaries[runs[1]]) == timeless(alone)
        assert standings[-1].finished == standings[-1].total == 2

    def test_the_same_data_and_first_parameters_for_every_method(self, tmp_path: Path) -> None:
        """Frozen clients under the same server are the same run, whatever the method."""
        runs = comparison.plan(configs("vafl", "cascaded"), 1, tmp_path, controls=True)
        frozen = [Experiment(run.config).run().summary for run in runs if run.control == "frozen"]
        assert frozen[0]["test_loss"] == pytest.approx(frozen[1]["test_loss"], rel=1e-5)

    def test_rows_and_file(self, tmp_path: Path) -> None:
        runs = comparison.plan(configs("vafl"), 2, tmp_path, controls=True)
        summaries = {run: Experiment(run.config).run(run.folder).summary for run in runs}
        (row,) = comparison.rows(runs, summaries, [0.0001, 1.0], "validation")
        plain = [summaries[run] for run in runs if run.control == "none"]
        assert row.figures("test_accuracy") == [s["test_accuracy"] for s in plain]
        assert len(row.figures("test_accuracy", "frozen")) == 2
        assert row.bytes_to[1.0] == (None, None)
        comparison.write(tmp_path, [row], {"dataset": "digits"})
        found = json.loads((tmp_path / "comparison.json").read_text())["methods"]["vafl"]
        assert found["seeds"] == [0, 1]
        assert found["test_accuracy"] == row.figures("test_accuracy")
        assert found["controls"]["random"]["test_accuracy"] == row.figures(
            "test_accuracy", "random"
        )


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


@pytest.mark.processes
def test_a_process_that_was_killed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(KILLED)
    model = f"client.model={{name: module, path: '{tmp_path}/net.py:Net'}}"
    found = comparison.configurations(None, [*TINY, model], ["vafl"])
    runs = comparison.plan(found, 1, tmp_path, controls=False)
    comparison.check(runs)
    monkeypatch.setenv("HERE", "spawned")
    with pytest.raises(RunError, match="was killed"):
        comparison.execute(runs, Processes(1))


@pytest.mark.processes
def test_one_that_diverges_ends_the_comparison_and_others_are_finished_first(
    tmp_path: Path,
) -> None:
    wild = comparison.configurations(None, [*TINY, "client.optimizer.learning_rate=1e30"], ["vafl"])
    runs = comparison.plan(wild, 1, tmp_path, controls=True)
    with pytest.raises(RunError, match="training diverged in round"):
        comparison.execute(runs, Processes(2))
    ended = {run.control for run in runs if RunFolder(run.folder).summary() is not None}
    assert "frozen" in ended
    assert "none" not in ended


class TestBytesTo:
    METRICS = (
        {"bytes_up": 0, "bytes_down": 0, "validation_accuracy": 0.1, "train_accuracy": None},
        {"bytes_up": 70, "bytes_down": 30, "validation_accuracy": 0.5, "train_accuracy": 0.4},
        {"bytes_up": 140, "bytes_down": 60, "validation_accuracy": 0.4, "train_accuracy": 0.6},
    )

    def test_the_first_evaluation_that_is_high_enough(self) -> None:
        assert bytes_to(self.METRICS, 0.1, "validation") == 0
        assert bytes_to(self.METRICS, 0.45, "validation") == 100
        assert bytes_to(self.METRICS, 0.45, "train") == 200
        assert bytes_to(self.METRICS, 0.5, "validation", table=7) == 107
        assert bytes_to(self.METRICS, 0.51, "validation") is None
        assert bytes_to([], 0.5, "train") is None

    def test_test_records_stand_in_for_validation_records(self) -> None:
        assert (
            bytes_to([{"bytes_up": 1, "bytes_down": 1, "test_accuracy": 0.9}], 0.9, "validation")
            == 2
        )


def test_mean_and_spread() -> None:
    assert mean_and_spread([2.0]) == (2.0, None)
    assert mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))


def test_controls_of_a_control_are_refused(tmp_path: Path) -> None:
    found = comparison.configurations(None, [*TINY, "control=frozen"], ["vafl"])
    with pytest.raises(ConfigError, match="control is 'frozen'"):
        comparison.plan(found, 1, tmp_path, controls=True)
