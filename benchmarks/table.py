"""Growth with records: the server's table, the whole house, and what a large table costs beside.

For 10³ to 10⁶ training records of 8 clients with embeddings of 64 numbers (at 10⁶ the table takes
2 GB):

* **table**: look-up (`points`) and update (`store`) of a batch of 2,048 random records together,
  warm, in memory and in a mapped file; median milliseconds on the clock and of the processor;
* **house**: rounds per CPU second of DPZV on synthetic data in memory, batch 256, everything that
  training does between evaluations; the first round draws an epoch's order and is not counted;
* **beside**: seconds to upload all embeddings at the start, to write a checkpoint and to load it
  again, and by how much a checkpoint raises the memory that is the process's own.

One thread. Linux only. Run: ``python benchmarks/table.py [--records 1000 ...] [--json FILE]``
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import report
import torch

from vertizo.config.schema import parse
from vertizo.core.arrays import storage
from vertizo.core.memory import keep_freed_memory
from vertizo.core.randomness import Stream
from vertizo.data import vertical
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.models.losses import Classification
from vertizo.party.table import EmbeddingTable
from vertizo.run.loop.federation import Federation, build
from vertizo.run.results import checkpoint

RECORDS = (1_000, 10_000, 100_000, 1_000_000)
CLIENTS, DIM, COLUMNS = 8, 64, 8
BATCH, HOUSE_BATCH = 2_048, 256
WARM, REPEATS = 30, 200
SECONDS = 3.0


def table(records: int, *, mapped: bool) -> dict[str, float]:
    """Median milliseconds of a look-up and an update."""
    with patch.object(storage, "zeros", storage.mapped if mapped else storage.zeros):
        held = EmbeddingTable(records, [DIM] * CLIENTS)
    held.values.fill_(1)  # every page is there
    rng = np.random.default_rng(0)
    clock, processor = [], []
    size = min(BATCH, records)
    embeddings = torch.randn(2, size, DIM)
    for number in range(WARM + REPEATS):
        ids = torch.from_numpy(rng.permutation(records)[:size])
        client = number % CLIENTS
        started, used = time.perf_counter(), time.process_time()
        held.store(client, ids, embeddings[0], number)
        held.points(ids, [(client, embeddings)])  # let go of, as after a round
        processor.append(time.process_time() - used)
        clock.append(time.perf_counter() - started)
    return {
        "milliseconds": statistics.median(clock[WARM:]) * 1e3,
        "cpu_milliseconds": statistics.median(processor[WARM:]) * 1e3,
    }


def made(records: int) -> Federation:
    rows, tests = torch.randn(records, CLIENTS * COLUMNS), 1_000
    labels = (rows[:, 0] > 0).long()
    pooled = Pooled("noise", rows, labels, rows[:tests], labels[:tests], Classification(2))
    options = DataConfig(split="even", parties=CLIENTS, validation=0.0)
    data = vertical.cut(pooled, options, Stream.from_seed(0))
    config = parse(
        {
            "batch_size": HOUSE_BATCH,
            "epochs": 10_000,
            "method": {"name": "dpzv"},
            "client": {"model": {"name": "mlp", "outputs": DIM}},
            "server": {"model": {"name": "mlp", "hidden": [128]}},
        }
    )
    return build(config, data)


def anonymous() -> int:
    """KiB that are the process's own and no file's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("RssAnon:")[1].split()[0])


def house(records: int) -> dict[str, float]:
    """Rounds per CPU second, and what goes beside them."""
    federation = made(records)
    used = time.process_time()
    federation.start(upload_table=True)
    found = {"upload_cpu_seconds": time.process_time() - used}
    step = federation.simulator.step
    for _ in range(4 * CLIENTS):
        step()
    rounds, used = 0, time.process_time()
    while time.process_time() - used < SECONDS:
        step()
        rounds += 1
    found["rounds_per_cpu_second"] = rounds / (time.process_time() - used)
    with tempfile.TemporaryDirectory(dir=storage.directory()) as folder:
        path = Path(folder, "last.safetensors")
        before, used, started = anonymous(), time.process_time(), time.perf_counter()
        checkpoint.save(path, federation.state())
        found["checkpoint_cpu_seconds"] = time.process_time() - used
        found["checkpoint_seconds"] = time.perf_counter() - started
        found["checkpoint_bytes"] = path.stat().st_size
        used = time.process_time()
        federation.load(checkpoint.load(path))
        found["load_cpu_seconds"] = time.process_time() - used
        found["checkpoint_memory_mebibytes"] = (anonymous() - before) / 1024
    return found


def main() -> None:
    parser = report.plain_parser(__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=RECORDS)
    parser.add_argument("--measure", type=int, help="one size, as JSON")
    options = parser.parse_args()
    if options.measure is not None:
        torch.set_num_threads(1)
        keep_freed_memory()  # as training does
        found: dict[str, Any] = {"records": options.measure, "house": house(options.measure)}
        found["memory"] = table(options.measure, mapped=False)
        found["mapped"] = table(options.measure, mapped=True)
        print(json.dumps(found))
        return
    print(
        f"{'records':>9} {'memory ms (CPU)':>17} {'mapped ms (CPU)':>17} {'rounds/s':>9} "
        f"{'upload s':>9} {'checkpoint s (CPU)':>19} {'own MiB more':>13}"
    )
    rows = []
    for records in options.records:
        row = report.of_its_own(__file__, str(records))
        rows.append(row)
        print(
            f"{records:>9} "
            + " ".join(
                f"{row[at]['milliseconds']:>9.2f} ({row[at]['cpu_milliseconds']:.2f})".rjust(17)
                for at in ("memory", "mapped")
            )
            + f" {row['house']['rounds_per_cpu_second']:>9.0f}"
            + f" {row['house']['upload_cpu_seconds']:>9.2f}"
            + f" {row['house']['checkpoint_seconds']:>11.2f}"
            + f" ({row['house']['checkpoint_cpu_seconds']:.2f})".rjust(8)
            + f" {row['house']['checkpoint_memory_mebibytes']:>13.1f}",
            flush=True,
        )
    summary = [
        report.line(
            f"table of {row['records']:,} records × 8 clients × 64, look-up and update of a batch",
            f"{row['memory']['milliseconds']:.2f} ms",
            f"{row['mapped']['milliseconds']:.2f} ms in a mapped file",
        )
        for row in rows
    ]
    report.write(options, {"rows": rows}, summary)


if __name__ == "__main__":
    main()
