"""What TensorBoard and MLflow have of a run, read back from where they keep it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import run, sets
from tests.refusals import refused
from tests.rows import each

from vertizo.config import schema
from vertizo.core.errors import ConfigError, RunError
from vertizo.run.experiment import Experiment, Result
from vertizo.run.loop import tracking
from vertizo.run.results.folder import RunFolder

pytestmark = [
    pytest.mark.full,
    pytest.mark.needs("tensorboard", "mlflow"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning:(mlflow|sqlalchemy|tensorboard|alembic)"
    ),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TINY = ("data.limit=60", "batch_size=9", "epochs=3")
NOISED = ("seed=0", "privacy.mechanism=gaussian", "privacy.noise_std=0.1")
KINDS = ("tensorboard", "mlflow")
Points = dict[str, list[tuple[int, float]]]


class Crash(BaseException):
    """The process is gone."""


def experiment(*overrides: str) -> Experiment:
    return Experiment(schema.load(None, (*TINY, *overrides)))


def events(folder: Path) -> Any:
    """Of the only run below a folder, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (place,) = [path for path in folder.iterdir() if path.is_dir()]
    return EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def tensorboard(folder: Path) -> Points:
    found = events(folder)
    names = found.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in names}


def stored(folder: Path) -> tuple[Any, list[Any]]:
    """A store and its runs."""
    from mlflow import MlflowClient

    store = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    (known,) = store.search_experiments(filter_string="name = 'vertizo'")
    return store, store.search_runs([known.experiment_id])


def runs(folder: Path) -> list[Any]:
    return stored(folder)[1]


def mlflow(folder: Path) -> Points:
    """Metrics of the only run of a store."""
    store, (run,) = stored(folder)
    histories = {n: store.get_metric_history(run.info.run_id, n) for n in run.data.metrics}
    return {name: [(p.step, p.value) for p in points] for name, points in histories.items()}


def both_have(folder: Path, rows: list[dict[str, Any]], summary: Mapping[str, Any]) -> None:
    """Every evaluation is there once, and the closing figures."""
    expected: Points = {}
    for row in rows:
        for name, value in tracking.figures(row).items():
            expected.setdefault(name, []).append((row["round"], value))
    for found in (tensorboard(folder / "board"), mlflow(folder / "flow")):
        assert {name for name in found if not name.startswith("final/")} == set(expected)
        for name, points in expected.items():
            assert [step for step, _ in found[name]] == [step for step, _ in points], name
            if name != "seconds":
                values = [value for _, value in found[name]]
                assert values == pytest.approx([value for _, value in points], rel=1e-6), name
        final = found["final/test_accuracy"]
        assert final == [(summary["rounds"], pytest.approx(summary["test_accuracy"], rel=1e-6))]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracked")


def store_at(folder: Path, blank: Path) -> Path:
    """A folder with an empty store, which takes seconds to make."""
    folder.mkdir()
    shutil.copy(blank, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory, result: Result, places: Path) -> Path:
    """A store without any run."""
    file = tmp_path_factory.mktemp("blank") / "mlflow.db"
    shutil.copy(places / "flow" / "mlflow.db", file)
    with closing(sqlite3.connect(file)) as database:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs", "experiments"):
            database.execute(f"DELETE FROM {table} WHERE TRUE")
        database.commit()
    return file


@pytest.fixture(scope="module")
def targets(places: Path) -> list[str]:
    return [f"tensorboard={places / 'board'}", f"mlflow={places / 'flow'}"]


@pytest.fixture(scope="module")
def result(places: Path, targets: list[str]) -> Result:
    return experiment(*NOISED).run(places / "run", track=targets)


class TestWhatIsWritten:
    def test_all_figures(self, places: Path, result: Result) -> None:
        both_have(places, result.metrics, result.summary)
        assert tensorboard(places / "board")["queries/client3"][-1] == (72, 18.0)

    def test_the_configuration_and_the_summary(self, places: Path, result: Result) -> None:
        written = RunFolder(places / "run")
        (run,) = runs(places / "flow")
        assert run.info.status == "FINISHED"
        assert run.info.run_name == "digits-dpzv-seed0"
        assert run.data.params["method"] == "dpzv"
        assert run.data.params["batch_size"] == "9"
        assert run.data.tags["vertizo.guarantee"] == "none"
        assert run.data.tags["vertizo.run"] == written.run_name()
        (artifacts,) = (places / "flow" / "artifacts").rglob("artifacts")
        yaml = (places / "run" / "config.yaml").read_text()
        assert (artifacts / "config.yaml").read_text() == yaml
        assert json.loads((artifacts / "summary.json").read_text()) == written.summary()
        (event,) = events(places / "board").Tensors("configuration/text_summary")
        text = event.tensor_proto.string_val[0].decode()
        assert text == "".join(f"    {line}\n" for line in yaml.splitlines())

    def test_no_number_depends_on_it(self, result: Result) -> None:
        plain = experiment(*NOISED).run()
        for one, other in zip(result.metrics, plain.metrics, strict=True):
            assert {**one, "seconds": 0} == {**other, "seconds": 0}
        assert result.summary["test_loss"] == plain.summary["test_loss"]

    def test_runs_are_apart(self, places: Path, targets: list[str], blank: Path) -> None:
        store_at(places / "flow-other", blank)
        experiment("seed=5").run(track=[target + "-other" for target in targets])
        experiment("seed=5", "control=frozen").run(track=[t + "-other" for t in targets])
        names = {run.info.run_name for run in runs(places / "flow-other")}
        assert names == {"digits-dpzv-seed5", "digits-dpzv-seed5-frozen"}
        assert len(list((places / "board-other").iterdir())) == 2

        from mlflow.telemetry.utils import is_telemetry_disabled  # nothing is told to its makers

        assert is_telemetry_disabled()


@each("saved", [True, False])
def test_a_run_that_goes_on_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: Path, saved: bool
) -> None:
    """It crashes after its third evaluation, with a checkpoint of the first round or with none."""
    from vertizo.run.loop.training import Training

    store = store_at(tmp_path / "flow", blank)
    targets = [f"tensorboard={tmp_path / 'board'}", f"mlflow={store}"]
    evaluate, saves = Training._evaluate, threading.Semaphore(1 if saved else 0)

    def crash_later(self: Training) -> None:
        evaluate(self)
        if saves.acquire(blocking=False):
            self._save()
        if self.federation.server.round >= 48:
            raise Crash

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Training, "_evaluate", crash_later)
        with pytest.raises(Crash):
            experiment().run(run, track=targets)
    assert len(mlflow(tmp_path / "flow")["round"]) == 3
    (killed,) = runs(tmp_path / "flow")
    assert killed.info.status == "KILLED"

    result = experiment().run(run, resume=True, track=targets)
    assert len(result.metrics) == 4
    both_have(tmp_path, result.metrics, result.summary)
    (finished,) = runs(tmp_path / "flow")
    assert finished.info.status == "FINISHED"

    again = experiment().run(run, resume=True, track=targets)
    assert again.summary == result.summary
    both_have(tmp_path, result.metrics, result.summary)


class TestMistakes:
    @each("spec", ["tensorboard", "tensorboard=", "wandb=x", "=x", ""])
    def test_not_understood(self, spec: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"write tensorboard=DIR, mlflow=DIR or mlflow=URI"):
            experiment().run(tmp_path / "run", track=[spec])
        assert not (tmp_path / "run").exists()

    @each(
        "kind, package",
        [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("mlflow", "alembic")],
    )
    def test_a_missing_package(
        self, kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigError, match=r"pip install 'vertizo\[tracking\]'"):
            experiment().run(tmp_path / "run", track=[f"{kind}={tmp_path / 'place'}"])
        assert list(tmp_path.iterdir()) == []

    def test_a_place_that_cannot_be_used(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        run = experiment().run
        for place in (tmp_path / "file", tmp_path / "file" / "below"):
            for kind in KINDS:
                spec = f"{kind}={place}"
                words = f"^--track {spec}: .*file is a file; name a folder$"
                refused(spec, ConfigError, run, tmp_path / "run", track=[spec], match=words)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
        spec = "mlflow=nothing://here"
        refused(spec, RunError, run, track=[spec], match=f"^--track {spec} failed: ")


def test_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    blank: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    store_at(tmp_path / "flow", blank)
    command = ["train", *sets(*TINY), "--out", "run", "--json"]
    assert run(*command, "--track", "tensorboard=board", "--track", "mlflow=flow") == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = RunFolder(tmp_path / "run").metrics()
    both_have(tmp_path, rows, summary)
