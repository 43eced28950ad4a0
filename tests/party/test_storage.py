"""Large tables live in files: the same numbers, no memory of their own, nothing left behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.federations import ran
from tests.rows import each

from vertizo.core import memory
from vertizo.core.arrays import storage
from vertizo.core.errors import ConfigError
from vertizo.party.table import EmbeddingTable

STATUS = Path("/proc/self/status")
linux = pytest.mark.skipif(not STATUS.exists(), reason="Linux tells a process its memory")


def anonymous() -> int:
    """KiB of memory that are no file's."""
    return int(STATUS.read_text(encoding="utf-8").split("RssAnon:")[1].split()[0])


def maps() -> list[str]:
    text = Path("/proc/self/maps").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.endswith("(deleted)")]


def test_the_rule_is_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    monkeypatch.setattr(storage, "mapped", lambda shape, dtype: made.append(shape))
    monkeypatch.setattr(storage, "available", lambda: 8_000)
    storage.zeros((10, 100), torch.float32)
    assert made == []
    storage.zeros((10, 101), torch.float32)
    assert made == [(10, 101)]
    monkeypatch.setattr(storage, "available", lambda: None)
    assert storage.zeros((10, 101), torch.float32).shape == (10, 101)


@pytest.mark.full
@linux
def test_a_mapped_array_is_sparse_and_unnamed() -> None:
    before, known = anonymous(), maps()
    array = storage.mapped((2_000_000, 1024), torch.float32)  # 8 GB
    assert not array[::500_000].any()
    array[1_999_999] = 7.0
    assert torch.equal(array[1_999_998:].sum(1), torch.tensor([0.0, 7 * 1024.0]))
    assert anonymous() - before < 4096
    assert len(maps()) == len(known) + 1
    del array
    assert maps() == known


def test_arrays_of_every_kind() -> None:
    for shape, dtype in (((3, 5), torch.int32), ((4,), torch.float32), ((2, 1, 3), torch.float64)):
        array = storage.mapped(shape, dtype)
        assert torch.equal(array, torch.zeros(shape, dtype=dtype))


@each("method", ["dpzv", "vafl"])
def test_a_run_is_the_same_wherever_its_table_lives(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> list[torch.Tensor]:
        run, _ = ran(method)
        table = run.server.side.table
        return [*run.parameters["clients"], table.values.clone(), table.refreshed.clone()]

    plain, files = trained(), []
    monkeypatch.setattr(storage, "available", lambda: 0)
    make = storage.mapped
    monkeypatch.setattr(storage, "mapped", lambda *of: files.append(of) or make(*of))
    assert all(map(torch.equal, plain, trained()))
    assert len(files) == 2
    monkeypatch.undo()


def test_a_full_disk_or_no_folder_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(storage, "available", lambda: 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert storage.directory() == str(tmp_path)
    monkeypatch.setattr(storage, "directory", lambda: "/nowhere/at/all")
    with pytest.raises(ConfigError, match=r"cannot be mapped in /nowhere/at/all: No such file"):
        EmbeddingTable(100, [2])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    with pytest.raises(ConfigError, match=r"table takes 2\.0 GB, .* 1\.0 GB free in .*TMPDIR"):
        EmbeddingTable(1_000_000, [64] * 8)


LIMITED = """
import resource
import torch
from vertizo.core import memory
from vertizo.party.table import EmbeddingTable

resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, resource.RLIM_INFINITY))
left = memory.available()
assert left is not None and left < 4 << 30
table = EmbeddingTable(1_000_000, [64] * 17)  # 4.4 GB
ids = torch.arange(0, 1_000_000, 1000)
table.store(3, ids, torch.ones(1000, 64), 5)
assert float(table.points(ids).rows.sum()) == 64_000
with open("/proc/self/maps") as file:
    print(sum(line.rstrip().endswith("(deleted)") for line in file))
"""


@linux
@pytest.mark.full
def test_under_a_limit_of_the_process() -> None:
    """Which counts a process's own memory and no files: such a table could not be held in it."""
    answer = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout) >= 1


@linux
def test_available_memory_is_no_more_than_the_machine_has() -> None:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    total = int(text.split("MemTotal:")[1].split()[0]) * 1024
    found = memory.available()
    assert 0 < found < total
