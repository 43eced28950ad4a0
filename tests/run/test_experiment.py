"""A run from its configuration to its folder, and back."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests import federations as fed
from tests.refusals import one_line
from tests.rows import each
from tests.same import same, timeless

import vertizo
from vertizo.config import schema
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError, UserError
from vertizo.data.datasets import catalog
from vertizo.party.metrics import Scores
from vertizo.run.experiment import Experiment, Progress, Result
from vertizo.run.loop.federation import Federation, build
from vertizo.run.results.folder import RunFolder

TINY = ("seed=0", "data.limit=60", "batch_size=9", "epochs=3")
"""54 training records in 6 batches, 4 clients: 24 rounds an epoch."""
GAUSSIAN = ("privacy.mechanism=gaussian", "privacy.clip=0.5", "privacy.noise_std=0.2")
EPSILON = ("privacy.mechanism=gaussian", "privacy.clip=0.5", "privacy.epsilon=3")
LOSSY = ("simulation.drop=0.2", "simulation.timeout=2")
IN_STEP = ("simulation.timing=synchronous", "batch_size=4")
SECRET = ("server.update=poisson-dp-sgd", "server.secret={sampling: 0.2, warm_up: 3, every: 2}")
SCENARIOS: list[tuple[str, ...]] = [
    ("client.optimizer.momentum=0.9", *GAUSSIAN, *LOSSY),
    ("method.name=vafl", *LOSSY),
    ("method.name=cascaded", "codecs.up.dtype=float16", "simulation.table=upload"),
    (*IN_STEP, *LOSSY),
    ("method.name=vafl", *IN_STEP, "simulation.stragglers={1: 8}"),
    ("control=random", "server.update=zeroth-order"),
    ("data.validation=0", *EPSILON, "server.update=none"),
    (
        *(*EPSILON, "server.update=private-sgd", "server.optimizer.decay=linear"),
        *("client.optimizer.decay=linear", *LOSSY),
    ),
    (*EPSILON, *SECRET),
    ("method.name=vafl", "data.split=rows", "client.crop=1", "client.flip=true", *LOSSY),
]


def tiny(*overrides: str) -> ExperimentConfig:
    return schema.load(None, (*TINY, *overrides))


def ran(*overrides: str, out: Path | None = None, **more: Any) -> Result:
    return Experiment(tiny(*overrides)).run(out, **more)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [timeless(row) for row in RunFolder(folder).metrics()]


def last(folder: Path) -> dict[str, Any]:
    """The last checkpoint without its clocks."""
    state: dict[str, Any] = RunFolder(folder).load("last")
    for key in ("seconds", "training_seconds"):
        state["standing"].pop(key)
    state["standing"]["last"].pop("seconds")
    return state


class Finished(NamedTuple):
    """One small run in a folder."""

    out: Path
    result: Result
    seen: list[Progress]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    out = tmp_path_factory.mktemp("runs") / "deep" / "run"
    seen: list[Progress] = []
    return Finished(out, ran(out=out, progress=seen.append), seen)


class Crash(BaseException):
    """The process is gone."""


def crash(*_: Any) -> None:
    raise Crash


class TestFolder:
    def test_what_was_returned_is_what_was_written(self, finished: Finished) -> None:
        out, result, seen = finished
        names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        kept = ("last", "best", "test_scores")
        checkpoints = {f"checkpoints/{name}.safetensors" for name in kept}
        files = {".lock", "run_name", "config.yaml", "metrics.jsonl", "summary.json"}
        files |= {"provenance.json", "digests", "checkpoints/digests"}
        assert names == checkpoints | files
        assert result.folder == out
        assert json.loads((out / "summary.json").read_text()) == result.summary
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert all(len(line.pop("sha256")) == 16 for line in lines)
        assert lines == result.metrics
        assert schema.load(out / "config.yaml") == tiny()
        assert same(last(out)["parameters"], result.federation.parameters)
        end = seen[-1]
        assert (end.round, end.total, end.epsilon) == (72, 72, None)
        moved = result.summary["bytes_up"] + result.summary["bytes_down"]
        assert end.megabytes == pytest.approx(moved / 1e6)
        accuracy = result.metrics[-1]["validation_accuracy"]
        assert end.metric == f"acc {100 * accuracy:.1f} %"
        assert end.seconds > 0

    def test_its_configuration_reruns_it(self, finished: Finished, tmp_path: Path) -> None:
        """As does its configuration without a folder; another seed is another run."""
        out, result, _ = finished
        again = Experiment.from_yaml(out / "config.yaml").run(tmp_path / "again")
        assert timeless(again.summary) == timeless(result.summary)
        assert rows(tmp_path / "again") == rows(out)
        assert same(last(tmp_path / "again"), last(out))
        alone = ran()
        assert alone.folder is None
        assert timeless(alone.summary) == timeless(result.summary)
        assert ran("seed=1").summary["test_loss"] != result.summary["test_loss"]


class TestMetrics:
    def test_one_row_at_the_start_and_one_an_epoch(self, finished: Finished) -> None:
        metrics = finished.result.metrics
        assert [row["round"] for row in metrics] == [0, 24, 48, 72]
        assert [row["epoch"] for row in metrics] == [0, 1, 2, 3]
        first, *others = metrics
        assert first["train_loss"] is None
        assert first["bytes_up"] == first["bytes_down"] == 0
        for row in others:
            assert 0 < row["train_loss"] < 10
            assert 0 <= row["train_accuracy"] <= 1
            assert 0 <= row["validation_accuracy"] <= 1
            assert row["validation_loss"] > 0
            assert "test_accuracy" not in row
        for key in ("seconds", "virtual_seconds", "bytes_up", "bytes_down"):
            values = [row[key] for row in metrics]
            assert values == sorted(values)
            assert values[0] < values[-1]

    def test_evaluations_as_often_as_asked(self) -> None:
        result = ran("evaluate_every=7", "rounds=23")
        assert [row["round"] for row in result.metrics] == [0, 7, 14, 21, 23]

    def test_without_validation_records_the_test_records_are_watched(self) -> None:
        result = ran("data.validation=0", "epochs=1")
        summary, row = result.summary, result.metrics[-1]
        assert not any(key.startswith("validation") for key in row)
        assert (summary["model"], summary["best"]) == ("last", None)
        assert summary["test_accuracy"] == row["test_accuracy"]

    def test_evaluating_changes_nothing_that_is_trained(self) -> None:
        often, never = ran("evaluate_every=1"), ran("evaluate_every=1000")
        assert same(often.federation.parameters, never.federation.parameters)
        for key in ("bytes_up", "bytes_down", "virtual_seconds"):
            assert often.summary[key] == never.summary[key]
        assert often.summary["bytes_evaluation"] > never.summary["bytes_evaluation"]


class TestSummary:
    def test_the_promised_figures(self, finished: Finished) -> None:
        summary = finished.result.summary
        expected = {
            "method": "dpzv",
            "dataset": "digits",
            "clients": 4,
            "records": 54,
            "seed": 0,
            "rounds": 72,
            "epochs": 3,
            "control": "none",
            "clip_fraction": None,
            "server_evaluations_per_round": 3,
            "messages_lost": 0,
            "bytes_table": 0,
        }
        assert {key: summary[key] for key in expected} == expected
        assert 0 <= summary["test_accuracy"] <= 1
        assert summary["test_loss"] > 0
        assert "test_auc" not in summary
        assert summary["seconds"] > 0
        assert summary["rounds_per_second"] > 0
        assert 10 < summary["peak_memory_mib"] < 100_000
        assert set(summary["staleness"]) == {"mean", "max"}
        assert 0 < summary["staleness"]["mean"] < summary["staleness"]["max"] < 72
        assert sum(summary["activation_shares"]) == pytest.approx(1)
        keys = {"guarantee", "epsilon", "delta", "mu", "noise_std", "clip", "max_participations"}
        assert set(summary["privacy"]) >= keys
        assert summary["privacy"]["guarantee"] == "none"
        assert summary["parameters"]["clients"] == [51] * 4

    def test_bytes_are_those_on_the_wire(self) -> None:
        frames: list[tuple[str, int]] = []
        result = ran(*LOSSY, observer=lambda _, way, __, frame: frames.append((way, len(frame))))
        for way in ("up", "down"):
            total = sum(size for direction, size in frames if direction == way)
            assert result.summary[f"bytes_{way}"] == total
        assert result.summary["messages_lost"] > 0

    def test_two_classes_have_a_curve(self) -> None:
        settings = ("data.name=breast-cancer", "epochs=20", "client.optimizer.learning_rate=0.05")
        summary = ran(*settings).summary
        assert summary["dataset"] == "breast-cancer"
        assert summary["parties"] == ["mean", "error", "worst"]
        assert 0.8 < summary["test_auc"] <= 1
        assert summary["test_accuracy"] > 0.8

    def test_privacy_is_reported(self) -> None:
        summary = ran(*GAUSSIAN).summary
        assert 0 < summary["clip_fraction"] < 1
        known = {"clip": 0.5, "noise_std": 0.2, "max_participations": 3 * 4}
        assert summary["privacy"].items() >= {"guarantee": "none", "epsilon": None, **known}.items()
        privacy = ran(*EPSILON, "server.update=none").summary["privacy"]
        known = {"delta": 1e-5, "max_participations": 3 * 4}
        assert privacy.items() >= {"guarantee": "simulated", **known}.items()
        assert privacy["epsilon"] == pytest.approx(3)
        assert privacy["mu"] == pytest.approx(2 * 0.5 * 12**0.5 / privacy["noise_std"])

    @each(
        "setting, expected",
        [
            ("seed=0", {"server_evaluations_per_round": 3}),
            ("method.name=vafl", {"server_evaluations_per_round": 1}),
            ("server.update=zeroth-order", {"server_evaluations_per_round": 5}),
            (
                "simulation.timing=synchronous",
                {"server_evaluations_per_round": 9, "rounds": 18, "epochs": 3},
            ),
            ("rounds=12", {"rounds": 12, "epochs": 0.5}),
        ],
    )
    def test_evaluations_rounds_and_epochs(self, setting: str, expected: dict[str, float]) -> None:
        assert ran(setting).summary.items() >= expected.items()


class TestBest:
    def test_the_best_model_is_kept_beside_the_last(self, tmp_path: Path) -> None:
        overrides = ("epochs=12", "client.optimizer.learning_rate=0.05", "data.limit=120")
        result = ran(*overrides, out=tmp_path)
        summary = result.summary
        evaluated = result.metrics[1:]
        best = max(evaluated, key=lambda row: (row["validation_accuracy"], -row["validation_loss"]))
        assert summary["model"] == "best"
        assert summary["best"]["round"] == best["round"]
        assert summary["best"]["validation_accuracy"] == best["validation_accuracy"]
        assert best["round"] < summary["rounds"], "this run should not be best at its end"
        kept, end = RunFolder(tmp_path).load("best"), RunFolder(tmp_path).load("last")
        assert kept["round"] == best["round"]
        assert not same(kept["server"], end["parameters"]["server"])
        assert same(end["parameters"], result.federation.parameters)
        for parameters, figures in ((kept, summary), (end["parameters"], summary["last"])):
            scores = scored(result.federation, parameters)
            assert figures["test_accuracy"] == scores["accuracy"]
            assert figures["test_loss"] == scores["loss"]


def scored(federation: Federation, parameters: dict[str, Any]) -> Scores:
    federation.parameters = parameters
    federation.simulator.upload("test", federation.data.labels["test"].shape[0])
    return federation.server.score("test")


def start_of(*overrides: str) -> Any:
    experiment = Experiment(tiny(*overrides))
    return build(experiment.config, experiment.data()).parameters


class TestControls:
    @each("method", ["dpzv", "cascaded", "vafl"])
    def test_frozen_clients_stay_where_they_were(self, method: str) -> None:
        overrides = (f"method.name={method}", "control=frozen")
        before, after = start_of(*overrides), ran(*overrides).federation.parameters
        assert same(before["clients"], after["clients"])
        assert not same(before["server"], after["server"])

    @pytest.mark.full
    @each("method", ["dpzv", "cascaded", "vafl"])
    def test_random_updates_are_as_long_and_point_elsewhere(self, method: str) -> None:
        overrides = (f"method.name={method}", "rounds=1")
        before = start_of(*overrides)["clients"]

        def steps(*more: str) -> list[Any]:
            after = ran(*overrides, *more).federation.parameters["clients"]
            return [now - start for now, start in zip(after, before, strict=True)]

        plain, control = steps(), steps("control=random")
        moved = [party for party, step in enumerate(plain) if step.any()]
        assert len(moved) == 1
        (party,) = moved
        assert control[party].norm() == pytest.approx(float(plain[party].norm()), rel=1e-3)
        likeness = torch.cosine_similarity(plain[party], control[party], dim=0)
        assert abs(float(likeness)) < 0.9
        assert not any(control[other].any() for other in range(4) if other != party)
        assert ran(*overrides, "control=random").summary["control"] == "random"


class TestRefused:
    def test_a_folder_that_holds_a_run(self, finished: Finished) -> None:
        out = finished.out
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        with pytest.raises(RunError, match="already holds a run"):
            ran(out=out)
        assert {path: path.read_bytes() for path in before} == before

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        for out in (tmp_path / "file", tmp_path / "file" / "run"):
            with pytest.raises(RunError, match=str(out)):
                ran(out=out)
        assert (tmp_path / "file").read_text() == "mine"

    @each("name", ["summary.json", "metrics.jsonl", "checkpoints/last.safetensors"])
    def test_a_folder_with_the_remains_of_a_run(self, name: str, tmp_path: Path) -> None:
        """Or with such a file of another program: it is neither overwritten nor believed."""
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"round": 0, "mine": true}\n')
        with pytest.raises(RunError, match=str(tmp_path)):
            ran("rounds=2", out=tmp_path)
        assert path.read_text() == '{"round": 0, "mine": true}\n'

    def test_a_folder_in_use(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two runs that begin at once in one folder: the second to come changes nothing."""
        RunFolder(tmp_path).create(tiny())
        with RunFolder(tmp_path).locked():
            with pytest.raises(RunError, match="in use"):
                ran(out=tmp_path, resume=True)
            monkeypatch.setattr(RunFolder, "check_is_new", lambda self: None)
            with pytest.raises(RunError, match="in use"):
                ran("seed=5", out=tmp_path)
        assert RunFolder(tmp_path).config() == tiny()

    def test_a_mistake_leaves_no_folder(self, tmp_path: Path) -> None:
        for overrides in (("batch_size=999",), ("data.name=nothing",), ("data.parties=99",)):
            with pytest.raises(ConfigError):
                ran(*overrides, out=tmp_path / "run")
        assert list(tmp_path.iterdir()) == []

    @each(
        "rate, more",
        [
            ("client.optimizer.learning_rate=1e12", "seed=0"),
            ("client.optimizer.learning_rate=1e12", "evaluate_every=1"),
            ("client.optimizer.learning_rate=1e12", "rounds=1"),
            ("client.optimizer.learning_rate=1e30", "method.name=vafl"),
            ("client.optimizer.learning_rate=1e300", "seed=0"),
            ("server.optimizer.learning_rate=1e35", "seed=0"),
            ("server.optimizer.learning_rate=1e35", "rounds=1"),
            ("server.optimizer.learning_rate=1e20", "server.update=zeroth-order"),
        ],
    )
    def test_divergence_is_told_in_one_line(self, rate: str, more: str, tmp_path: Path) -> None:
        """And leaves nothing in the folder that is no JSON: JSON has no NaN and no infinity."""

        def strict(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        with one_line(RunError, match=r"diverged.*learning_rate"):
            ran("epochs=5", rate, more, out=tmp_path)
        assert not (tmp_path / "summary.json").exists()
        for row in (tmp_path / "metrics.jsonl").read_text().splitlines():
            json.loads(row, parse_constant=strict)


class TestResume:
    @each("scenario", SCENARIOS, gate=SCENARIOS[-1:])
    def test_a_crash_anywhere_changes_no_number(
        self, scenario: tuple[str, ...], tmp_path: Path
    ) -> None:
        """The process ends at some frame on the wire, three times; then the run is completed."""
        overrides = ("checkpoint_seconds=0", "evaluate_every=5", "rounds=30", *scenario)
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        frames: list[Any] = []
        ran(*overrides, out=whole, observer=lambda *seen: frames.append(seen))
        for at in (0.03, 0.5, 0.4):
            left = iter(range(int(at * len(frames))))

            def crash_later(*_: Any, left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise Crash

            with pytest.raises(Crash):
                ran(*overrides, out=parts, resume=parts.exists(), observer=crash_later)
        result = ran(*overrides, out=parts, resume=True)
        self.equal(parts, whole)
        assert timeless(result.summary) == timeless(RunFolder(whole).summary())

    def test_a_crash_before_the_first_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(Crash):
            ran(out=tmp_path / "parts", observer=crash)
        assert not RunFolder(tmp_path / "parts").has("last")
        assert len(rows(tmp_path / "parts")) == 1
        ran(out=tmp_path / "parts", resume=True)
        ran(out=tmp_path / "whole")
        self.equal(tmp_path / "parts", tmp_path / "whole")

    @pytest.mark.full
    @each("asked, most", [((), 3), (("checkpoint_seconds=0",), 12)])
    def test_checkpoints_that_take_long_are_seldom(
        self, asked: tuple[str, ...], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those of a large table; as often as somebody asked for, however long they take."""
        save, saved = RunFolder.save, 0

        def slow(self: RunFolder, name: str, state: Any) -> Path:
            nonlocal saved
            saved += name == "last"
            time.sleep(0.1 * (name == "last"))
            return save(self, name, state)

        monkeypatch.setattr(RunFolder, "save", slow)
        monkeypatch.setattr("vertizo.run.loop.training.SAVED_EVERY", 0.0)
        ran("rounds=10", *asked, out=tmp_path / "run")
        assert 2 <= saved <= most
        assert not asked or saved > 9

    @pytest.mark.full
    def test_a_crash_at_any_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The process ends within a write of a checkpoint, of the metrics or of the summary."""
        overrides = ("rounds=4", "evaluate_every=2", "checkpoint_seconds=0")
        real, left = os.replace, 10**6

        def replace(*paths: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash
            real(*paths)

        monkeypatch.setattr(os, "replace", replace)
        ran(*overrides, out=tmp_path / "whole")
        writes = 10**6 - left
        assert writes > 6
        differ = []
        for crash_at in range(writes):
            left, out = crash_at, tmp_path / str(crash_at)
            with pytest.raises(Crash):
                ran(*overrides, out=out)
            left = 10**6
            ran(*overrides, out=out, resume=(out / "config.yaml").exists())
            try:
                self.equal(out, tmp_path / "whole")
            except AssertionError:
                differ.append(crash_at)
        assert not differ, f"of {writes} writes"

    def test_more_time_is_counted_on_top(self, tmp_path: Path) -> None:
        def late(now: float, *_: Any) -> None:
            if now > 5:
                raise Crash

        with pytest.raises(Crash):
            ran("checkpoint_seconds=0", out=tmp_path, observer=late)
        kept = RunFolder(tmp_path).load("last")["standing"]["seconds"]
        assert 0 < kept < ran(out=tmp_path, resume=True).summary["seconds"]

    def test_a_damaged_checkpoint_or_another_configuration_is_refused(self, tmp_path: Path) -> None:
        ran("rounds=3", out=tmp_path)
        for change in ("data.parties=2", "client.model.outputs=9", "method.name=vafl", "seed=4"):
            with pytest.raises(UserError, match=str(tmp_path)):
                ran("rounds=3", change, out=tmp_path, resume=True)
        path = tmp_path / "checkpoints" / "last.safetensors"
        whole = path.read_bytes()
        for kept in (0, 100, -1):
            path.write_bytes(whole[:kept])
            with one_line(RunError, str(path)):
                ran("rounds=3", out=tmp_path, resume=True)

    def test_a_lost_best_checkpoint_is_written_again(self, tmp_path: Path) -> None:
        ran("rounds=30", "evaluate_every=10", out=tmp_path)
        path = tmp_path / "checkpoints" / "best.safetensors"
        before = path.read_bytes()
        path.unlink()
        ran("rounds=30", "evaluate_every=10", out=tmp_path, resume=True)
        assert path.read_bytes() == before

    @staticmethod
    def equal(one: Path, two: Path) -> None:
        assert rows(one) == rows(two)
        assert same(last(one), last(two))
        assert same(RunFolder(one).has("best"), RunFolder(two).has("best"))
        if RunFolder(one).has("best"):
            assert same(RunFolder(one).load("best"), RunFolder(two).load("best"))
        summary = timeless(RunFolder(one).summary())
        assert summary == timeless(RunFolder(two).summary())
        assert summary


class TestPython:
    def test_an_experiment_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "run.yaml"
        path.write_text("epochs: 1\nbatch_size: 9\ndata: {limit: 60}\n")
        summary = vertizo.Experiment.from_yaml(path).run().summary
        assert summary["rounds"] == 24
        assert vertizo.Experiment.from_yaml(str(path), ["seed=3"]).config.seed == 3
        assert list(tmp_path.iterdir()) == [path]
        path.write_text("epoch: 1\n")
        with pytest.raises(vertizo.VertizoError, match="did you mean 'epochs'"):
            vertizo.Experiment.from_yaml(path)

    def test_data_of_ones_own(self, tmp_path: Path) -> None:
        settings = vertizo.ExperimentConfig(batch_size=10, epochs=4)
        result = vertizo.Experiment(settings, data=fed.data(30, 2)).run(tmp_path / "run")
        assert isinstance(result, vertizo.Result)
        known = {"dataset": "made up", "parties": ["party0", "party1"], "records": 30}
        assert result.summary.items() >= known.items()
        assert result.summary["test_accuracy"] > 0
        with pytest.raises(ConfigError, match="batch_size is 64"):
            vertizo.Experiment(vertizo.ExperimentConfig(batch_size=64), fed.data(30, 2)).run()
        few = vertizo.Experiment(vertizo.ExperimentConfig(rounds=2), fed.data(64, 2)).run()
        assert few.summary["rounds"] == 2

    def test_data_is_loaded_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[str] = []
        real = catalog.load

        def noted(name: str, root: Path | None, *options: Any) -> Any:
            calls.append(name)
            return real(name, root, *options)

        monkeypatch.setattr(catalog, "load", noted)
        experiment = Experiment(tiny())
        assert experiment.data() is experiment.data()
        assert calls == ["digits"]

    def test_a_thread_of_the_caller(self) -> None:
        """Signals belong to the main thread; a run elsewhere leaves them alone."""
        results: list[Result] = []
        thread = threading.Thread(target=lambda: results.append(ran("rounds=3")))
        thread.start()
        thread.join()
        assert results[0].summary["rounds"] == 3

    def test_names_of_the_package(self) -> None:
        names = {"Experiment", "ExperimentConfig", "Result", "VertizoError", "__version__"}
        assert names <= set(dir(vertizo))
        assert vertizo.Experiment is Experiment
        with pytest.raises(AttributeError, match="Experimental"):
            vertizo.Experimental
