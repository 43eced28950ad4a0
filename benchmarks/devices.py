"""Rounds per second on a graphics card: Vertizo's, and loops written by hand beside them.

By the clock of the wall, since a card's time is no processor's. For each case Vertizo's simulation
wholly on the card, and the same method as a loop of forty lines (`ways/on_card.py`), eager and with
each round as one CUDA graph, in the precision that is Vertizo's default; of a client of 85 million
parameters two forward passes are the limit, and its peak of memory is held against theirs. Features
are random numbers.

Run: ``python benchmarks/devices.py [--only czofo] [--precision float32] [--json FILE]``, where
PyTorch finds a card. Five minutes; what was measured is written after each case.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args
from unittest import mock

import report
import torch
from report import Rounds
from torch import Tensor
from ways import on_card
from ways.on_card import CLASSES, DEVICE, RECORDS, Loop

from vertizo.config.schema import parse
from vertizo.core.arrays import graphs
from vertizo.core.names import Precision
from vertizo.data.vertical import VerticalData
from vertizo.models.architectures import networks, resnet
from vertizo.models.losses import Classification
from vertizo.run.loop.federation import Federation, build

SIDES: list[tuple[int, ...]] = [(3, 32, 16)] * 2
PATCHES: list[tuple[int, ...]] = [(3, 16, 16)] * 4
WORDS = 64
LARGE: dict[str, Any] = {
    "name": "text",
    "checkpoint": "random",
    "vector": 768,
    "layers": 12,
    "heads": 12,
    "vocabulary": 256,
    "outputs": 32,
}
"""85 million parameters, BERT-base's without its words."""


@dataclass(frozen=True)
class Case:
    """A method, its models, and the loop by hand."""

    options: dict[str, Any]
    """Of a configuration."""
    shapes: list[tuple[int, ...]]
    """Of a record's features at each client; whole numbers where there is one side."""
    loop: Callable[[], Loop] | None = None


def _dpzv() -> Loop:
    clients = [networks.cnn((3, 16, 16), [16, 32, 64, 64], 16) for _ in PATCHES]
    server = networks.mlp(64, [64], CLASSES, final_relu=False)
    return on_card.TwoPoint(clients, server, PATCHES, 64, 16)


def _czofo(width: int) -> Loop:
    clients = [resnet.whole(shape, CLASSES, width) for shape in SIDES]
    return on_card.AtEmbeddings(clients, SIDES, 128)


def _cascaded(width: int) -> Loop:
    clients = [resnet.stem(shape, width) for shape in SIDES]
    sent = width * 32 * 16
    server = resnet.rest(2 * sent, CLASSES, image=(32, 32), parts=2, assemble="width", width=width)
    return on_card.Forward(clients, server, SIDES, 64, sent)


def _of_width(width: int) -> dict[str, Case]:
    summed = {
        "data": {"split": "sides"},
        "batch_size": 128,
        "method": {"name": "czofo", "num_directions": 10},
        "client": {"model": {"name": "resnet18", "width": width, "outputs": CLASSES}},
        "server": {"model": {"name": "sum"}},
    }
    split = {
        "data": {"split": "sides"},
        "batch_size": 64,
        "method": {"name": "cascaded"},
        "client": {"model": {"name": "resnet18-stem", "width": width}},
        "server": {"model": {"name": "resnet18-rest", "width": width}},
    }
    return {
        f"czofo, ResNet-18 of width {width} at 2 clients": Case(
            summed, SIDES, partial(_czofo, width)
        ),
        f"cascaded, ResNet-18 of width {width} at the server": Case(
            split, SIDES, partial(_cascaded, width)
        ),
    }


CASES = {
    "dpzv, CNN at 4 clients": Case(
        {
            "data": {"split": "patches"},
            "batch_size": 64,
            "method": {"name": "dpzv"},
            "client": {"model": {"name": "cnn", "channels": [16, 32, 64, 64], "outputs": 16}},
        },
        PATCHES,
        _dpzv,
    ),
    **_of_width(16),
    **_of_width(64),
    "dpzv, 85 million parameters at 2 clients": Case(
        {
            "batch_size": 64,
            "method": {"name": "dpzv"},
            "client": {"model": LARGE},
        },
        [(WORDS,)] * 2,
    ),
}


def federation(case: Case, precision: Precision) -> Federation:
    """A simulation on the card, which has started."""
    tree = {"epochs": 1_000_000, "device": DEVICE, **case.options}
    tree["data"] = {"name": "cifar-10", "parties": len(case.shapes), **tree.get("data", {})}
    plain = {"precision": precision, "optimizer": {"momentum": 0.0}}  # as the loops by hand
    for side in ("client", "server"):
        tree[side] = {**tree.get(side, {}), **plain}
    tokens = len(case.shapes[0]) == 1
    features = [
        torch.randint(LARGE["vocabulary"], (RECORDS, *shape), dtype=torch.int32)
        if tokens
        else torch.randn(RECORDS, *shape)
        for shape in case.shapes
    ]
    labels = torch.randint(CLASSES, (RECORDS,))
    data = VerticalData(
        name="benchmark",
        task=Classification(CLASSES),
        parties=tuple(f"client{m}" for m in range(len(case.shapes))),
        features=tuple({"train": x, "validation": x[:10], "test": x[:10]} for x in features),
        labels={"train": labels, "validation": labels[:10], "test": labels[:10]},
        fitted_scaling=False,
        are_images=not tokens,
    )
    made = build(parse(tree), data)
    made.start(upload_table=False)
    return made


def steps(made: Federation) -> int:
    """A round of each client."""
    for _ in made.clients:
        made.simulator.step()
    return len(made.clients)


def wait() -> None:
    """For what the card was given to do."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def rate(rounds: Rounds, seconds: float) -> float:
    """Rounds per second of the wall's clock, over about ``seconds``."""
    wait()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        count += rounds()
        wait()
    return count / (time.perf_counter() - started)


def in_precision(precision: Precision, rounds: Rounds) -> int:
    """Rounds of a loop by hand, with products of that precision."""
    rounded = precision != "float32"
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if rounded else "highest")
    try:
        with (
            torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=rounded),
            torch.autocast(
                DEVICE, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False
            ),
        ):
            return rounds()
    finally:
        torch.set_float32_matmul_precision(before)


def two_passes(made: Federation, features: Tensor) -> int:
    """What a zeroth-order round of a client cannot do without."""
    for _ in range(2):
        made.models[0](features)
    return 1


def peak(rounds: Rounds) -> float:
    """Bytes of the card's memory at most, while some rounds are made."""
    if DEVICE != "cuda":
        return float("nan")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    rounds()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated())


def peak_over_inference(case: Case, precision: Precision) -> float:
    """The peak of a client's round over that of inference, without the other clients' models.

    Without graphs: what a replay takes was allocated when it was captured, and counts no more.
    """
    with mock.patch.object(graphs, "are_available", return_value=False):
        made = federation(case, precision)
    others = float(sum(model.parameters.nbytes for model in made.models[1:]))
    batch = made.clients[0].features["train"][: made.config.batch_size]
    found = []  # inference first: what training holds between rounds is part of its peak alone
    for rounds in (partial(two_passes, made, batch), partial(steps, made)):
        rounds()
        found.append(peak(rounds) - others)
    inference, taken = found
    return taken / inference


def compare(name: str, precision: Precision, seconds: float, repeats: int) -> dict[str, Any]:
    """Medians of all ways of one case, and the ratio of Vertizo's to each other's."""
    case = CASES[name]
    row: dict[str, Any] = {"case": name, "precision": precision}
    if case.loop is None:
        row["peak_over_inference"] = peak_over_inference(case, precision)
    gc.collect()  # parties and their graphs refer to each other
    made = federation(case, precision)
    ways: dict[str, Rounds] = {"vertizo": partial(steps, made)}
    if case.loop is not None:
        ways["plain_eager"] = partial(in_precision, precision, case.loop().eager)
        if DEVICE == "cuda":
            loop = case.loop()
            held: list[Rounds] = []

            def captured() -> int:
                held.append(loop.graphed())
                return 0

            in_precision(precision, captured)
            ways["plain_graph"] = held[0]
    else:
        batch = made.clients[0].features["train"][: made.config.batch_size]
        ways["limit"] = partial(two_passes, made, batch)
    for rounds in ways.values():
        rate(rounds, seconds / 2)
    measured = report.in_turn(
        {way: partial(rate, do, seconds) for way, do in ways.items()}, repeats
    )
    for way in ways:
        row[way] = report.median(measured, way)
        if way != "vertizo":
            row[f"over_{way}"] = report.median_ratio(measured, "vertizo", way)
    figures = (f"{way} {row[way]:,.1f}" for way in ways)
    print(f"{name:<52}", *figures, row.get("peak_over_inference", ""), flush=True)
    return row


def main() -> None:
    parser = report.parser(__doc__, seconds=1.0, repeats=3)
    parser.add_argument("--only", default="", help="cases with these words in them")
    parser.add_argument("--precision", default="tf32", choices=get_args(Precision))
    options = parser.parse_args()
    if DEVICE != "cuda":
        parser.error("PyTorch finds no CUDA device here")
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    summary, failed = [], False
    for case in CASES:
        if options.only not in case:
            continue
        try:
            row = compare(case, options.precision, options.seconds, options.repeats)
        except Exception:  # of whatever kind: time on a card is short, and the others go on
            traceback.print_exc()
            failed = True
            continue
        ratios = (f"{row[key]:.2f} of {key[5:]}" for key in row if key.startswith("over_"))
        figure = f"{row['vertizo']:,.0f} rounds/s"
        rows.append(row)
        summary.append(report.line(f"on a card: {case}", figure, ", ".join(ratios)))
        report.write(options, {"card": torch.cuda.get_device_name(), "rows": rows}, summary)
    sys.exit(failed)


if __name__ == "__main__":
    main()
