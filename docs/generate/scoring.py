"""What online scores take, as a table: of ``benchmarks/results/scoring.json``."""

from __future__ import annotations

import json
from pathlib import Path

from options import table

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "scoring.json"
CASES = {
    "one": "one record at a time, one caller",
    "eight": "one record at a time, eight callers",
    "batches": "1,000 records at a time, four callers",
    "kept": "the same, embeddings kept already",
}


def figures() -> str:
    """A row for each case and way, and how they were measured."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    head = ("asked for", "by", "median, ms", "95th percentile", "99th", "records a second")
    rows = []
    for row in found["rows"]:
        spans = (f"{row[name]:.1f}" for name in ("median_ms", "p95_ms", "p99_ms"))
        rows.append((CASES[row["case"]], row["way"], *spans, f"{row['records_a_second']:,.0f}"))
    made = f"`{found['command']}`, commit {found['commit']}"
    return f"{table(head, rows)}\n{made}.\n"
