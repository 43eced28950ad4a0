"""Damaged files of real parties: what was trained, and what a job goes on from."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.damage import drawn, each_file, survey
from tests.failing_disk import disk_below
from tests.network.by_hand import write_tables
from tests.network.test_disk_faults import outcome, run
from tests.ops.scoring.parties import predicted

JOURNAL = "run/checkpoints/journal-0.log"


def answer(tables: Path) -> Callable[[Path], Any]:
    """What all parties predict together."""

    def ask(folder: Path) -> Any:
        found = predicted(tables, folder)
        return {key: logits.tolist() for key, logits in found.items()}

    return ask


def test_predictions_of_damaged_parties(tables: Path, trained: Path, tmp_path: Path) -> None:
    cases = [
        (name, kind)
        for name, kind in each_file(trained)
        if name.startswith(("run/", "lab/")) and kind == "flip"
    ]
    counts = survey(trained, tmp_path, answer(tables), iter(cases))
    for name in ("lab/model.safetensors", "lab/settings.yaml", "lab/job", "run/config.yaml"):
        assert counts[f"refused {name}"] == 1, counts
    assert counts["refused run/checkpoints/best.safetensors"] == 1


@pytest.mark.full
def test_random_damage_to_parties_that_predict(tables: Path, trained: Path, tmp_path: Path) -> None:
    counts = survey(trained, tmp_path, answer(tables), drawn(trained, 60, random.Random(3)))
    assert counts["refused"] > 10, counts


@pytest.fixture
def broken_off(tmp_path: Path) -> tuple[Path, Path, Any]:
    """Tables, the folders of a job that a full disk ended half-way, and what it comes to."""
    tables = tmp_path / "tables"
    tables.mkdir()
    own = {"bank": ["diagnosis", "x0"], "lab": ["x1", "x2", "x3"], "clinic": ["x4", "x5"]}
    write_tables(tables, own, 90)
    folder = tmp_path / "job"
    folder.mkdir()
    with disk_below(folder) as disk:
        assert run(tables, folder) == {}
    whole, times = outcome(folder), disk.seen["pwritev", JOURNAL]
    shutil.rmtree(folder)
    folder.mkdir()
    with disk_below(folder) as disk:
        disk.fail_at(("pwritev", JOURNAL), times // 2)
        assert list(run(tables, folder)) == ["run"]
    return tables, folder, whole


@pytest.mark.full
def test_random_damage_to_a_job_that_goes_on(broken_off: tuple[Path, Path, Any]) -> None:
    tables, folder, whole = broken_off
    assert whole

    def ask(copy: Path) -> Any:
        ended = run(tables, copy)
        for error in ended.values():
            raise error
        return outcome(copy)

    place = folder.parent / "copies"
    counts = survey(folder, place, ask, drawn(folder, 60, random.Random(4)))
    assert counts["refused"] > 10, counts
