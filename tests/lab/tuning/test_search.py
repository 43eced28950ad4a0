"""A search: its trials, its folder, going on with it, and what it never looks at."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.damage import damage
from tests.failing_disk import disk_below
from tests.lab.conftest import settings

from vertizo.core.errors import ConfigError, Interrupted, RunError, UserError
from vertizo.lab.comparison import Standing
from vertizo.lab.tuning.results import Results
from vertizo.lab.tuning.search import Options, Show, tune
from vertizo.lab.tuning.study import Journal
from vertizo.lab.tuning.trial import without_tests
from vertizo.party.server import ServerParty
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder
from vertizo.run.trained.prediction import Predictor

SMALL = ("data.limit=120", "data.parties=2", "batch_size=27", "epochs=4")
RATE = "client.optimizer.learning_rate"
SPACE = (f"{RATE}=1e-4..1e-1:log", "batch_size=18,27,54")


def search(folder: Path, *, show: Show | None = None, **more: Any) -> Results:
    options = {"trials": 4, "search": SPACE, "pruner": "none", **more}
    return tune(settings(*SMALL), folder, Options(**options), show)


def kept(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())["trials"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """A search of four trials."""
    folder = tmp_path_factory.mktemp("searches") / "made"
    return folder, search(folder)


@pytest.mark.full
def test_trials_are_runs_and_the_first_is_as_configured(made: tuple[Path, Results]) -> None:
    folder, found = made
    assert [record.number for record in found.records] == [0, 1, 2, 3]
    assert {record.outcome for record in found.records} == {"finished"}
    assert found.records[0].values == {}
    first = RunFolder(folder / "trials/000").config()
    plain = Experiment(settings(*SMALL))
    plain.data()
    assert first.client.optimizer.learning_rate == plain.config.client.optimizer.learning_rate
    assert (first.batch_size, first.epochs) == (27, 4)
    for record in found.records[1:]:
        run = RunFolder(folder / f"trials/{record.number:03d}").config()
        assert run.client.optimizer.learning_rate == float(record.values[RATE])
        assert str(run.batch_size) == record.values["batch_size"]


def test_a_trial_is_worth_what_the_model_is_that_its_run_keeps(made: tuple[Path, Results]) -> None:
    folder, found = made
    for record in found.records:
        summary = RunFolder(folder / f"trials/{record.number:03d}").summary()
        best = summary["best"]
        assert record.score == (best["validation_accuracy"], best["validation_loss"])
        # Only the best trial has test figures.
        assert any(k.startswith("test_") for k in summary) == (record.number == found.best.number)
        assert "test_" not in (folder / f"trials/{record.number:03d}/metrics.jsonl").read_text()
    best = max(found.records, key=lambda r: (r.score.value, -r.score.loss))
    assert found.best == best


def test_the_best_configuration_reruns_to_the_same_figures(
    made: tuple[Path, Results], tmp_path: Path
) -> None:
    folder, found = made
    again = Experiment.from_yaml(folder / "best.yaml").run(tmp_path / "again").summary
    for name, value in found.test.items():
        assert again[f"test_{name}"] == value
    trial = RunFolder(folder / f"trials/{found.best.number:03d}").summary()
    assert again["best"] == trial["best"]


def test_the_test_records_are_not_there_while_it_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []
    tested: list[Predictor] = []

    score, test, run = ServerParty.score, Predictor.test, Experiment.run

    def spied_score(self: ServerParty, purpose: Any, **keys: Any) -> Any:
        scored.append(purpose)
        return score(self, purpose, **keys)

    def spied_test(self: Predictor) -> Any:
        tested.append(self)
        return test(self)

    def spied_run(self: Experiment, *args: Any, **kwargs: Any) -> Any:
        data = self.data()
        assert data.labels["test"].numel() == 0
        assert all(own["test"].shape[0] == 0 for own in data.features)
        assert not tested
        return run(self, *args, **kwargs)

    monkeypatch.setattr(ServerParty, "score", spied_score)
    monkeypatch.setattr(Predictor, "test", spied_test)
    monkeypatch.setattr(Experiment, "run", spied_run)
    search(tmp_path / "spied")
    assert set(scored) == {"validation"}
    assert len(tested) == 1
    tested.clear()
    assert search(tmp_path / "spied").test  # what was tested is not tested again
    assert not tested


def test_the_label_holders_own_test_records_are_left_out_as_well() -> None:
    own = settings(*SMALL, "data.name=breast-cancer", "data.label_holder=mean", "data.parties=null")
    data = Experiment(own).data()
    blind = without_tests(data)
    assert blind.own.values["test"].shape[0] == 0
    assert torch.equal(blind.own.values["train"], data.own.values["train"])


@pytest.mark.full
def test_one_seed_is_one_search(made: tuple[Path, Results], tmp_path: Path) -> None:
    """However often it is stopped, between trials or by asking for fewer of them."""

    def stop(here: Standing) -> None:
        if here.finished == 3:
            raise KeyboardInterrupt

    search(tmp_path / "again", trials=2)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "again", show=stop)
    assert json.loads((tmp_path / "again/results.json").read_text())["planned"] == 2
    search(tmp_path / "again")
    assert kept(tmp_path / "again") == kept(made[0])
    search(tmp_path / "other", seed=1)
    assert kept(tmp_path / "other") != kept(made[0])


def test_it_is_gone_on_with_within_a_trial(made: tuple[Path, Results], tmp_path: Path) -> None:
    shares: list[float] = []

    def stop(here: Standing) -> None:
        if here.finished == 2 and here.share > 0.5 and not shares:  # within trial 2
            shares.append(here.share)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        search(tmp_path / "stopped", show=stop)
    unfinished = RunFolder(tmp_path / "stopped/trials/002")
    assert unfinished.has("last")
    assert unfinished.summary() is None
    search(tmp_path / "stopped")
    assert kept(tmp_path / "stopped") == kept(made[0])


def test_it_goes_on_behind_a_torn_last_line(made: tuple[Path, Results], tmp_path: Path) -> None:
    """As a crash or a full disk leaves it; a search that is only looked at writes nothing."""
    search(tmp_path / "s", trials=2)
    journal = tmp_path / "s/trials.journal"
    os.truncate(journal, journal.stat().st_size - 20)
    torn = journal.read_bytes()
    with RunFolder(tmp_path / "s").locked(), pytest.raises(RunError, match="in use"):
        search(tmp_path / "s")
    assert journal.read_bytes() == torn
    search(tmp_path / "s")
    assert kept(tmp_path / "s") == kept(made[0])


def test_another_search_is_refused_the_folder(made: tuple[Path, Results]) -> None:
    before = sorted(made[0].rglob("*"))
    others: dict[str, Any] = {"objective": "loss", "pruner": "median", "seed": 3}
    for word, value in {**others, "search": (SPACE[0],)}.items():
        named = "space" if word == "search" else word
        with pytest.raises(RunError, match=f"another {named}.*another --out"):
            search(made[0], **{word: value})
    assert sorted(made[0].rglob("*")) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="something else"):
        search(tmp_path)
    with pytest.raises(RunError, match="is a file"):
        search(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_diverges_and_what_does_not_fit_are_trials_that_came_to_nothing(
    tmp_path: Path,
) -> None:
    found = search(tmp_path / "s", search=(f"{RATE}=0.003,1e35", "batch_size=27,5000"), trials=9)
    outcomes = {record.outcome for record in found.records}
    assert outcomes == {"finished", "diverged", "failed"}
    for record in found.records:
        if record.outcome == "diverged":
            assert record.values[RATE] == "1e35"
            assert "diverged in round" in record.reason
        if record.outcome == "failed":
            assert record.values["batch_size"] == "5000"
            assert "108 training records" in record.reason
    assert found.best.values.get(RATE) != "1e35"


def test_a_search_that_comes_to_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverging = settings(*SMALL, f"{RATE}=1e35", "server.optimizer.learning_rate=1e35")
    options = Options(trials=1, search=(f"{RATE}=1e34..1e36:log",))
    with pytest.raises(RunError, match=r"none of 1 trials.*diverged.*lower learning rates"):
        tune(diverging, tmp_path / "s", options)
    with pytest.raises(ConfigError, match=r"data.validation is 0"):
        tune(settings(*SMALL, "data.validation=0"), tmp_path / "t", Options(trials=2))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'vertizo\[tune\]'"):
        tune(settings(*SMALL), tmp_path / "t", Options(trials=2))
    assert not (tmp_path / "t").exists()


def test_no_trial_is_begun_after_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="none of 0 trials"):
        search(tmp_path / "s", timeout=0.0)
    assert len(search(tmp_path / "s", trials=1).records) == 1


@pytest.mark.long
@pytest.mark.full
def test_several_processes_make_what_one_does_at_the_first_trials(
    made: tuple[Path, Results], tmp_path: Path
) -> None:
    found = search(tmp_path / "s", jobs=2)
    assert len(found.records) == 4
    assert {record.outcome for record in found.records} == {"finished"}
    first = found.records[0].score
    assert first == made[1].records[0].score


@pytest.mark.full
def test_a_search_goes_on_once_the_disk_has_space(tmp_path: Path) -> None:
    """Wherever the first try failed, at its own files, at Optuna's or at a trial's."""

    def small(folder: Path) -> Results:
        options = Options(trials=2, search=("batch_size=9,18",), pruner="none")
        return tune(settings(*SMALL, "data.limit=60", "epochs=1"), folder, options)

    with disk_below(tmp_path) as disk:
        whole = small(tmp_path / "whole")
        sites = [
            (action, path.removeprefix("whole"), 1 + disk.seen[action, path] // 2)
            for action, path in disk.seen
            if action in ("open", "replace", "fsync") and "001" not in path and "lock" not in path
        ]
        assert len(sites) > 20
        for number, (action, path, time) in enumerate(sites[::2]):
            folder = tmp_path / f"{number}"
            disk.fail_at((action, f"{number}{path}"), time)
            with pytest.raises((UserError, OSError), match="No space left"):
                small(folder)
            disk.make_space()
            assert small(folder).records == whole.records, (action, path)


def test_a_damaged_line_of_the_journal_is_told(tmp_path: Path) -> None:
    path, chance = tmp_path / "trials.journal", random.Random(0)
    logs = [{"op_code": number, "value": number / 7, "name": "ε"} for number in range(6)]
    Journal(path).append_logs(logs)
    whole, refused = path.read_bytes(), 0
    for kind in ("flip", "cut") * 30:
        path.write_bytes(whole)
        damage(path, kind, chance)
        try:
            found = Journal(path).read_logs(0)
            assert found == logs[: len(found)]
            assert kind == "cut" or len(found) >= len(logs) - 2  # a line end joins two
        except RunError:
            refused += 1
    assert refused > 20
