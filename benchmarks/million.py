"""A large table in Parquet: seconds and peak memory to train one epoch on it and to predict it.

A million rows of 40 columns over 8 parties: 32 numbers, of which one value in a hundred is
missing, and 8 categories of 50 names. `vertizo train` and `vertizo predict` run as commands, each a
process whose peak of resident memory the system keeps; the size of the file is beside it. Linux
only.

Run: ``python benchmarks/million.py [--rows 1000000] [--json FILE]``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import report
import yaml

NUMBERS, CATEGORIES, NAMES, PARTIES = 32, 8, 50, 8
LIMIT = 8.0
"""Gigabytes that either command may take at most."""


def write_table(path: Path, rows: int, seed: int) -> None:
    """Rows whose label depends on a few columns of several parties."""
    chance = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {"id": np.arange(rows)}
    total = np.zeros(rows)
    for place in range(NUMBERS):
        values = chance.normal(size=rows)
        if place % 4 == 0:
            total += values
        values[chance.random(rows) < 0.01] = np.nan
        columns[f"number{place}"] = values
    names = np.array([f"name {number}" for number in range(NAMES)])
    for place in range(CATEGORIES):
        codes = chance.integers(NAMES, size=rows)
        if place % 2 == 0:
            total += (codes % 2) - 0.5
        columns[f"category{place}"] = names[codes]
    columns["label"] = np.where(total + chance.normal(size=rows) > 0, "yes", "no")
    pl.DataFrame(columns).with_columns(pl.col("^number.*$").fill_nan(None)).write_parquet(path)


def measured(folder: Path, *words: str) -> dict[str, float]:
    """Seconds and peak memory of a command; it ends here if the command fails."""
    log, started = folder / "log", time.perf_counter()
    with log.open("wb") as out:
        command = [sys.executable, "-m", "vertizo", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(log.read_text())
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_gigabytes": usage.ru_maxrss * 1024 / 1e9}


def main() -> None:
    parser = report.plain_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        folder = Path(made)
        for seed, name in enumerate(("old", "new")):
            write_table(folder / f"{name}.parquet", options.rows, seed)
        data = {"name": "table", "path": "old.parquet", "label": "label", "parties": PARTIES}
        tree = {
            "data": {**data, "drop": ["id"], "split": "columns"},
            "epochs": 1,
            "batch_size": 1024,
            "method": {"name": "dpzv", "directions": "rademacher"},
        }
        (folder / "train.yaml").write_text(yaml.safe_dump(tree))
        found = {"train": measured(folder, "train", "train.yaml", "--out", "run")}
        given = ("--data", "new.parquet", "--out", "scores.parquet", "--id", "id")
        found["predict"] = measured(folder, "predict", "run", *given)
        rows = pl.scan_parquet(folder / "scores.parquet").select(pl.len()).collect().item()
        if rows != options.rows:
            raise SystemExit(f"{rows:,} of {options.rows:,} records were predicted")
        size = (folder / "old.parquet").stat().st_size / 1e9
        summary = json.loads((folder / "run" / "summary.json").read_text())
    lines = []
    for name, figures in found.items():
        seconds, peak = figures["seconds"], figures["peak_gigabytes"]
        print(f"{name:8} {seconds:7.1f} s  {peak:5.2f} GB at its peak", flush=True)
        what = f"{name}, {options.rows:,} rows of {NUMBERS + CATEGORIES} columns"
        lines.append(report.line(what, f"{seconds:.0f} s", f"{peak:.1f} GB at its peak"))
        if peak > LIMIT:
            print(f"more than {LIMIT:g} GB")
    results = {
        "rows": options.rows,
        "file_gigabytes": size,
        "rounds": summary["rounds"],
        "test_auc": summary.get("test_auc"),
        **found,
    }
    report.write(options, results, lines, ("torch", "numpy", "polars"))


if __name__ == "__main__":
    main()
