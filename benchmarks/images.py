"""Evaluations of DPZV's CNNs per CPU second: as they are, and with PyTorch's own pooling layer.

Batches of 64 images, in turn within one run, on one core and without gradients, as zeroth-order
clients evaluate them.

Run: ``python benchmarks/images.py [--json FILE]``
"""

from __future__ import annotations

from typing import Any

import report
import torch
from report import Rounds
from torch import nn

from vertizo.models.architectures.networks import MaxPool, cnn

BATCH = 64
CASES = {
    "MNIST, 7 clients": ((1, 4, 28), [8, 16], 8),
    "ModelNet10, 12 clients": ((1, 30, 30), [8, 16], 8),
    "CIFAR-10, 4 clients": ((3, 16, 16), [16, 32, 64, 64], 16),
}


def evaluations(module: nn.Module, images: torch.Tensor) -> Rounds:
    """Ten of a batch."""

    @torch.inference_mode()
    def ten() -> int:
        for _ in range(10):
            module(images)
        return 10

    return ten


def compare(name: str, seconds: float, repeats: int) -> dict[str, Any]:
    """Medians of both ways and of their ratio."""
    shape, channels, outputs = CASES[name]
    ours, images = cnn(shape, channels, outputs), torch.randn(BATCH, *shape)
    parts = [nn.MaxPool2d(p.kernel_size) if isinstance(p, MaxPool) else p for p in ours]
    theirs = nn.Sequential(*parts)
    with torch.inference_mode():
        assert torch.equal(ours(images), theirs(images))
    ways = {"vertizo": evaluations(ours, images), "pytorch": evaluations(theirs, images)}
    measured = report.rates(ways, seconds, repeats)
    medians = {way: report.median(measured, way) for way in ways}
    ratio = report.median_ratio(measured, "vertizo", "pytorch")
    print(f"{name:<24} {medians['vertizo']:>9,.0f} {medians['pytorch']:>9,.0f} {ratio:>6.2f}")
    return {"case": name, **medians, "vertizo/pytorch": ratio}


def main() -> None:
    options = report.parser(__doc__, seconds=1.0, repeats=7).parse_args()
    report.one_core()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'evaluations per CPU second':<24} {'vertizo':>7} {'pytorch':>9} {'ratio':>6}")
    rows = [compare(name, options.seconds, options.repeats) for name in CASES]
    summary = [
        report.line(
            f"CNN, {row['case']}",
            f"{row['vertizo']:,.0f} evaluations per CPU second",
            f"{row['vertizo/pytorch']:.2f} times those with PyTorch's pooling",
        )
        for row in rows
    ]
    report.write(options, {"rows": rows}, summary)


if __name__ == "__main__":
    main()
