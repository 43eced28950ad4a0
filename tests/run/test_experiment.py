"""A run from its configuration to its folder, and back."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rows import each
from tests.same import same

import vertizo
from vertizo.config import schema
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError, UserError
from vertizo.data.datasets import catalog
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Classification
from vertizo.party.metrics import Scores
from vertizo.run import checkpoint
from vertizo.run.experiment import Experiment, Progress, Result
from vertizo.run.federation import Federation, build
from vertizo.run.folder import RunFolder

CLOCK = {"seconds", "rounds_per_second", "peak_memory_mib"}
"""Figures that no two runs share."""

TINY = ("seed=0", "data.limit=60", "batch_size=9", "epochs=3")
"""54 training records in 6 batches, 4 clients: 24 rounds an epoch."""

GAUSSIAN = ("privacy.mechanism=gaussian", "privacy.clip=0.5", "privacy.noise_std=0.2")
LOSSY = ("simulation.drop=0.2", "simulation.timeout=2")
SCENARIOS: dict[str, tuple[str, ...]] = {
    "dpzv, momentum, noise, drops": ("client.optimizer.momentum=0.9", *GAUSSIAN, *LOSSY),
    "vafl, drops": ("method.name=vafl", *LOSSY),
    "cascaded, float16, uploaded table": (
        "method.name=cascaded",
        "codecs.up.dtype=float16",
        "simulation.table=upload",
    ),
    "dpzv, synchronous, drops": ("simulation.timing=synchronous", "batch_size=4", *LOSSY),
    "vafl, synchronous, stragglers": (
        "method.name=vafl",
        "simulation.timing=synchronous",
        "batch_size=4",
        "simulation.stragglers={1: 8}",
    ),
    "random updates, zeroth-order server": ("control=random", "server.update=zeroth-order"),
    "no validation, epsilon, server untouched": (
        "data.validation=0",
        "privacy.mechanism=gaussian",
        "privacy.clip=0.5",
        "privacy.epsilon=3",
        "server.update=none",
    ),
    "private server, falling rates": (
        "privacy.mechanism=gaussian",
        "privacy.clip=0.5",
        "privacy.epsilon=3",
        "server.update=private-sgd",
        "server.optimizer.decay=linear",
        "client.optimizer.decay=linear",
        *LOSSY,
    ),
    "secret samples": (
        "privacy.mechanism=gaussian",
        "privacy.clip=0.5",
        "privacy.epsilon=3",
        "server.update=poisson-dp-sgd",
        "server.secret.sampling=0.2",
        "server.secret.warm_up=3",
        "server.secret.every=2",
    ),
}


def tiny(*overrides: str) -> ExperimentConfig:
    return schema.load(None, (*TINY, *overrides))


def ran(*overrides: str, out: Path | None = None, **more: Any) -> Result:
    return Experiment(tiny(*overrides)).run(out, **more)


def timeless(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in CLOCK}


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [timeless(json.loads(line)) for line in lines]


def last(folder: Path) -> dict[str, Any]:
    """The last checkpoint without its clocks."""
    state: dict[str, Any] = RunFolder(folder).load("last")
    for key in ("seconds", "training_seconds"):
        state["standing"].pop(key)
    state["standing"]["last"].pop("seconds")
    return state


def start_of(*overrides: str) -> Federation:
    experiment = Experiment(tiny(*overrides))
    return build(experiment.config, experiment.data())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, list[Progress]]:
    """One small run in a folder."""
    out = tmp_path_factory.mktemp("runs") / "deep" / "run"
    seen: list[Progress] = []
    return out, ran(out=out, progress=seen.append), seen


class Crash(BaseException):
    """The process is gone."""


class TestFolder:
    def test_the_files(self, finished: tuple[Path, Result, Any]) -> None:
        out, result, _ = finished
        names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        assert names == {
            ".lock",
            "run_name",
            "config.yaml",
            "metrics.jsonl",
            "summary.json",
            "checkpoints/last.safetensors",
            "checkpoints/best.safetensors",
        }
        assert result.folder == out

    def test_what_was_returned_is_what_was_written(
        self, finished: tuple[Path, Result, Any]
    ) -> None:
        out, result, _ = finished
        assert json.loads((out / "summary.json").read_text()) == result.summary
        lines = (out / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == result.metrics
        assert schema.load(out / "config.yaml") == tiny()
        assert same(last(out)["parameters"], result.federation.parameters())

    def test_its_configuration_reruns_it(
        self, finished: tuple[Path, Result, Any], tmp_path: Path
    ) -> None:
        out, result, _ = finished
        again = Experiment.from_yaml(out / "config.yaml").run(tmp_path / "again")
        assert timeless(again.summary) == timeless(result.summary)
        assert rows(tmp_path / "again") == rows(out)
        assert same(last(tmp_path / "again"), last(out))

    def test_memory_alone_gives_the_same_numbers(self, finished: tuple[Path, Result, Any]) -> None:
        _, result, _ = finished
        alone = ran()
        assert alone.folder is None
        assert timeless(alone.summary) == timeless(result.summary)

    def test_another_seed_is_another_run(self, finished: tuple[Path, Result, Any]) -> None:
        _, result, _ = finished
        other = ran("seed=1")
        assert other.summary["test_loss"] != result.summary["test_loss"]

    def test_progress_is_told(self, finished: tuple[Path, Result, list[Progress]]) -> None:
        _, result, seen = finished
        end = seen[-1]
        assert (end.round, end.total) == (72, 72)
        moved = result.summary["bytes_up"] + result.summary["bytes_down"]
        assert end.megabytes == pytest.approx(moved / 1e6)
        assert end.epsilon is None
        assert end.accuracy == result.metrics[-1]["validation_accuracy"]
        assert end.seconds > 0


class TestMetrics:
    def test_one_row_at_the_start_and_one_an_epoch(
        self, finished: tuple[Path, Result, Any]
    ) -> None:
        _, result, _ = finished
        assert [row["round"] for row in result.metrics] == [0, 24, 48, 72]
        assert [row["epoch"] for row in result.metrics] == [0, 1, 2, 3]
        first, *others = result.metrics
        assert first["train_loss"] is None
        assert first["bytes_up"] == first["bytes_down"] == 0
        for row in others:
            assert 0 < row["train_loss"] < 10
            assert 0 <= row["train_accuracy"] <= 1
            assert 0 <= row["validation_accuracy"] <= 1
            assert row["validation_loss"] > 0
            assert "test_accuracy" not in row
        for key in ("seconds", "virtual_seconds", "bytes_up", "bytes_down"):
            values = [row[key] for row in result.metrics]
            assert values == sorted(values)
            assert values[0] < values[-1]

    def test_evaluations_as_often_as_asked(self) -> None:
        result = ran("evaluate_every=7", "rounds=23")
        assert [row["round"] for row in result.metrics] == [0, 7, 14, 21, 23]

    def test_without_validation_records_the_test_records_are_watched(self) -> None:
        result = ran("data.validation=0", "epochs=1")
        assert "test_accuracy" in result.metrics[-1]
        assert not any(key.startswith("validation") for key in result.metrics[-1])
        assert result.summary["model"] == "last"
        assert result.summary["best"] is None
        assert result.summary["test_accuracy"] == result.metrics[-1]["test_accuracy"]

    def test_evaluating_changes_nothing_that_is_trained(self) -> None:
        often, never = ran("evaluate_every=1"), ran("evaluate_every=1000")
        assert same(often.federation.parameters(), never.federation.parameters())
        for key in ("bytes_up", "bytes_down", "virtual_seconds"):
            assert often.summary[key] == never.summary[key]
        assert often.summary["bytes_evaluation"] > never.summary["bytes_evaluation"]


class TestSummary:
    def test_the_promised_figures(self, finished: tuple[Path, Result, Any]) -> None:
        _, result, _ = finished
        summary = result.summary
        expected = {
            "method": "dpzv",
            "dataset": "digits",
            "clients": 4,
            "records": 54,
            "rounds": 72,
            "epochs": 3,
            "seed": 0,
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
        assert 0 < summary["seconds"] < 60
        assert summary["rounds_per_second"] > 1
        assert 10 < summary["peak_memory_mib"] < 100_000
        assert set(summary["staleness"]) == {"mean", "max"}
        assert 0 < summary["staleness"]["mean"] < summary["staleness"]["max"] < 72
        assert sum(summary["activation_shares"]) == pytest.approx(1)
        assert set(summary["privacy"]) >= {
            "guarantee",
            "epsilon",
            "delta",
            "mu",
            "noise_std",
            "clip",
            "max_participations",
        }
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
        result = ran("data.name=breast-cancer", "epochs=20", "client.optimizer.learning_rate=0.05")
        assert result.summary["dataset"] == "breast-cancer"
        assert result.summary["parties"] == ["mean", "error", "worst"]
        assert 0.8 < result.summary["test_auc"] <= 1
        assert result.summary["test_accuracy"] > 0.8

    def test_clipping_and_noise_are_reported(self) -> None:
        privacy = ran(*GAUSSIAN).summary
        assert 0 < privacy["clip_fraction"] < 1
        assert privacy["privacy"]["guarantee"] == "none"
        assert privacy["privacy"]["epsilon"] is None
        assert privacy["privacy"]["clip"] == 0.5
        assert privacy["privacy"]["noise_std"] == 0.2
        assert privacy["privacy"]["max_participations"] == 12

    def test_a_simulated_guarantee_is_reported(self) -> None:
        summary = ran(
            "privacy.mechanism=gaussian",
            "privacy.clip=0.5",
            "privacy.epsilon=3",
            "server.update=none",
        ).summary
        privacy = summary["privacy"]
        assert privacy["guarantee"] == "simulated"
        assert privacy["epsilon"] == pytest.approx(3)
        assert privacy["delta"] == 1e-5
        assert privacy["max_participations"] == 3 * 4
        assert privacy["mu"] == pytest.approx(2 * 0.5 * 12**0.5 / privacy["noise_std"])

    @each(
        "overrides, evaluations",
        [
            ((), 3),
            (("method.name=vafl",), 1),
            (("server.update=zeroth-order",), 5),
            (("simulation.timing=synchronous",), 9),
        ],
    )
    def test_evaluations_of_the_server_model(
        self, overrides: tuple[str, ...], evaluations: int
    ) -> None:
        summary = ran("rounds=5", *overrides).summary
        assert summary["server_evaluations_per_round"] == evaluations

    @each(
        "setting, expected", [("simulation.timing=synchronous", (18, 3)), ("rounds=12", (12, 0.5))]
    )
    def test_rounds_and_epochs(self, setting: str, expected: tuple[int, float]) -> None:
        summary = ran(setting).summary
        assert (summary["rounds"], summary["epochs"]) == expected


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
        assert same(end["parameters"], result.federation.parameters())
        for parameters, figures in ((kept, summary), (end["parameters"], summary["last"])):
            scores = scored(result.federation, parameters)
            assert figures["test_accuracy"] == scores["accuracy"]
            assert figures["test_loss"] == scores["loss"]


def scored(federation: Federation, parameters: dict[str, Any]) -> Scores:
    federation.load_parameters(parameters)
    federation.simulator.upload("test", federation.data.labels["test"].shape[0])
    return federation.server.score("test")


class TestControls:
    @each("method", ["dpzv", "cascaded", "vafl"])
    def test_frozen_clients_stay_where_they_were(self, method: str) -> None:
        overrides = (f"method.name={method}", "control=frozen")
        before, after = start_of(*overrides).parameters(), ran(*overrides).federation.parameters()
        assert same(before["clients"], after["clients"])
        assert not same(before["server"], after["server"])

    @each("method", ["dpzv", "cascaded", "vafl"])
    def test_random_updates_are_as_long_and_point_elsewhere(self, method: str) -> None:
        overrides = (f"method.name={method}", "rounds=1")
        before = start_of(*overrides).parameters()["clients"]
        plain, control = (
            [
                after - start
                for after, start in zip(run.federation.parameters()["clients"], before, strict=True)
            ]
            for run in (ran(*overrides), ran(*overrides, "control=random"))
        )
        moved = [party for party, step in enumerate(plain) if step.any()]
        assert len(moved) == 1
        (party,) = moved
        assert control[party].norm() == pytest.approx(float(plain[party].norm()), rel=1e-3)
        likeness = torch.cosine_similarity(plain[party], control[party], dim=0)
        assert abs(float(likeness)) < 0.9
        assert not any(control[other].any() for other in range(4) if other != party)
        assert ran(*overrides, "control=random").summary["control"] == "random"


class TestRefused:
    def test_a_folder_that_holds_a_run(self, finished: tuple[Path, Result, Any]) -> None:
        out, _, _ = finished
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        with pytest.raises(RunError, match="already holds a run"):
            ran(out=out)
        assert {path: path.read_bytes() for path in before} == before

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        for out in (tmp_path / "file", tmp_path / "file" / "run"):
            with pytest.raises(RunError) as caught:
                ran(out=out)
            assert str(out) in str(caught.value)
        assert (tmp_path / "file").read_text() == "mine"

    @each("name", ["summary.json", "metrics.jsonl", "checkpoints/last.safetensors"])
    def test_a_folder_with_the_remains_of_a_run(self, name: str, tmp_path: Path) -> None:
        """Or with such a file of another program: it is neither overwritten nor believed."""
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"round": 0, "mine": true}\n')
        with pytest.raises(RunError) as caught:
            ran("rounds=2", out=tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert path.read_text() == '{"round": 0, "mine": true}\n'

    def test_a_folder_in_use(self, tmp_path: Path) -> None:
        RunFolder(tmp_path).create(tiny())
        with RunFolder(tmp_path).locked(), pytest.raises(RunError, match="in use"):
            ran(out=tmp_path, resume=True)

    def test_a_folder_in_use_keeps_its_configuration(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two runs that begin at once in one folder: the second to come changes nothing."""
        RunFolder(tmp_path).create(tiny())
        with RunFolder(tmp_path).locked():
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
        "overrides",
        [
            ("client.optimizer.learning_rate=1e12",),
            ("client.optimizer.learning_rate=1e12", "evaluate_every=1"),
            ("client.optimizer.learning_rate=1e12", "rounds=1"),
            ("client.optimizer.learning_rate=1e30", "method.name=vafl"),
            ("client.optimizer.learning_rate=1e300",),
            ("server.optimizer.learning_rate=1e35",),
            ("server.optimizer.learning_rate=1e35", "rounds=1"),
            ("server.optimizer.learning_rate=1e20", "server.update=zeroth-order"),
        ],
    )
    def test_divergence_is_told_in_one_line(self, overrides: tuple[str, ...]) -> None:
        with pytest.raises(RunError, match="diverged") as caught:
            ran("epochs=5", *overrides)
        line = str(caught.value)
        assert "\n" not in line
        assert "learning_rate" in line

    def test_figures_that_are_no_json_are_never_written(self, tmp_path: Path) -> None:
        """Infinite logits at the end of a run: refused, or written as what JSON has."""

        def strict(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        try:
            ran("rounds=1", "server.optimizer.learning_rate=1e35", out=tmp_path)
        except RunError as error:
            refused = str(error)
            assert "diverged" in refused
        for name in ("summary.json", "metrics.jsonl"):
            if (tmp_path / name).exists():
                for line in (tmp_path / name).read_text().split("\n\n"):
                    for row in line.splitlines() if name.endswith("l") else [line]:
                        json.loads(row, parse_constant=strict)


class TestResume:
    @each("name", SCENARIOS)
    def test_a_crash_anywhere_changes_no_number(self, name: str, tmp_path: Path) -> None:
        """The process ends at some frame on the wire, three times; then the run is completed."""
        overrides = ("checkpoint_seconds=0", "evaluate_every=5", "rounds=30", *SCENARIOS[name])
        frames = 0

        def count(*_: Any) -> None:
            nonlocal frames
            frames += 1

        ran(*overrides, out=tmp_path / "whole", observer=count)
        for at in (0.03, 0.5, 0.4):
            left = int(at * frames)

            def crash(*_: Any) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Crash

            with pytest.raises(Crash):
                ran(
                    *overrides,
                    out=tmp_path / "parts",
                    resume=(tmp_path / "parts").exists(),
                    observer=crash,
                )
        result = ran(*overrides, out=tmp_path / "parts", resume=True)
        self.equal(tmp_path / "parts", tmp_path / "whole")
        assert timeless(result.summary) == timeless(RunFolder(tmp_path / "whole").summary() or {})

    def test_a_crash_before_the_first_checkpoint(self, tmp_path: Path) -> None:
        def crash(*_: Any) -> None:
            raise Crash

        with pytest.raises(Crash):
            ran(out=tmp_path / "parts", observer=crash)
        assert not RunFolder(tmp_path / "parts").has("last")
        assert len(rows(tmp_path / "parts")) == 1
        ran(out=tmp_path / "parts", resume=True)
        ran(out=tmp_path / "whole")
        self.equal(tmp_path / "parts", tmp_path / "whole")

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

    def test_a_finished_run_stays_as_it_is(self, tmp_path: Path) -> None:
        before = ran(out=tmp_path).summary
        state, figures = last(tmp_path), rows(tmp_path)
        after = ran(out=tmp_path, resume=True).summary
        assert timeless(after) == timeless(before)
        assert same(last(tmp_path), state)
        assert rows(tmp_path) == figures

    def test_more_time_is_counted_on_top(self, tmp_path: Path) -> None:
        def crash(now: float, *_: Any) -> None:
            if now > 5:
                raise Crash

        with pytest.raises(Crash):
            ran("checkpoint_seconds=0", out=tmp_path, observer=crash)
        kept = RunFolder(tmp_path).load("last")["standing"]["seconds"]
        assert 0 < kept < ran(out=tmp_path, resume=True).summary["seconds"]

    @each("kind", ["absent", "empty"])
    def test_a_folder_without_a_run(self, kind: str, tmp_path: Path) -> None:
        out = tmp_path / "run"
        if kind == "empty":
            out.mkdir()
        with pytest.raises(RunError) as caught:
            ran(out=out, resume=True)
        assert str(out) in str(caught.value)
        assert kind == "empty" or not out.exists()

    @each("kept", [0, 100, -1])
    def test_a_damaged_checkpoint_is_named(self, kept: int, tmp_path: Path) -> None:
        ran("rounds=3", out=tmp_path)
        path = tmp_path / "checkpoints" / "last.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(RunError) as caught:
            ran("rounds=3", out=tmp_path, resume=True)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    @each("change", ["data.parties=2", "client.model.outputs=9", "method.name=vafl", "seed=4"])
    def test_a_checkpoint_of_another_configuration_is_refused(
        self, change: str, tmp_path: Path
    ) -> None:
        ran("rounds=3", out=tmp_path)
        with pytest.raises(UserError) as caught:
            ran("rounds=6", change, out=tmp_path, resume=True)
        assert str(tmp_path) in str(caught.value)

    def test_a_lost_best_checkpoint_is_written_again(self, tmp_path: Path) -> None:
        ran("rounds=30", "evaluate_every=10", out=tmp_path)
        path = tmp_path / "checkpoints" / "best.safetensors"
        before = path.read_bytes()
        path.unlink()
        ran("rounds=30", "evaluate_every=10", out=tmp_path, resume=True)
        assert same(checkpoint.load(path), checkpoint.load(path))
        assert path.read_bytes() == before

    @staticmethod
    def equal(one: Path, two: Path) -> None:
        assert rows(one) == rows(two)
        assert same(last(one), last(two))
        assert same(RunFolder(one).has("best"), RunFolder(two).has("best"))
        if RunFolder(one).has("best"):
            assert same(RunFolder(one).load("best"), RunFolder(two).load("best"))
        summaries = [timeless(RunFolder(folder).summary() or {}) for folder in (one, two)]
        assert summaries[0] == summaries[1]
        assert summaries[0]


def own_data(records: int = 30) -> VerticalData:
    """Two parties with three and two columns, and a label that the first column gives away."""
    generator = torch.Generator().manual_seed(0)
    values = {
        purpose: torch.randn(count, 5, generator=generator)
        for purpose, count in (("train", records), ("validation", 10), ("test", 20))
    }
    return VerticalData(
        name="own",
        task=Classification(2),
        parties=("bank", "shop"),
        features=tuple(
            {purpose: rows[:, part].contiguous() for purpose, rows in values.items()}
            for part in (slice(0, 3), slice(3, 5))
        ),
        labels={purpose: (rows[:, 0] > 0).long() for purpose, rows in values.items()},
        fitted_scaling=False,
    )


class TestPython:
    def test_an_experiment_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "run.yaml"
        path.write_text("epochs: 1\nbatch_size: 9\ndata: {limit: 60}\n")
        summary = vertizo.Experiment.from_yaml(path).run().summary
        assert summary["rounds"] == 24
        assert vertizo.Experiment.from_yaml(str(path), ["seed=3"]).config.seed == 3
        assert list(tmp_path.iterdir()) == [path]

    def test_data_of_ones_own(self, tmp_path: Path) -> None:
        settings = vertizo.ExperimentConfig(batch_size=10, epochs=40)
        result = vertizo.Experiment(settings, data=own_data()).run(tmp_path / "run")
        assert isinstance(result, vertizo.Result)
        assert result.summary["dataset"] == "own"
        assert result.summary["parties"] == ["bank", "shop"]
        assert result.summary["records"] == 30
        assert result.summary["test_auc"] > 0.8

    def test_data_of_ones_own_with_the_defaults(self) -> None:
        with pytest.raises(ConfigError, match="batch_size is 64"):
            vertizo.Experiment(vertizo.ExperimentConfig(batch_size=64), data=own_data()).run()
        summary = (
            vertizo.Experiment(vertizo.ExperimentConfig(rounds=2), data=own_data(records=64))
            .run()
            .summary
        )
        assert summary["rounds"] == 2

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

    def test_a_mistake_in_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "run.yaml").write_text("epoch: 1\n")
        with pytest.raises(vertizo.VertizoError, match="did you mean 'epochs'"):
            vertizo.Experiment.from_yaml(tmp_path / "run.yaml")

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
