"""``vertizo init``: what it writes trains, is the same everywhere, and never replaces anything."""

from __future__ import annotations

import json
import shlex
from hashlib import sha256
from pathlib import Path

import polars as pl
import pytest
from tests.command_line import Refuses, Vertizo, sets
from tests.failing_disk import disk_below

from vertizo.config import schema
from vertizo.data.tutorial import example
from vertizo.data.tutorial.example import table
from vertizo.run.experiment import Experiment


@pytest.mark.full
def test_the_example_trains_and_the_next_commands_work(vertizo: Vertizo, here: Path) -> None:
    said = vertizo("init", "a bank").quietly()
    names = {path.name for path in (here / "a bank").iterdir()}
    assert names == {"config.yaml", "customers.csv", "private.yaml"}
    named, *commands = said.splitlines()
    assert named.startswith("a bank: ")
    train, report, plan, private = (shlex.split(line)[1:] for line in commands)

    config = schema.load(here / "a bank" / "private.yaml", [])  # whose records the plan is for
    data = Experiment(config).data()
    assert len(data.labels["train"]) == example.trained(600)
    assert set(data.parties) == set(example.PARTNERS)

    trained = vertizo(*train[:2], "--json", *sets("epochs=30")).well()
    assert json.loads(trained)["test_auc"] > 0.8
    assert vertizo(*report[:1], *here.glob("runs/*")).code == 0
    assert vertizo(*plan).code == 0
    guaranteed = vertizo(*private, "--json").well()
    assert json.loads(guaranteed)["privacy"]["epsilon"] <= 1.0


def test_a_larger_table_begins_as_the_small_one(vertizo: Vertizo, here: Path) -> None:
    assert vertizo("init", "large", "--customers", "700").code == 0
    text = (here / "large" / "customers.csv").read_text(encoding="utf-8")
    assert text.startswith(table().rstrip("\n"))
    assert len(text.splitlines()) == 701


def test_the_table_is_a_banks_and_the_same_everywhere() -> None:
    text = table()
    assert sha256(text.encode()).hexdigest()[:16] == "3b088ade70f0415a"
    rows = pl.read_csv(text.encode())
    assert rows.columns == list(example.COLUMNS)
    assert rows.height == example.RECORDS == rows["customer"].n_unique()
    assert 0.1 < (rows["defaulted"] == "yes").mean() < 0.35
    assert 18 <= rows["age"].min() <= rows["age"].max() < 90


def test_a_full_disk_leaves_nothing(vertizo: Vertizo, here: Path) -> None:
    for name in ("config.yaml", "private.yaml", "customers.csv"):
        for action in ("open", "write"):
            with disk_below(here) as disk:
                disk.fail_at((action, f"bank/{name}"), 1)
                ended = vertizo("init", here / "bank")
            assert disk.failed, name
            ended.refused()
            assert ended.line.endswith("/bank cannot be written to: No space left on device")
            assert list((here / "bank").iterdir()) == [], name


def test_nothing_is_replaced(vertizo: Vertizo, refuses: Refuses, here: Path) -> None:
    for name in ("config.yaml", "customers.csv"):
        folder = here / f"with {name}"
        folder.mkdir()
        (folder / name).write_text("mine")
        refuses.row(name, [f"{folder.name}/{name}", "exists already"], "init", folder.name)
        assert (folder / name).read_text() == "mine"
    (here / "taken").mkdir()
    (here / "taken" / "config.yaml").write_text((here / "with config.yaml/config.yaml").read_text())
    for words, command in (
        (["has a config.yaml, and is no run"], ["train", "--out", "taken"]),
        (["holds no run", "no run_name", "vertizo train"], ["predict", "taken"]),
        (["holds no run", "no run_name"], ["train", "--resume", "taken"]),
    ):
        refuses.row(command[0], words, *command)
    (here / "file").write_text("mine")
    refuses.row("a file", ["file cannot be written to"], "init", "file")


def test_the_files_of_real_parties_come_with_the_package(vertizo: Vertizo, here: Path) -> None:
    out = vertizo("init", "hos pital", "--parties").quietly()
    assert out.splitlines()[1] == "  cd 'hos pital'"
    names = {path.name for path in (here / "hos pital").iterdir()}
    for party in ("hospital", "lab", "clinic"):
        files = {f"{party}{end}" for end in (".csv", ".new.csv", ".yaml", ".agent.yaml")}
        assert files < names
        assert pl.read_csv(here / "hos pital" / f"{party}.csv").height == 489
        assert pl.read_csv(here / "hos pital" / f"{party}.new.csv").height == 60
    vertizo("init", "hos pital", "--parties").refused("exists already, and is kept")
