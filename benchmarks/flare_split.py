"""Split learning on MNIST by NVIDIA FLARE: the setting of ``experiments/peers/flare_mnist.yaml``.

The setting is that of FLARE's ``examples/advanced/collab/simple_split_learning``; this is code of
our own over FLARE's documented calls, in its simulator. One client holds the pixels and the lower
layer, the label holder the upper one; activations and their gradients cross as tensors. Seconds are
wall-clock ones of the 200 steps, without the simulator's start. Bytes are of the numbers alone, 4
each.

Run: ``VERTIZO_DATA=… python benchmarks/flare_split.py [--seeds 3] [--json FILE]``
"""

# FLARE and PyTorch have untyped parts here.
# mypy: allow-untyped-decorators, allow-untyped-calls, no-warn-return-any

from __future__ import annotations

import importlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv
from torch import Tensor, nn

from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare
from vertizo.data.vertical import VerticalData

STEPS, BATCH, WIDTH, RATE = 200, 64, 256, 0.05


def mnist() -> VerticalData:
    """All pixels at one client, as Vertizo reads them."""
    return prepare(DataConfig(name="mnist", parties=1, validation=0.0), Stream.from_seed(0))


def batch(step: int) -> slice:
    """The records of a step: one order for all seeds, as FLARE's example has it."""
    return slice(step * BATCH, (step + 1) * BATCH)


class Pixels:
    """The client: images, and a layer of 256 with ReLU."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @collab.init
    def begin(self) -> None:
        torch.manual_seed(self.seed)
        self.features = mnist().features[0]
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(784, WIDTH), nn.ReLU())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)

    @collab.publish
    def forward(self, step: int) -> Tensor:
        self.sent = self.model(self.features["train"][batch(step)])
        return self.sent.detach()

    @collab.publish
    def backward(self, gradients: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.sent.backward(gradients)
        self.optimizer.step()

    @collab.publish
    def test(self) -> Tensor:
        with torch.no_grad():
            return self.model(self.features["test"])


class Labels:
    """The label holder: labels, and the last layer."""

    def __init__(self, seed: int, out: str) -> None:
        self.seed, self.out = seed, out

    @collab.main
    def train(self) -> None:
        torch.manual_seed(1000 + self.seed)
        labels = mnist().labels
        model = nn.Linear(WIDTH, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        client = collab.clients[0](timeout=300)
        started, sent = time.perf_counter(), 0
        for step in range(STEPS):
            activations = client.forward(step).requires_grad_(True)
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(activations), labels["train"][batch(step)])
            loss.backward()
            client.backward(activations.grad)
            optimizer.step()
            sent += 4 * activations.numel()
        seconds = time.perf_counter() - started
        right = model(client.test()).argmax(1) == labels["test"]
        found = {"seconds": seconds, "test_accuracy": float(right.double().mean())}
        Path(self.out).write_text(json.dumps(found | {"bytes_up": sent, "bytes_down": sent}))


def measure(seed: int) -> dict[str, Any]:
    """One job in FLARE's simulator."""
    me: Any = importlib.import_module("flare_split")  # the sites know this file by its name
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        recipe = CollabRecipe(
            job_name="split",
            server=me.Labels(seed, str(out)),
            client=me.Pixels(seed),
            sync_task_timeout=300,
        )
        recipe.execute(SimEnv(num_clients=1, workspace_root=folder, log_config="ERROR"))
        return {"seed": seed, **json.loads(out.read_text())}


def main() -> None:
    import report  # not needed at the sites, which are given this file alone

    parser = report.plain_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        rows.append(measure(seed))
        print(json.dumps(rows[-1]), flush=True)
    accuracy = statistics.mean(row["test_accuracy"] for row in rows)
    seconds = statistics.median(row["seconds"] for row in rows)
    text = f"{100 * accuracy:.2f} %, {seconds:.1f} s"
    summary = [report.line("FLARE, split learning, MNIST, 200 steps: test accuracy, time", text)]
    report.write(options, {"steps": STEPS, "batch": BATCH, "rows": rows}, summary, ("nvflare",))


if __name__ == "__main__":
    main()
