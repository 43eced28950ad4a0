"""A disk that is full, or broken: one line at whoever it is, and the same command goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import deployments as dep
from tests.deployments import DirectChannel, GoneError
from tests.failing_disk import Disk, Site, disk_below
from tests.network import by_hand
from tests.network.by_hand import write_tables
from tests.rows import each

from vertizo.core.errors import RunError, UserError
from vertizo.network.serving.options import ServeConfig
from vertizo.network.serving.serving import FederationService
from vertizo.run.results import checkpoint

PARTIES = ("run", "lab", "clinic")
CLOCK = (
    "seconds",
    "finished",
    "bytes_up",
    "bytes_down",
    "peak_memory_mib",
    "bytes_evaluation",
    "bytes_table",
    "sha256",
)
"""Figures of the processes: what was sent again is counted again; and the digest of all."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parties' tables of the same people."""
    folder = tmp_path_factory.mktemp("tables")
    own = {"bank": ["diagnosis", "x0"], "lab": ["x1", "x2", "x3"], "clinic": ["x4", "x5"]}
    write_tables(folder, own, 90)
    return folder


def holder(tables: Path, folder: Path) -> ServeConfig:
    simulation = {"timing": "synchronous", "table": "upload"}
    return by_hand.holder(
        tables, folder, {"trial": True}, epochs=2, batch_size=32, simulation=simulation
    )


member = partial(by_hand.member, trial=True)


def run(tables: Path, folder: Path) -> dict[str, BaseException]:
    """A job as far as it gets: what ended each party's process, if it was an error of its own."""
    ended: dict[str, BaseException] = {}
    over = threading.Event()

    def work(service: FederationService, name: str) -> None:
        def broken() -> bool:
            return over.is_set() or service.failure is not None

        try:
            dep.take_part(member(tables, folder, name), DirectChannel(service, name, 30.0, broken))
        except GoneError:
            pass
        except BaseException as error:
            ended[name] = error
            over.set()

    try:
        with FederationService(holder(tables, folder)) as service:
            dep.together([partial(work, service, name) for name in PARTIES[1:]])
            service.tick()
            service.conclude()
            assert over.is_set() or service.finished.is_set()
    except UserError as error:
        ended["run"] = error
    return ended


def outcome(folder: Path) -> dict[str, Any]:
    """All that a job left: figures, models, and what states of all parties ended as."""
    server = folder / "run"
    rows = [json.loads(line) for line in (server / "metrics.jsonl").read_text().splitlines()]
    rows.append(json.loads((server / "summary.json").read_text()))
    rows.append(rows[-1].pop("best"))
    found: dict[str, Any] = {
        f"figures {number}": {k: v for k, v in row.items() if k not in CLOCK}
        for number, row in enumerate(rows)
    }
    for name in PARTIES[1:]:
        found[name] = checkpoint.load(folder / name / "model.safetensors")["parameters"].tolist()
    ended = checkpoint.load(server / "checkpoints" / "last.safetensors")["state"]
    found["server"] = ended["course"]["parameters"].tolist()
    found["best"] = checkpoint.load(server / "checkpoints" / "best.safetensors")["server"].tolist()
    return found


@pytest.fixture(scope="module")
def whole(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Disk]:
    """What a job on a disk that works leaves, and all that is written meanwhile."""
    folder = tmp_path_factory.mktemp("whole")
    with disk_below(folder) as disk:
        assert run(tables, folder) == {}
    return outcome(folder), disk


def check_fault(
    tables: Path, folder: Path, whole: dict[str, Any], site: Site, time: int, number: int
) -> None:
    """One party ends with one line that says what failed; then the same commands go on."""
    place = f"{site}, time {time}"
    with disk_below(folder) as disk:
        disk.fail_at(site, time, number)
        ended = run(tables, folder)
        assert disk.failed, place
        assert list(ended) == [site[1].split("/")[0]], (place, ended)
        [error] = ended.values()
        assert isinstance(error, RunError), (place, error)
        assert os.strerror(number) in str(error), (place, error)
        assert "\n" not in str(error)
        disk.make_space()
        ended = run(tables, folder)
        assert not ended, (place, ended)
    found = outcome(folder)
    for key, value in whole.items():
        assert found[key] == value, (place, key)
    assert not list(folder.glob("**/*.partial")), place


def occasions(seen: Mapping[Site, int], party: str) -> list[tuple[Site, int]]:
    """Every kind of write of one party, at its first and at its last time."""
    mine = [site for site in seen if site[1].split("/")[0] == party]
    return [(site, time) for site in mine for time in sorted({1, seen[site]})]


@pytest.mark.full
@each("party", ["run", "lab"])
def test_each_file_on_a_full_disk(
    party: str, tables: Path, whole: tuple[dict[str, Any], Disk], tmp_path: Path
) -> None:
    """Once for each file, in the midst of what is written to it."""
    expected, disk = whole
    found = {site[1]: (site, time) for site, time in occasions(disk.seen, party)}
    of_content = [o for o in occasions(disk.seen, party) if o[0][0] in ("write", "pwritev")]
    found |= {site[1]: (site, (1 + disk.seen[site]) // 2) for site, _ in of_content}
    assert len(found) >= 12
    for number, (site, time) in enumerate(found.values()):
        check_fault(tables, tmp_path / str(number), expected, site, time, errno.ENOSPC)


@pytest.mark.long
@pytest.mark.full
@each("number", [errno.ENOSPC, errno.EIO])
@each("party", ["run", "lab"])
def test_each_write_on_a_disk_that_fails(
    party: str, number: int, tables: Path, whole: tuple[dict[str, Any], Disk], tmp_path: Path
) -> None:
    """Every operation on every file, the first and the last time."""
    expected, disk = whole
    for place, (site, time) in enumerate(occasions(disk.seen, party)):
        check_fault(tables, tmp_path / str(place), expected, site, time, number)


def without_each_key(tree: Any) -> Iterator[Any]:
    """The same state, each time without one key of one of its mappings."""
    places = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in places:
        if isinstance(tree, dict):
            yield {name: one for name, one in tree.items() if name != key}
        if isinstance(value, dict | list):
            for less in without_each_key(value):
                changed = dict(tree) if isinstance(tree, dict) else list(tree)
                changed[key] = less
                yield changed


@pytest.fixture
def ended(tables: Path, tmp_path: Path) -> Path:
    """The folders of a job that is over."""
    assert run(tables, tmp_path) == {}
    return tmp_path


@pytest.mark.full
@each("party", ["run", "lab"])
def test_a_checkpoint_that_lacks_a_field_is_told_in_a_line(
    party: str, tables: Path, ended: Path
) -> None:
    path = ended / party / "checkpoints" / "last.safetensors"
    whole = checkpoint.load(path)
    lines = []
    with ExitStack() as stack:
        if party == "lab":
            service = stack.enter_context(FederationService(holder(tables, ended)))
        for state in without_each_key(whole):
            checkpoint.save(path, state)
            try:
                if party == "lab":
                    config, line = member(tables, ended, "lab"), DirectChannel(service, "lab")
                    dep.opened(config, line)
                else:
                    with FederationService(holder(tables, ended)):
                        pass
            except RunError as error:
                lines.append(str(error))
    checkpoint.save(path, whole)
    assert any("KeyError 'seconds'" in line for line in lines) or party == "lab"
    assert len(lines) > 8
    assert all(f"{path} is damaged, or of another version: " in line for line in lines)
    assert not any("\n" in line for line in lines)


def test_a_table_that_lost_a_column_is_told_in_a_line(tables: Path, ended: Path) -> None:
    (ended / "tables").mkdir()
    for name in ("bank", "lab", "clinic"):
        (ended / "tables" / f"{name}.csv").write_bytes((tables / f"{name}.csv").read_bytes())
    changes = [
        (lambda frame: frame.drop("x2"), "the column 'x2' is missing"),
        (lambda frame: frame.with_columns(x9=1.0), "the column 'x9' is new"),
        (lambda frame: frame.select("key", "x2", "x1", "x3"), "in another order"),
        (lambda frame: frame.with_columns(pl.col("x2") + 1), "other values"),
    ]
    frame = pl.read_csv(tables / "lab.csv")
    with FederationService(holder(tables, ended)) as service:
        line = DirectChannel(service, "lab")
        for change, words in changes:
            change(frame).write_csv(ended / "tables" / "lab.csv")
            with pytest.raises(RunError, match=words):
                dep.opened(member(ended / "tables", ended, "lab"), line)
    config = holder(tables, ended)
    moved = config.data.model_copy(update={"path": ended / "tables" / "bank.csv"})
    known = ended / "run" / "config.yaml"
    text = known.read_text().replace(str(tables), str(ended / "tables"))
    checkpoint.keep(known, text.encode())
    frame = pl.read_csv(tables / "bank.csv")
    for now, words in (
        (frame.with_columns(pl.col("x0") + 1), "on other records than"),
        (frame.with_columns(pl.col("diagnosis").reverse()), "began with another bank.csv"),
    ):
        now.write_csv(ended / "tables" / "bank.csv")
        with (
            pytest.raises(RunError, match=words),
            FederationService(config.model_copy(update={"data": moved})),
        ):
            pass
    shutil.copy(tables / "bank.csv", ended / "tables")
    with FederationService(config.model_copy(update={"data": moved})) as service:
        assert service.stage().startswith("over")


@pytest.mark.full
@each("party", ["run", "lab"])
def test_who_lost_the_end_of_a_journal_is_told_what_can_be_done(
    party: str, tables: Path, whole: tuple[dict[str, Any], Disk], tmp_path: Path
) -> None:
    who = "the label holder" if party == "run" else "this member"
    journal = "run/checkpoints/journal-0.log"
    with disk_below(tmp_path) as disk:
        disk.fail_at(("pwritev", journal), whole[1].seen["pwritev", journal] // 2)
        assert list(run(tables, tmp_path)) == ["run"]
    shutil.copytree(tmp_path / party, tmp_path / "kept")
    for path in (tmp_path / party / "checkpoints").glob("journal-*.log"):
        os.truncate(path, path.stat().st_size // 2)
    (tmp_path / party / "query").unlink(missing_ok=True)
    ended = run(tables, tmp_path)
    line = str(ended.pop("lab"))
    assert " is the next one: " in line
    assert f"{who} goes on from an older state than the other has seen; put the newest copy" in line
    assert not ended or party == "run"
    shutil.rmtree(tmp_path / party)
    (tmp_path / "kept").rename(tmp_path / party)
    assert not run(tables, tmp_path)
    assert outcome(tmp_path) == whole[0]
