"""Several runs at once against one after another, in one process on one thread.

The rounds of S runs that differ in their seed, as `vertizo compare --seeds S` makes them, advanced
together (`vertizo.batched`) and with the ordinary simulator. The records are those of digits with
its four clients, or noise of MNIST's shape: 2 clients of one linear layer 392→64 and a server
128→128→10. What is compared is a round's CPU time; since all runs have as many rounds, the ratio is
that of runs per second. Evaluations and checkpoints, which are made run by run either way, are left
out. Both ways are measured in turn within one process, so that their ratios mean something on a
shared machine.

Run: ``python benchmarks/batched.py [--seconds 0.5] [--repeats 5] [--json FILE]``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import report
from report import Rounds
from vertizo.batched.lockstep import Lockstep
from vertizo.batched.members import Member
from vertizo.config import ExperimentConfig, parse
from vertizo.data import vertical
from vertizo.data.prepare import prepare
from vertizo.data.vertical import Pooled, VerticalData
from vertizo.defaults import complete
from vertizo.federation import build
from vertizo.memory import keep_freed_memory
from vertizo.randomness import Stream
from vertizo.server.losses import Classification

RUNS = (1, 4, 8, 16, 32)
METHODS = ("cascaded", "dpzv")
RECORDS = 6000
MNIST = {
    "client": {"model": {"name": "mlp", "outputs": 64}},
    "server": {"model": {"name": "mlp", "hidden": [128]}},
}


def records(shape: str) -> VerticalData:
    """What all runs train on."""
    if shape == "digits":
        return prepare(parse({"data": {"validation": 0}}).data, Stream.from_seed(0))
    images, labels = torch.randn(RECORDS, 1, 28, 28), torch.arange(RECORDS) % 10
    pooled = Pooled("noise", images, labels, images[:10], labels[:10], Classification(10))
    return vertical.cut(
        pooled,
        split="halves",
        parties=2,
        columns=None,
        validation=0.0,
        limit=None,
        stream=Stream.from_seed(0),
    )


def members(shape: str, method: str, batch_size: int, runs: int) -> list[Member]:
    """Runs of different seeds, started."""
    data = records(shape)
    found = []
    for seed in range(runs):
        config: ExperimentConfig = parse(
            {
                "seed": seed,
                "epochs": 100_000,
                "batch_size": batch_size,
                "method": {"name": method},
                "data": {"validation": 0},
                **(MNIST if shape == "mnist" else {}),
            }
        )
        config = complete(config, data)
        federation = build(config, data)
        federation.start(upload_table=False)
        found.append(Member(federation, config))
    return found


def together(runs: Sequence[Member]) -> Rounds:
    """The rounds of all runs at once."""
    lockstep = Lockstep(runs)

    def some() -> int:
        made, failures = lockstep.step()
        assert not failures, "the rates are small"
        return len(made)

    return some


def in_turn(runs: Sequence[Member]) -> Rounds:
    """A round of every run, one after another."""

    def some() -> int:
        for member in runs:
            member.federation.simulator.step()
        return len(runs)

    return some


def main() -> None:
    parser = report.parser(__doc__, seconds=0.3, repeats=5)
    parser.add_argument("--shapes", default="digits,mnist")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--batch-sizes", default="64")
    parser.add_argument("--runs", default=",".join(map(str, RUNS)))
    options = parser.parse_args()
    report.one_core()
    torch.set_num_threads(1)
    keep_freed_memory()  # for both alike
    np.seterr(all="ignore")  # as training has it
    print(f"rounds of all runs together per CPU second, medians of {options.repeats}")
    heading = ("shape", "method", "batch", "runs", "in turn", "at once", "ratio")
    widths = (8, 9, 6, 5, 9, 9, 6)
    print(*(f"{name:>{width}}" for name, width in zip(heading, widths, strict=True)))
    rows: list[dict[str, Any]] = []
    for shape in options.shapes.split(","):
        for method in options.methods.split(","):
            for batch_size in map(int, options.batch_sizes.split(",")):
                for runs in map(int, options.runs.split(",")):
                    ways = {
                        "in_turn": in_turn(members(shape, method, batch_size, min(runs, 4))),
                        "at_once": together(members(shape, method, batch_size, runs)),
                    }
                    measured = report.rates(ways, options.seconds, options.repeats)
                    row = {name: report.median(measured, name) for name in ways}
                    ratio = report.median_ratio(measured, "at_once", "in_turn")
                    rows.append(
                        {"shape": shape, "method": method, "batch_size": batch_size, "runs": runs}
                        | row
                        | {"ratio": ratio}
                    )
                    print(
                        f"{shape:>8} {method:>9} {batch_size:>6} {runs:>5} {row['in_turn']:>9,.0f}"
                        f" {row['at_once']:>9,.0f} {ratio:>6.2f}",
                        flush=True,
                    )
    most = max(row["runs"] for row in rows)
    summary = [
        report.line(
            f"{row['method']}, {row['shape']}, {most} runs at once",
            f"{row['ratio']:.2f} times the rounds",
            "one after another",
        )
        for row in rows
        if row["runs"] == most
    ]
    report.write(options, {"rows": rows}, summary)


if __name__ == "__main__":
    main()
