"""A damaged file changes no answer: it is told in one line, with exit code 2 and no output."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.cli.test_predict import DATA, TABLE
from tests.command_line import Vertizo
from tests.damage import drawn, each_file, survey
from tests.once import Once
from tests.same import timeless

import vertizo as vz
from vertizo.config import schema
from vertizo.core.errors import Interrupted, RunError
from vertizo.run.experiment import Experiment
from vertizo.run.loop.callbacks import Callback
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

SETTINGS = (DATA, "batch_size=8", "epochs=3", "seed=0")


class Stop(Callback):
    """Break a run off after some evaluations."""

    def __init__(self, after: int) -> None:
        self._left = after

    def on_evaluation(self, row: Any) -> None:
        self._left -= 1
        if not self._left:
            raise Interrupted("stopped")


@pytest.fixture
def table(here: Path) -> None:
    Path("things.csv").write_text(TABLE)


@pytest.fixture
def finished(once: Once, table: None) -> Path:
    """The folder of a run that is over."""
    return once("damage-run", Experiment(schema.load(None, SETTINGS)).run)


@pytest.fixture
def stopped(once: Once, table: None) -> Path:
    """The folder of a run that was broken off behind a checkpoint."""

    def make(folder: Path) -> None:
        config = schema.load(None, [*SETTINGS, "checkpoint_seconds=0"])
        with pytest.raises(Interrupted):
            Experiment(config).run(folder, callbacks=[Stop(3)])

    return once("damage-stopped", make)


@pytest.fixture
def saved(once: Once) -> Path:
    """The folder of a saved estimator."""

    def make(folder: Path) -> None:
        model = vz.VerticalClassifier(
            {"a": ["x"], "b": ["z"]}, method="dpzv", random_state=0, epochs=2
        )
        model.fit(FRAME, (FRAME["x"] > FRAME["z"]).to_numpy()).save(folder)

    return once("damage-saved", make)


NUMBERS = np.random.default_rng(0).normal(size=(60, 2))
FRAME = pl.DataFrame({"x": NUMBERS[:, 0], "z": NUMBERS[:, 1]})


Commands = Callable[..., Callable[[Path], Any]]


@pytest.fixture
def commands(vertizo: Vertizo) -> Commands:
    """What commands say and write of a folder; RunError where one is refused."""

    def of(*lines: str) -> Callable[[Path], Any]:
        def ask(folder: Path) -> Any:
            found, out = [], Path("out.csv")
            for line in lines:
                out.unlink(missing_ok=True)
                words = [word.format(run=folder, out=out) for word in line.split()]
                ended = vertizo(*words)
                if ended.code:
                    ended.refused(case=line)
                    assert not out.exists(), line
                    raise RunError(ended.line)
                found.append((ended.out, ended.err, out.read_bytes() if out.exists() else b""))
            return found

        return ask

    return of


PREDICT = "predict {run} --data things.csv --out {out}"
OTHERS = ("predict {run}", "train --resume {run}", "report {run} --out {out}.html")


def resumed(folder: Path) -> Any:
    """What a run comes to that goes on."""
    made = RunFolder(folder)
    result = Experiment(made.config()).run(folder, resume=True)
    models = [made.load(name) for name in ("last", "best")]
    parameters = [repr(each.get("parameters", each)) for each in models]
    return timeless(result.summary), list(map(timeless, made.metrics())), parameters


def estimated(folder: Path) -> Any:
    return vz.VerticalClassifier.load(folder).predict_proba(FRAME).tolist()


def test_predictions_of_a_damaged_run(finished: Path, tmp_path: Path, commands: Commands) -> None:
    counts = survey(finished, tmp_path, commands(PREDICT), each_file(finished))
    trusted = "config.yaml", "preparation.json", "summary.json", "checkpoints/best.safetensors"
    assert all(counts[f"refused {name}"] == 2 for name in trusted), counts


def test_a_damaged_run_is_not_resumed(stopped: Path, tmp_path: Path) -> None:
    counts = survey(stopped, tmp_path, resumed, each_file(stopped))
    trusted = "config.yaml", "preparation.json", "run_name", "checkpoints/last.safetensors"
    assert all(counts[f"refused {name}"] == 2 for name in trusted), counts


def test_the_last_bytes_of_the_parameters(
    finished: Path, tmp_path: Path, commands: Commands
) -> None:
    def cases() -> Iterator[tuple[str, str]]:
        for name in ("checkpoints/best.safetensors", "preparation.json"):
            yield from ((name, kind) for kind in ("flip", "cut") for _ in range(5))

    counts = survey(finished, tmp_path, commands(PREDICT), cases(), seed=1)
    assert counts["refused"] == 20


@pytest.mark.full
def test_what_commands_make_of_random_damage(
    finished: Path, stopped: Path, saved: Path, tmp_path: Path, commands: Commands
) -> None:
    chance = random.Random(2)
    asks = {
        "predict": (finished, commands(PREDICT), 80),
        "others": (finished, commands(*OTHERS), 60),
        "resumed": (stopped, resumed, 60),
        "estimated": (saved, estimated, 40),
    }
    for name, (folder, ask, times) in asks.items():
        counts = survey(folder, tmp_path / name, ask, drawn(folder, times, chance), times)
        print(name, {key: n for key, n in counts.items() if " " not in key})
        assert counts["refused"] > times / 8


def test_a_configuration_that_was_edited_says_what_to_do(
    finished: Path, tmp_path: Path, vertizo: Vertizo, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "edited"
    shutil.copytree(finished, folder)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 3", "epochs: 4"))
    words = f"if you edited it, begin a run of it: vertizo train {config} --out"
    vertizo("train", "--resume", folder).refused(words)
    assert vertizo("train", config, "--out", "again").code == 0
    assert f"note: {config} is not as it was written; it is taken as it is now" in caplog.messages
    assert json.loads(Path("again/summary.json").read_text())["epochs"] == 4


def test_a_folder_of_an_older_version_is_used_with_a_note(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "older"
    shutil.copytree(finished, folder)
    for path in folder.rglob("digests"):
        path.unlink()
    made = RunFolder(folder)
    assert made.summary() == RunFolder(finished).summary()
    assert made.metrics() == RunFolder(finished).metrics()
    [said] = caplog.messages
    assert said.startswith(f"note: {folder} was written by an older version")
    made.write_summary(made.summary() or {})
    assert made.config() == RunFolder(finished).config()  # which the list has without a digest


def test_a_score_that_is_no_number_is_not_given_out(
    finished: Path, tmp_path: Path, vertizo: Vertizo
) -> None:
    folder = tmp_path / "nan"
    shutil.copytree(finished, folder)
    path = folder / "checkpoints" / "best.safetensors"
    state = checkpoint.load(path)
    state["server"] += float("nan")
    checkpoint.save(path, state)
    for words in (("--data", "things.csv", "--out", "p.csv"), ("--data", "things.csv"), ()):
        ended = vertizo("predict", folder, *words)
        ended.refused("the score of record 1 of ", "is nan, which is no finite number")
    assert not Path("p.csv").exists()
    assert pl.read_csv("things.csv", separator=";").height == 60
