"""Rounds per second with models on the processor and on a graphics card, in turn within one run.

By the clock of the wall, since a card's time is no processor's. Images are random numbers. Then
passes per second of a ResNet-18 forwards and backwards on the card: as Vertizo makes them, and as
one CUDA graph that is played again.

Run: ``python benchmarks/devices.py [--only czofo] [--json FILE]``, where PyTorch finds a card.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import report
import torch
from report import Rounds
from torch import Tensor, nn

from vertizo.config.schema import parse
from vertizo.data.vertical import VerticalData
from vertizo.models import resnet
from vertizo.models.base import Points, Where
from vertizo.models.losses import Classification
from vertizo.models.torch import wrap
from vertizo.run.federation import build

RECORDS, CLASSES = 1024, 10
WIDTHS = (16, 64)


def _patches(device: str) -> dict[str, Any]:
    model = {"name": "cnn", "channels": [16, 32, 64, 64], "outputs": 16}
    return {
        "data": {"split": "patches"},
        "batch_size": 64,
        "method": {"name": "dpzv"},
        "client": {"model": model, "device": device},
    }


def _sum(width: int, device: str) -> dict[str, Any]:
    model = {"name": "resnet18", "width": width, "outputs": CLASSES}
    return {
        "data": {"split": "sides"},
        "batch_size": 128,
        "method": {"name": "czofo", "num_directions": 10},
        "client": {"model": model, "device": device},
        "server": {"model": {"name": "sum"}},
    }


def _split_resnet(width: int, device: str) -> dict[str, Any]:
    return {
        "data": {"split": "sides"},
        "batch_size": 64,
        "method": {"name": "cascaded"},
        "client": {"model": {"name": "resnet18-stem", "width": width}},
        "server": {"model": {"name": "resnet18-rest", "width": width}, "device": device},
    }


CASES: dict[str, tuple[Callable[..., dict[str, Any]], list[tuple[int, ...]]]] = {
    "dpzv, CNN at 4 clients": (_patches, [(3, 16, 16)] * 4),
    **{
        f"czofo, ResNet-18 of width {width} at 2 clients": (partial(_sum, width), [(3, 32, 16)] * 2)
        for width in WIDTHS
    },
    **{
        f"cascaded, ResNet-18 of width {width} at the server": (
            partial(_split_resnet, width),
            [(3, 32, 16)] * 2,
        )
        for width in WIDTHS
    },
}


def rounds(case: str, device: str, threads: int) -> Rounds:
    """Rounds of the simulator, with everything it does in training."""
    settings, shapes = CASES[case]
    tree = settings(device)
    tree["data"] |= {"name": "cifar-10", "parties": len(shapes)}
    images = [torch.randn(RECORDS, *shape) for shape in shapes]
    labels = torch.randint(CLASSES, (RECORDS,))
    data = VerticalData(
        name="benchmark",
        task=Classification(CLASSES),
        parties=tuple(f"client{m}" for m in range(len(shapes))),
        features=tuple({"train": x, "validation": x[:10], "test": x[:10]} for x in images),
        labels={"train": labels, "validation": labels[:10], "test": labels[:10]},
        fitted_scaling=False,
        are_images=True,
    )
    made = build(parse({"epochs": 1_000_000, "threads": threads, **tree}), data)
    made.start(upload_table=False)

    def some() -> int:
        torch.set_num_threads(threads)
        for _ in range(2):
            made.simulator.step()
        return 2

    return some


def rate(rounds: Rounds, seconds: float) -> float:
    """Rounds per second of the wall's clock, over about ``seconds``."""
    count, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        count += rounds()
    return count / spent


def in_turn(
    ways: dict[str, Rounds], seconds: float, repeats: int
) -> tuple[dict[str, float], float]:
    """Medians of two ways and of the ratio of the second to the first, after a warm-up."""
    for way in ways.values():
        rate(way, seconds / 2)
    timed = {name: partial(rate, way, seconds) for name, way in ways.items()}
    measured = report.in_turn(timed, repeats)
    first, second = ways
    medians = {name: report.median(measured, name) for name in ways}
    return medians, report.median_ratio(measured, second, first)


def compare(case: str, seconds: float, repeats: int) -> dict[str, Any]:
    """Medians of all ways, and of the card's ratios to the processor's."""
    every = os.cpu_count() or 1
    ways = {"every core": rounds(case, "cpu", every), "card": rounds(case, "cuda", 1)}
    medians, ratio = in_turn(ways, seconds, repeats)
    print(f"{case:<50}", *(f"{value:>9,.1f}" for value in (*medians.values(), ratio)), flush=True)
    return {"case": case, "cores": every, **medians, "card/every core": ratio}


def passes(width: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Of 64 records through what follows a stem, and their gradients back to the parameters.

    As `TorchModel` makes them, and as one CUDA graph; in the same arithmetic.
    """
    rows, slopes = torch.randn(64, width * 32 * 32), torch.randn(64, CLASSES) / 64

    def rest() -> nn.Module:
        size = rows.shape[1]
        return resnet.rest(size, CLASSES, image=(32, 32), parts=2, assemble="width", width=width)

    model = wrap(rest(), Where("cuda"))
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        replayed = _graphed(rest().cuda(), rows, slopes)

    def eager() -> int:
        _, pullback = model.forward(Points(rows))
        pullback(slopes)
        return 1

    medians, ratio = in_turn({"eager": eager, "graph": replayed}, seconds, repeats)
    print(f"passes, width {width:<36}", *(f"{v:>9,.1f}" for v in (*medians.values(), ratio)))
    return {"case": f"passes, width {width}", **medians, "graph/eager": ratio}


def _graphed(module: nn.Module, rows: Tensor, slopes: Tensor) -> Rounds:
    """The same work, captured once; only inputs and results move between card and processor."""
    at, back, weights = rows.cuda(), slopes.cuda(), list(module.parameters())

    def work() -> tuple[Tensor, Tensor]:
        outputs = module(at)
        gradients = torch.autograd.grad(outputs, weights, back)
        return outputs.detach(), torch.cat([each.reshape(-1) for each in gradients])

    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs, _ = work()

    def replayed() -> int:
        at.copy_(rows)
        back.copy_(slopes)
        graph.replay()
        outputs.cpu()
        return 1

    return replayed


def main() -> None:
    parser = report.parser(__doc__, seconds=1.0, repeats=3)
    parser.add_argument("--only", default="", help="cases with these words in them")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device here")
    torch.manual_seed(0)
    every = f"{os.cpu_count()} cores"
    print(f"{'rounds per second':<50}  {every}     card    ratio")
    rows = [
        compare(case, options.seconds, options.repeats) for case in CASES if options.only in case
    ]
    torch.set_num_threads(1)
    graphs = [passes(width, options.seconds, options.repeats) for width in WIDTHS]
    summary = [
        report.line(
            f"on a card: {row['case']}",
            f"{row['card']:,.0f} rounds/s",
            f"{row['card/every core']:.1f} of {row['cores']} cores",
        )
        for row in rows
    ]
    found = {"card": torch.cuda.get_device_name(), "rows": rows, "passes": graphs}
    report.write(options, found, summary)


if __name__ == "__main__":
    main()
