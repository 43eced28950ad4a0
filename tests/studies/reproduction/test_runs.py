"""Runs of a study: what is finished is kept, what diverges is noted, what stops goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vertizo.core.errors import ConfigError, Interrupted, RunError
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder
from vertizo.studies.engines import Made as Making
from vertizo.studies.engines import Run
from vertizo.studies.reproduction import grid
from vertizo.studies.reproduction.runs import FAILED, Forgiving, Order, configure, make
from vertizo.studies.reproduction.study import GridConfig

Study = Callable[..., GridConfig]
TWO = {name: {"words": name, "settings": {"method": {"name": name}}} for name in ("vafl", "split")}


@dataclass
class Here:
    """An engine that makes runs in this process, and may be told to fail."""

    diverges: str = ""
    stops_at: str = ""
    made: list[str] = field(default_factory=list)

    def make(self, runs: Sequence[Run]) -> Making:
        for run in runs:
            if run.label == self.stops_at:
                self.stops_at = ""
                raise KeyboardInterrupt
            if run.label == self.diverges:
                RunFolder(run.folder).create(run.config)
                RunFolder(run.folder).append_metrics({"round": 0})
                raise RunError("training diverged in round 3: the loss is nan; lower the rate")
            self.made.append(run.label)
            Experiment(run.config).run(run.folder)
            yield run


def test_what_stopped_goes_on_and_nothing_is_made_twice(grid_study: Study, tmp_path: Path) -> None:
    engine = Here(stops_at="split")
    order = Order(tmp_path, engine)
    cases = grid.cases(grid_study(rows=TWO), order)
    with pytest.raises(Interrupted):
        make(cases, order)
    assert engine.made == ["vafl"]
    made = make(cases, order)
    assert engine.made == ["vafl", "split"]
    assert all(found.runs[0] is not None for found in made.values())
    assert make(cases, order).keys() == made.keys()
    assert engine.made == ["vafl", "split"]


def test_a_run_that_diverges_is_a_result_and_the_others_go_on(
    grid_study: Study, tmp_path: Path
) -> None:
    engine = Here(diverges="vafl")
    order = Order(tmp_path, engine)
    cases = grid.cases(grid_study(rows=TWO), order)
    made = make(cases, order)
    assert made["vafl"].runs == (None,)
    assert made["split"].finished
    assert "diverged in round 3" in (tmp_path / "vafl" / "seed0" / FAILED).read_text()
    engine.diverges = ""  # it is not tried again
    assert make(cases, order)["vafl"].runs == (None,)
    assert engine.made == ["split"]


def test_another_failure_is_raised(tmp_path: Path) -> None:
    class Broken:
        def make(self, runs: Sequence[Run]) -> Making:
            raise RunError("the disk is full")
            yield

    run = Run("a", "none", configure("x", [{}]), tmp_path / "a")
    with pytest.raises(RunError, match="the disk is full"):
        list(Forgiving(Broken()).make([run]))


def test_a_folder_of_other_runs_is_refused(grid_study: Study, tmp_path: Path) -> None:
    order = Order(tmp_path, Here())
    make(grid.cases(grid_study(), order), order)
    other = Order(tmp_path, Here(), overrides=("epochs=3",))
    with pytest.raises(RunError, match="another configuration"):
        make(grid.cases(grid_study(), other), other)


class TestConfigure:
    def test_later_trees_replace_keys_and_null_takes_them_away(self) -> None:
        found = configure(
            "x",
            [
                {"epochs": 2, "privacy": {"mechanism": "gaussian", "clip": 1.0, "noise_std": 1.0}},
                {
                    "method": {"name": "czofo", "num_directions": 7},
                    "client": {"model": {"outputs": 9}},
                },
                {"method": {"smoothing": 0.01}, "privacy": None},
            ],
            ["epochs=5"],
        )
        assert found.method.num_directions == 7  # type: ignore[union-attr]
        assert found.method.smoothing == 0.01  # type: ignore[union-attr]
        assert found.privacy.mechanism == "none"
        assert found.epochs == 5

    def test_another_method_forgets_the_first_ones_keys(self) -> None:
        found = configure(
            "x", [{"method": {"name": "czofo", "num_directions": 7}}, {"method": {"name": "vafl"}}]
        )
        assert found.method.name == "vafl"

    def test_what_is_wrong_names_the_study(self) -> None:
        with pytest.raises(ConfigError, match="Table 9: unknown key 'epoch'"):
            configure("Table 9", [{"epoch": 2}])
