"""What was begun on one table does not go on with another of the same name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.command_line import Vertizo, sets
from tests.rows import each

from vertizo.run.results.folder import RunFolder

SETTINGS = sets(
    "data={name: table, path: people.csv, label: y, columns: {a: [x], b: [z]}, label_holder: null}",
    "batch_size=16",
    "epochs=2",
)
COMMANDS = {
    "train": ("train", *SETTINGS, "--out", "train"),
    "compare": ("compare", *SETTINGS, "--methods", "vafl", "--no-controls", "--out", "compare"),
    "tune": ("tune", *SETTINGS, "--search", "batch_size=8..16", "--trials", "2", "--out", "tune"),
    "worth": ("worth", *SETTINGS, "--no-shapley", "--repeats", "0", "--out", "worth"),
}


def write(seed: int) -> None:
    """Features are always the same, so that nothing but labels tells two tables apart."""
    features, labels = np.random.default_rng(0), np.random.default_rng(seed)
    rows = (
        f"{x:.3f},{z:.3f},{y}"
        for (x, z), y in zip(features.normal(size=(64, 2)), labels.integers(0, 2, 64), strict=True)
    )
    Path("people.csv").write_text("\n".join(["x,z,y", *rows]) + "\n")


@pytest.mark.full
@each("command", list(COMMANDS))
@pytest.mark.usefixtures("here")
def test_nothing_goes_on_with_another_table(vertizo: Vertizo, command: str) -> None:
    """Figures of the two would stand side by side, as if of one."""
    write(1)
    arguments = COMMANDS[command]
    assert vertizo(*arguments).code == 0
    out = Path(command)
    again = ("train", "--resume", "train") if command == "train" else arguments
    if command == "train":  # a finished run is only shown
        (out / "summary.json").unlink()
    write(2)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    offered = "start another run" if command == "train" else "name another --out"
    vertizo(*again).refused("people.csv", "another", offered)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    write(1)
    assert vertizo(*again).code == 0


@pytest.mark.usefixtures("here")
def test_a_run_that_kept_no_digests_goes_on(vertizo: Vertizo) -> None:
    write(1)
    assert vertizo(*COMMANDS["train"]).code == 0
    (Path("train") / "provenance.json").unlink()
    write(2)
    assert RunFolder(Path("train")).provenance() is None
    (Path("train") / "summary.json").unlink()
    assert vertizo("train", "--resume", "train").code == 0
