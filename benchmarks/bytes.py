"""Bytes to 60, 80, 90 and 95 % running training accuracy on MNIST, every method of one table.

Two clients, upper and lower halves, as ``experiments/bytes_mnist_2.yaml`` sets them: all methods
with 4 bits a number, rounds in step and batches by number, and rates of their own. Counted is what
both sides sent until the accuracy on the records of a quarter of an epoch, each counted before the
server's step on it, was first that high; "–" where three epochs did not reach it. Bytes do not
depend on the machine, but for the last digits of sums.

Run: ``python benchmarks/bytes.py [--seed 0] [--out FOLDER] [--json FILE]``; with ``--out`` a
benchmark that was stopped goes on.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import report

from vertizo.lab import comparison
from vertizo.lab.comparison import Row
from vertizo.lab.engines import Processes

CONFIG = Path(__file__).parents[1] / "experiments" / "bytes_mnist_2.yaml"
TARGETS = (0.6, 0.8, 0.9, 0.95)
PUBLISHED = {0.6: 16, 0.8: 24, 0.9: 39}
"""VFL-CZOFO's megabytes in its Table 3, the least of any method there."""


def measure(seed: int, folder: Path) -> list[Row]:
    """Every method of the experiment once."""
    configs = comparison.configurations(CONFIG, [f"seed={seed}"], [])
    runs = comparison.plan(configs, 1, folder, controls=())
    comparison.check(runs)
    summaries = comparison.execute(runs, Processes(1, reused=True))
    return comparison.rows(runs, summaries, TARGETS, "train")


def megabytes(count: int | None) -> str:
    """For the table."""
    return "–" if count is None else f"{count / 1e6:.2f}"


def show(found: list[Row]) -> None:
    """One line a method, MB of 10⁶ bytes."""
    print(f"{'MB to':<18}" + "".join(f"{f'{100 * t:g} %':>8}" for t in TARGETS) + f"{'test %':>9}")
    for row in found:
        figures = "".join(f"{megabytes(row.bytes_to[t][0]):>8}" for t in TARGETS)
        print(f"{row.label:<18}{figures}{100 * row.figures('test_accuracy')[0]:>9.2f}")
    published = "".join(f"{PUBLISHED.get(t, '–'):>8}" for t in TARGETS)
    print(f"{'published':<18}{published}")


def summary(found: list[Row]) -> list[dict[str, str]]:
    """A line a method."""
    published = "published, VFL-CZOFO: " + " / ".join(f"{mb}" for mb in PUBLISHED.values())
    return [
        report.line(
            f"{row.label}, MNIST, 2 clients: MB to 60 / 80 / 90 / 95 %",
            " / ".join(megabytes(row.bytes_to[t][0]) for t in TARGETS),
            published if place == 0 else "",
        )
        for place, row in enumerate(found)
    ]


def main() -> None:
    parser = report.plain_parser(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="keeps the runs, and goes on with those in it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(options.seed, options.out or Path(scratch) / "runs")
    show(found)
    results = {
        "seed": options.seed,
        "bytes_by": "train",
        "published_mb": {f"{100 * t:g} %": mb for t, mb in PUBLISHED.items()},
        "methods": {row.label: row.as_dict() for row in found},
    }
    report.write(options, results, summary(found))


if __name__ == "__main__":
    main()
