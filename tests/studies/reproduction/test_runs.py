"""Runs of a study: what is finished is kept, what diverges is noted, what stops goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vertizo.core.errors import ConfigError, Interrupted, RunError
from vertizo.run.experiment import Experiment
from vertizo.run.folder import RunFolder
from vertizo.studies.engines import Forgive, Run
from vertizo.studies.engines import Made as Making
from vertizo.studies.reproduction import grid
from vertizo.studies.reproduction.runs import FAILED, Order, configure, make
from vertizo.studies.reproduction.study import GridConfig

Study = Callable[..., GridConfig]
TWO = {name: {"words": name, "settings": {"method": {"name": name}}} for name in ("vafl", "split")}


@dataclass
class Here:
    """An engine that makes runs in this process, and may be told to fail."""

    diverges: str = ""
    problem: str = "training diverged in round 3: the loss is nan; lower the rate"
    stops_at: str = ""
    made: list[str] = field(default_factory=list)

    def make(self, runs: Sequence[Run], forgive: Forgive) -> Making:
        for run in runs:
            if run.label == self.stops_at:
                self.stops_at = ""
                raise KeyboardInterrupt
            if run.label == self.diverges:
                RunFolder(run.folder).create(run.config)
                if not forgive(run, RunError(self.problem)):
                    raise RunError(self.problem)
            else:
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


def test_another_failure_is_raised_and_other_runs_are_refused(
    grid_study: Study, tmp_path: Path
) -> None:
    order = Order(tmp_path / "full", Here(diverges="vafl", problem="the disk is full"))
    with pytest.raises(RunError, match="the disk is full"):
        make(grid.cases(grid_study(), order), order)
    order = Order(tmp_path, Here())
    make(grid.cases(grid_study(), order), order)
    other = Order(tmp_path, Here(), overrides=("epochs=3",))
    with pytest.raises(RunError, match="another configuration"):
        make(grid.cases(grid_study(), other), other)


def test_later_trees_replace_keys_and_null_takes_them_away() -> None:
    first = {"epochs": 2, "privacy": {"mechanism": "gaussian", "clip": 1.0, "noise_std": 1.0}}
    second = {"method": {"name": "czofo", "num_directions": 7}, "client": {"model": {"outputs": 9}}}
    third = {"method": {"smoothing": 0.01}, "privacy": None}
    found = configure("x", [first, second, third], ["epochs=5"])
    assert found.method.num_directions == 7  # type: ignore[union-attr]
    assert found.method.smoothing == 0.01  # type: ignore[union-attr]
    assert found.privacy.mechanism == "none"
    assert found.epochs == 5
    # Another method forgets the first one's keys.
    assert configure("x", [second, {"method": {"name": "vafl"}}]).method.name == "vafl"
    with pytest.raises(ConfigError, match="Table 9: unknown key 'epoch'"):
        configure("Table 9", [{"epoch": 2}])
