"""Experiments on a Ray cluster of this machine: the same figures, and folders that are here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lab.conftest import EXACT, TINY
from tests.refusals import one_line
from tests.same import timeless

from vertizo.core.errors import ConfigError, RunError
from vertizo.lab import comparison
from vertizo.lab.comparison import Run
from vertizo.lab.engines import Processes, RayCluster
from vertizo.lab.ray import connected, gather
from vertizo.run.experiment import Experiment
from vertizo.run.results.folder import RunFolder

pytestmark = [pytest.mark.full, pytest.mark.needs("ray")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two cores, for all tests of this file."""
    with connected("local", cpus=2):
        yield


def planned(
    folder: Path, *labels: str, settings: tuple[str, ...] = (), seeds: int = 1
) -> list[Run]:
    configs = comparison.configurations(None, [*TINY, *settings], labels)
    runs = comparison.plan(configs, seeds, folder, controls=())
    comparison.check(runs)
    return runs


def in_folder(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.name != ".lock"}


@pytest.mark.usefixtures("cluster")
class TestRuns:
    @pytest.mark.long
    def test_figures_and_folders_are_those_of_processes_here(self, tmp_path: Path) -> None:
        here, there = (planned(tmp_path / name, "vafl", "dpzv") for name in ("here", "there"))
        wanted = comparison.execute(here, Processes(2))
        standings = []
        found = comparison.execute(there, RayCluster(), standings.append)
        for one, other in zip(here, there, strict=True):
            assert timeless(found[other]) == timeless(wanted[one])
            assert RunFolder(other.folder).config() == other.config
            rows = metrics(one)
            assert len(rows) > 1
            assert all("seconds" in row for row in (*rows, *metrics(other)))
            assert [*map(timeless, rows)] == [*map(timeless, metrics(other))]
        assert in_folder(tmp_path / "here") == in_folder(tmp_path / "there")
        assert standings[-1].finished == standings[-1].total == 2
        ours, theirs = (
            [timeless(row.as_dict()) for row in comparison.rows(*made, [0.2, 0.5], "validation")]
            for made in ((here, wanted), (there, found))
        )
        assert ours == theirs

    @pytest.mark.long
    def test_what_is_finished_is_kept_and_what_was_begun_is_gone_on_with(
        self, tmp_path: Path
    ) -> None:
        finished, begun = planned(tmp_path, "vafl", seeds=2)
        for run in (finished, begun):
            Experiment(run.config).run(run.folder)
        folder = RunFolder(finished.folder)
        folder.write_summary({**(folder.summary() or {}), "mark": 1})
        alone = RunFolder(begun.folder).summary() or {}
        name = RunFolder(begun.folder).run_name()
        (begun.folder / "summary.json").unlink()
        found = comparison.execute([finished, begun], RayCluster())
        assert found[finished]["mark"] == 1
        assert timeless(found[begun]) == timeless(alone)
        assert RunFolder(begun.folder).run_name() == name

    def test_a_run_is_as_if_alone_and_one_that_fails_is_one_line(self, tmp_path: Path) -> None:
        wild = ("client.optimizer.learning_rate=1e30", "server.optimizer.learning_rate=1e30")
        (bad,) = planned(tmp_path / "bad", "vafl", settings=wild)
        (good,) = planned(tmp_path / "good", "vafl")
        with one_line(RunError, "training diverged"):
            comparison.execute([bad, good], RayCluster())
        assert not bad.folder.exists()
        found = RunFolder(good.folder)
        alone = Experiment(good.config).run()
        assert timeless(found.summary()) == timeless(alone.summary)
        assert [timeless(row) for row in found.metrics()] == [timeless(r) for r in alone.metrics]
        assert found.config() == good.config
        assert found.has("last")


def metrics(run: Run) -> list[dict[str, Any]]:
    return RunFolder(run.folder).metrics()


def square(number: int) -> int:
    return number**2


def dies(really: bool) -> str:
    if really:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@pytest.mark.usefixtures("cluster")
class TestCalls:
    @pytest.mark.long
    def test_no_more_are_asked_for_than_there_is_room_for(self) -> None:
        asked = 0

        def calls() -> Iterator[tuple[int]]:
            nonlocal asked
            for number in range(5):
                asked += 1
                yield (number,)

        gathered = gather(square, calls(), cpus=1, at_once=1)
        assert next(filter(None, gathered)) == (0, 0)
        assert asked == 1
        gathered.close()
        assert asked == 1

    def test_more_cores_than_there_are(self) -> None:
        with pytest.raises(ConfigError, match="threads is 99"):
            next(gather(square, iter([(1,)]), cpus=99))

    def test_a_process_that_is_killed_twice_is_one_line_and_the_others_go_on(self) -> None:
        told: list[tuple[int, str]] = []
        calls = iter([(True,), (False,)])
        gathered = gather(dies, calls, cpus=1, lost=lambda *lost: told.append(lost))
        found = dict(filter(None, gathered))
        assert told == [(0, "its process was killed")]
        assert found.pop(1) == "alive"
        assert isinstance(found[0], RunError)
        assert str(found[0]).startswith("its process was killed twice; the same command goes on")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray; pip install 'vertizo\[ray\]'"):
        next(gather(square, iter([(1,)]), cpus=1))


def test_a_ledger_cannot_be_charged_from_elsewhere(tmp_path: Path) -> None:
    settings = (*EXACT, "privacy.ledger=ledger.sqlite")
    configs = comparison.configurations(None, [*TINY, *settings], ["dpzv"])
    runs = comparison.plan(configs, 1, tmp_path, controls=())
    with pytest.raises(ConfigError, match="a file of this machine"):
        comparison.execute(runs, RayCluster())


COMMAND = """
import sys
from pathlib import Path
from vertizo.lab.commands.studies import compare
from vertizo.core.errors import Interrupted, UserError

try:
    compare(
        methods="vafl", settings=sys.argv[3:], out=Path(sys.argv[1]), controls=False,
        engine="ray", ray_address=sys.argv[2] or None, as_json=True,
    )
except KeyboardInterrupt:
    print("stopped")
except (Interrupted, UserError) as error:
    print(f"{type(error).__name__}: {error}")
"""


def command(folder: Path, address: str, *settings: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", COMMAND, str(folder), address, *settings]
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        words, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=env
    )


@pytest.mark.long
def test_a_cluster_of_its_own_is_quiet_and_ends_with_the_command(tmp_path: Path) -> None:
    with command(tmp_path / "out", "", *TINY) as process:
        out, errors = process.communicate(timeout=120)
    assert errors == ""
    (run,) = planned(tmp_path / "here", "vafl")
    alone = Experiment(run.config).run().summary
    assert json.loads(out)["vafl"]["test_accuracy"] == [alone["test_accuracy"]]


@pytest.mark.long
def test_ctrl_c_stops_and_no_cluster_is_left(tmp_path: Path) -> None:
    with command(tmp_path / "out", "", "epochs=100000") as process:
        time.sleep(15)
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=300)
    assert errors == ""
    assert out.startswith(("Interrupted: stopped", "stopped"))
    assert out.count("\n") == 1


def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with command(tmp_path / "out", "127.0.0.1:1", *TINY) as process:
        out, errors = process.communicate(timeout=180)
    assert errors == ""
    assert out.startswith("RunError: --ray-address 127.0.0.1:1 cannot be reached")
    assert out.count("\n") == 1
