"""Rounds per CPU second: the whole house against a plain PyTorch loop and the bare products.

One VFL-Cascaded round on MNIST: 2 clients of one linear layer 392→64, a server 128→128→10, one
thread. Three ways to make it, measured in turn within one run, so that their ratios mean something
on a shared machine:

* **house**: client party, method, codec, wire, simulator, server party: what `vertizo train` runs;
* **plain**: the loop that one would write by hand in PyTorch, with autograd at the server and
  nothing between the parties;
* **products**: the matrix products of the round alone, on tensors that are already there.

Run: ``python benchmarks/rounds.py [--seconds 0.5] [--repeats 7] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vertizo
from vertizo.config import parse
from vertizo.data import catalog, vertical
from vertizo.data.vertical import Pooled, VerticalData
from vertizo.errors import DataError
from vertizo.federation import build
from vertizo.memory import keep_freed_memory
from vertizo.randomness import Stream
from vertizo.server.losses import Classification

BATCHES = (64, 256, 2048)
SMOOTHING, CLIENT_RATE, SERVER_RATE = 1e-3, 1e-3, 1e-2
Round = Callable[[], None]


def mnist_halves() -> tuple[VerticalData, str]:
    """Upper and lower halves; noise of the same shape where the files are not to be had."""
    try:
        pooled, note = catalog.load("mnist"), "MNIST"
    except DataError:
        labels = torch.arange(60_000) % 10
        images = torch.randn(60_000, 1, 28, 28)
        pooled = Pooled("noise", images, labels, images[:10], labels[:10], Classification(10))
        note = "noise of MNIST's shape (its files were not found)"
    data = vertical.cut(
        pooled,
        split="halves",
        parties=2,
        columns=None,
        validation=0.0,
        limit=None,
        stream=Stream.from_seed(0),
    )
    return data, note


def house(data: VerticalData, batch: int) -> Round:
    """One round of the simulator, with everything it does in training."""
    config = parse(
        {
            "batch_size": batch,
            "epochs": 10_000,
            "method": {"name": "cascaded", "smoothing": SMOOTHING, "directions": "gaussian"},
            "client": {
                "model": {"name": "mlp", "outputs": 64},
                "optimizer": {"learning_rate": CLIENT_RATE, "momentum": 0},
            },
            "server": {
                "model": {"name": "mlp", "hidden": [128]},
                "optimizer": {"learning_rate": SERVER_RATE, "momentum": 0},
            },
        }
    )
    federation = build(config, data)
    federation.start(upload_table=False)

    def one() -> None:
        federation.simulator.step()

    return one


def plain(data: VerticalData, batch: int) -> Round:
    """The same round written by hand: two clients in turn, a table, one optimiser."""
    features = [part["table"].flatten(1) for part in data.features]
    labels = data.labels["table"]
    clients = [nn.Linear(392, 64) for _ in range(2)]
    server = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(server.parameters(), lr=SERVER_RATE)
    table = torch.zeros(2, len(labels), 64)
    turn = 0

    def one() -> None:
        nonlocal turn
        m, turn = turn % 2, turn + 1
        client = clients[m]
        ids = torch.randint(0, len(labels), (batch,))
        x, y = features[m][ids], labels[ids]
        with torch.no_grad():
            embeddings = client(x)
            directions = [torch.randn_like(w) for w in client.parameters()]
            for w, u in zip(client.parameters(), directions, strict=True):
                w.add_(u, alpha=SMOOTHING)
            shifted = client(x)
            for w, u in zip(client.parameters(), directions, strict=True):
                w.sub_(u, alpha=SMOOTHING)
        table[m, ids] = embeddings
        other = table[1 - m, ids]

        def join(own: Tensor) -> Tensor:
            return torch.cat([own, other] if m == 0 else [other, own], 1)

        loss = F.cross_entropy(server(join(embeddings)), y)
        with torch.no_grad():
            shifted_loss = F.cross_entropy(server(join(shifted)), y)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        slope = (shifted_loss.item() - loss.item()) / SMOOTHING
        with torch.no_grad():
            for w, u in zip(client.parameters(), directions, strict=True):
                w.sub_(u, alpha=CLIENT_RATE * slope)

    return one


def products(batch: int) -> Round:
    """Two client forwards, two server forwards, one server backward; nothing else."""
    x, w = torch.randn(batch, 392), torch.randn(392, 64)
    joined, first = torch.randn(batch, 128), torch.randn(128, 128)
    hidden, second, slopes = torch.randn(batch, 128), torch.randn(128, 10), torch.randn(batch, 10)

    def one() -> None:
        with torch.inference_mode():
            for _ in range(2):
                torch.mm(x, w)
                torch.mm(joined, first)
                torch.mm(hidden, second)
            torch.mm(slopes.t(), hidden)
            torch.mm(slopes, second.t())
            torch.mm(hidden.t(), joined)

    return one


def rate(round_: Round, seconds: float) -> float:
    """Rounds per CPU second, over about ``seconds``."""
    count, started = 0, time.process_time()
    while (spent := time.process_time() - started) < seconds:
        for _ in range(5):
            round_()
        count += 5
    return count / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=7, help="the median of so many is shown")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # for all three alike
    data, note = mnist_halves()
    print(f"VFL-Cascaded rounds per CPU second, one thread, {note}; medians of {options.repeats}")
    print(f"{'batch':>6} {'house':>9} {'plain':>9} {'products':>9}   house/plain  house/products")
    rows = []
    for batch in BATCHES:
        ways = {
            "house": house(data, batch),
            "plain": plain(data, batch),
            "products": products(batch),
        }
        for way in ways.values():
            rate(way, options.seconds / 2)
        measured = [
            {name: rate(way, options.seconds) for name, way in ways.items()}
            for _ in range(options.repeats)
        ]
        row = {name: statistics.median(m[name] for m in measured) for name in ways}
        row["house/plain"] = statistics.median(m["house"] / m["plain"] for m in measured)
        row["house/products"] = statistics.median(m["house"] / m["products"] for m in measured)
        rows.append({"batch": batch, **row})
        print(
            f"{batch:>6} {row['house']:>9,.0f} {row['plain']:>9,.0f} {row['products']:>9,.0f}"
            f"   {row['house/plain']:>11.2f}  {row['house/products']:>14.2f}"
        )
    if options.json is not None:
        facts = {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "vertizo": vertizo.__version__,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
        command = f"benchmarks/rounds.py --seconds {options.seconds} --repeats {options.repeats}"
        report = {"command": command, "data": note, **facts, "rows": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
