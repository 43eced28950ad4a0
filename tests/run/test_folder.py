"""The files that a run leaves behind."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.data import refusals
from tests.failing_disk import disk_below
from tests.rows import each

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import RunError, UserError
from vertizo.data.prepared import Preparation
from vertizo.models.losses import Regression
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import CLOSING, STUDIES, RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A folder that holds a run."""
    made = RunFolder(tmp_path / "run")
    made.create(ExperimentConfig(seed=7))
    return made


def refused(words: str, call: Callable[[], object], *places: object) -> None:
    """One line, that has all of these."""
    refusals.refused([words, *map(str, places)], UserError, call)


class TestCreate:
    def test_nothing_is_made_before(self, tmp_path: Path) -> None:
        RunFolder(tmp_path / "run").check_is_new()
        assert list(tmp_path.iterdir()) == []

    def test_the_configuration_is_kept(self, folder: RunFolder) -> None:
        assert folder.config() == ExperimentConfig(seed=7)
        assert (folder.path / "checkpoints").is_dir()

    def test_an_empty_or_foreign_folder_may_be_used(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        RunFolder(tmp_path).check_is_new()
        RunFolder(tmp_path).create(ExperimentConfig())
        assert (tmp_path / "notes.txt").read_text() == "mine"

    def test_a_folder_with_a_run_is_refused(self, folder: RunFolder) -> None:
        paths = f"--out {folder.path}", f"--resume {folder.path}"
        refused("already holds a run", folder.check_is_new, *paths)

    def test_a_folder_of_a_run_or_of_another_study_is_for_no_study(
        self, folder: RunFolder, tmp_path: Path
    ) -> None:
        for own in (*STUDIES, ""):
            refused("holds a run", partial(folder.check_is_for, own), folder.path)
        for number, other in enumerate(STUDIES):
            place = RunFolder(tmp_path / str(number))
            place.path.mkdir()
            (place.path / other).touch()
            place.check_is_for(other)
            for own in {*STUDIES, ""} - {other}:
                refused(f"holds {other}", partial(place.check_is_for, own), place.path)

    def test_what_could_not_be_written_can_be_begun_again(self, tmp_path: Path) -> None:
        preparation = Preparation({}, "y", Regression(), None)
        with disk_below(tmp_path) as disk:
            RunFolder(tmp_path / "whole").create(ExperimentConfig(), None, preparation)
            sites = [
                ((action, name.replace("whole", str(number))), time)
                for number, ((action, name), times) in enumerate(disk.seen.items())
                for time in range(1, times + 1)
                if "/" in name or action == "fsync"
            ]
            assert len(sites) >= 14
            for (action, name), time in sites:
                place = RunFolder(tmp_path / name.split("/")[0])
                disk.fail_at((action, name), time)
                place.check_is_new()
                with pytest.raises(RunError, match="No space left on device"):
                    place.create(ExperimentConfig(), None, preparation)
                assert disk.failed
                disk.make_space()
                assert not any(path.is_file() for path in place.path.glob("*"))
                place.check_is_new()

    def test_a_start_that_was_killed_can_be_made_again(self, folder: RunFolder) -> None:
        (folder.path / "preparation.json").write_text("{}")
        (folder.path / "config.yaml").unlink()
        folder.check_is_new()
        (folder.path / "run_name").unlink()
        with pytest.raises(RunError, match=r"holds preparation\.json but no config\.yaml"):
            folder.check_is_new()

    def test_places_that_cannot_be_folders(self, tmp_path: Path) -> None:
        """A file, what is below a file, and a name that is too long."""
        (tmp_path / "file").write_text("x")
        file = RunFolder(tmp_path / "file")
        refused("is a file", file.check_is_new, tmp_path / "file")
        below = RunFolder(tmp_path / "file" / "run")
        below.check_is_new()
        refused("cannot be written", lambda: below.create(ExperimentConfig()))
        place = RunFolder(tmp_path / ("x" * 300))
        for use in (place.check_is_new, place.config, lambda: place.create(ExperimentConfig())):
            with pytest.raises(RunError):
                use()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_without_permission(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(RunError, match="cannot be written: Permission denied"):
                RunFolder(tmp_path / "run").create(ExperimentConfig())
        finally:
            tmp_path.chmod(0o700)

    @pytest.mark.skipif(not Path("/proc").is_dir(), reason="no such file system here")
    def test_a_folder_on_a_file_system_that_cannot_be_written(self) -> None:
        with pytest.raises(RunError, match="/proc/vertizo cannot be written"):
            RunFolder(Path("/proc/vertizo")).create(ExperimentConfig())


def test_a_configuration_that_is_not_there_or_damaged(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for kind in ("absent", "empty", "file"):
        refused("holds no run", RunFolder(tmp_path / kind).config, tmp_path / kind)
    (folder.path / "config.yaml").write_text("epochs: [")
    refused("is damaged or was changed", folder.config, folder.path / "config.yaml")
    checkpoint.keep(folder.path / "config.yaml", b"epochs: [")
    refused("not YAML", folder.config, folder.path / "config.yaml")


class TestLock:
    def test_nobody_else_gets_in(self, folder: RunFolder) -> None:
        again = RunFolder(folder.path)
        with folder.locked():
            refused("in use by another", again.locked().__enter__, folder.path)
        with pytest.raises(ZeroDivisionError), again.locked():
            raise ZeroDivisionError
        with RunFolder(folder.path).locked():
            pass
        absent = RunFolder(folder.path / "absent")
        refused("cannot be used", absent.locked().__enter__, absent.path)

    @pytest.mark.full
    def test_it_holds_between_processes_and_ends_with_them(self, folder: RunFolder) -> None:
        text = (
            "import sys, time; from pathlib import Path\n"
            "from vertizo.run.results.folder import RunFolder\n"
            f"with RunFolder(Path({str(folder.path)!r})).locked():\n"
            "    print('in', flush=True); time.sleep(60)\n"
        )
        with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"in\n"
            with pytest.raises(RunError, match="in use"), folder.locked():
                pass
            other.kill()
            other.wait()
            with folder.locked():
                pass


class TestMetrics:
    def test_rows_come_back_in_order(self, folder: RunFolder) -> None:
        assert folder.metrics() == []
        rows = [{"round": number, "loss": 1 / 3 if number else None} for number in range(3)]
        for row in rows:
            folder.append_metrics(row)
        assert folder.metrics() == rows
        assert len(folder.metrics_file.read_text().splitlines()) == 3

    @each("tail", ['{"round": 3, "lo', '{"round"', "\0\0\0", "\n"])
    def test_a_last_line_cut_off_by_a_crash_is_left_out(self, tail: str, tmp_path: Path) -> None:
        folder = RunFolder(tmp_path)
        rows = [{"round": number} for number in range(3)]
        for row in rows:
            folder.append_metrics(row)
        with folder.metrics_file.open("a") as file:
            file.write(tail)
        folder.rewind_metrics(2)
        assert folder.metrics() == rows
        folder.append_metrics({"round": 4})
        assert folder.metrics() == [*rows, {"round": 4}]

    def test_a_line_that_was_torn_is_written_again(self, folder: RunFolder) -> None:
        rows = [{"round": 0, "loss": 1.5}, {"round": 5}, {"round": 10, "words": "ε"}]
        for row in rows:
            with folder.metrics_file.open("ab") as file:
                file.write('{"round": 7, "ε'.encode()[:-1])
            folder.append_metrics(row)
        assert folder.metrics() == rows

    def test_a_line_that_found_no_room_is_written_again(self, folder: RunFolder) -> None:
        folder.append_metrics({"round": 0})
        with disk_below(folder.path) as disk:
            disk.fail_at(("write", "metrics.jsonl"), 1)
            with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written: No space left"):
                folder.append_metrics({"round": 5})
            disk.make_space()
            folder.append_metrics({"round": 5})
        assert folder.metrics() == [{"round": 0}, {"round": 5}]

    def test_rewinding_forgets_later_rows(self, folder: RunFolder) -> None:
        for number in (0, 5, 10, 15):
            folder.append_metrics({"round": number})
        folder.rewind_metrics(10)
        assert [row["round"] for row in folder.metrics()] == [0, 5, 10]
        folder.rewind_metrics(9)
        assert [row["round"] for row in folder.metrics()] == [0, 5]
        folder.rewind_metrics(-1)
        assert folder.metrics() == []


class TestSummaryAndCheckpoints:
    def test_a_summary(self, folder: RunFolder) -> None:
        assert folder.summary() is None
        figures = dict.fromkeys(CLOSING, "ε") | {"seconds": 1 / 3, "loss": math.inf}
        folder.write_summary(figures)
        assert folder.summary() == figures | {"loss": None}
        assert json.loads(folder.summary_file.read_text(encoding="utf-8"))["method"] == "ε"

    @each("gone", CLOSING)
    def test_a_summary_without_a_figure_is_named(self, gone: str, folder: RunFolder) -> None:
        folder.write_summary({key: "" for key in CLOSING if key != gone})
        refused(f"it has no {gone!r}", folder.summary, folder.summary_file)

    @each("content", [b"", b'{"a', b"\xff\xfe"])
    def test_a_damaged_summary_is_named(self, content: bytes, folder: RunFolder) -> None:
        folder.summary_file.write_bytes(content)
        refused("is damaged or was changed", folder.summary, folder.summary_file)
        checkpoint.keep(folder.summary_file, content)
        refused("not a summary", folder.summary, folder.summary_file)

    def test_checkpoints_by_name(self, folder: RunFolder) -> None:
        assert not folder.has("last")
        folder.save("last", {"values": torch.arange(3), "round": 2})
        assert folder.has("last")
        assert not folder.has("best")
        assert folder.load("last")["values"].tolist() == [0, 1, 2]
        with pytest.raises(RunError, match="no such checkpoint"):
            folder.load("best")
