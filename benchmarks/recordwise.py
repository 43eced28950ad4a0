"""What it costs to keep records apart in a user's server module: rounds per CPU second.

DPZV and VAFL with replies under noise on digits (halves of them at 2 clients, batches
of 64), with a server of two layers: of Vertizo's own; the same as a module of PyTorch's layers,
which is recognised; as a module of the user's that ``torch.vmap`` takes; and as one that it does
not take, because of a hook. Each beside itself without noise, where nothing is kept apart.

Run: ``python benchmarks/recordwise.py [--repeats 5] [--seconds 2] [--json FILE]``
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import report
import torch
from torch import Tensor, nn

from vertizo.config.schema import parse
from vertizo.core.randomness import Stream
from vertizo.data.prepare import prepare
from vertizo.run.loop.federation import Federation, build

NOISE = {"privacy": {"mechanism": "gaussian", "clip": 1.0, "noise_std": 1.0}}
MODES: dict[str, dict[str, Any]] = {"": {}, " under noise": NOISE}


class Own(nn.Module):
    """Two layers of a user's."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.layers(rows)
        return found


class Hooked(Own):
    """One with a hook in the backward pass, which leaves gradients as they are."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.layers.register_full_backward_hook(lambda module, inwards, outwards: None)


def stacked(inputs: int, outputs: int) -> nn.Module:
    """PyTorch's layers and nothing else."""
    return Own(inputs, outputs).layers


SERVERS: dict[str, dict[str, Any]] = {
    "Vertizo's own": {"name": "mlp", "hidden": [32]},
    "PyTorch's layers": {"name": "module", "path": f"{__file__}:stacked"},
    "a module": {"name": "module", "path": f"{__file__}:Own"},
    "a module with a hook": {"name": "module", "path": f"{__file__}:Hooked"},
}


def federation(method: str, server: dict[str, Any], noise: dict[str, Any]) -> Federation:
    """A small one that never ends by itself."""
    options = {"data": {"name": "digits", "parties": 2}, "server": {"model": server}, **noise}
    config = parse({"seed": 0, "epochs": 10**6, "method": {"name": method}, **options})
    made = build(config, prepare(config.data, Stream.from_seed(0)))
    made.start(upload_table=False)
    return made


def stepped(made: Federation, rounds: int = 5) -> int:
    """So many rounds."""
    for _ in range(rounds):
        made.simulator.step()
    return rounds


def main() -> None:
    options = report.parser(__doc__, seconds=2.0, repeats=5).parse_args()
    report.one_core()
    torch.set_num_threads(1)
    rows, summary = [], []
    for method in ("dpzv", "vafl"):
        ways: dict[str, Callable[[], int]] = {}
        for name, server in SERVERS.items():
            for words, noise in MODES.items():
                ways[name + words] = partial(stepped, federation(method, server, noise))
        found = report.rates(ways, options.seconds, options.repeats)
        for name in SERVERS:
            plain, noised = (report.median(found, name + each) for each in ("", " under noise"))
            ratio = report.median_ratio(found, name + " under noise", name)
            rows.append({"method": method, "server": name, "plain": plain, "noised": noised})
            rows[-1]["ratio"] = ratio
            print(f"{method:<6} {name:<22} {plain:>7.0f} {noised:>7.0f} rounds/s, {ratio:.2f}")
            figure = f"{noised:.0f} rounds/s under noise"
            summary.append(report.line(f"{method}, {name}", figure, f"{plain:.0f} without"))
    report.write(options, {"rows": rows}, summary)


if __name__ == "__main__":
    main()
