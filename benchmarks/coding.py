"""Bytes, error and time of every codec.

Arrays of [64, 64] standard normal numbers; for the codecs of queries, pairs [2, 64, 64] that lie
2λ times a standard normal number apart, λ = 1e-3. Errors are squared, relative to the squared
numbers; those of pairs are of the difference of both points, which is what a query is for. The
gain is how long a step along what arrives is, where 1 is as long as one along the numbers.

Run: ``python benchmarks/coding.py [--repeats 200] [--json FILE]``
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import report
import torch
from torch import Tensor

from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.chain import Chain
from vertizo.protocol.codecs.lattice import Lattice
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.paired import Paired
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform

SMOOTHING = 1e-3
SINGLE: dict[str, Codec] = {
    "none": NoCompression(),
    "none float16": NoCompression(dtype="float16"),
    "none bfloat16": NoCompression(dtype="bfloat16"),
    "uniform 8": Uniform(),
    "uniform 8 record": Uniform(scale="record"),
    "uniform 4": Uniform(bits=4),
    "uniform 2": Uniform(bits=2),
    "uniform 1": Uniform(bits=1),
    "top-k 0.1": TopK(),
    "top-k 0.3": TopK(fraction=0.3),
    "sign": Sign(),
    "sign array": Sign(scale="array"),
    "sign array, gain 1": Sign(scale="array", gain="one"),
    "hexagonal 8": Lattice(),
    "hexagonal 4": Lattice(bits=4),
    "hexagonal 2": Lattice(bits=2),
    "scalar 8": Lattice(kind="scalar"),
    "scalar 4": Lattice(kind="scalar", bits=4),
    "scalar 2": Lattice(kind="scalar", bits=2),
    "chain top-k, uniform 8": Chain(),
}
OF_PAIRS: dict[str, Codec] = {
    "none": NoCompression(),
    "none float16": NoCompression(dtype="float16"),
    "uniform 8": Uniform(),
    "paired 8, 8": Paired(),
    "paired 8, 4": Paired(difference=Uniform(bits=4)),
    "paired 8, sign": Paired(difference=Sign()),
    "paired 4, sign array": Paired(midpoint=Uniform(bits=4), difference=Sign(scale="array")),
}
SHOWN = ("uniform 8", "top-k 0.1", "hexagonal 4", "paired 8, 4")
"""Those of the summary."""


def relative(found: Tensor, true: Tensor) -> float:
    """Squared error over squared size."""
    return float((found - true).square().sum() / true.square().sum())


def gain(found: Tensor, true: Tensor) -> float:
    """Length of a step along ``found``, of that along ``true``."""
    return float((found * true).sum() / true.square().sum())


def microseconds(work: Callable[[], object], repeats: int) -> float:
    """Median time of one call."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


def show(
    codecs: dict[str, Codec], array: Tensor, told: Callable[[Tensor], Tensor], repeats: int
) -> list[dict[str, Any]]:
    """One line for each codec; error and gain are of what the array ``told``."""
    shape = tuple(array.shape)
    rows = []
    words = f"{'bytes':>7} {'error':>9} {'gain':>6} {'encode µs':>10} {'decode µs':>10}"
    print(f"{list(shape)!s:<24} {words}")
    for name, codec in codecs.items():
        data = codec.encode(array)
        arrived, sent = told(codec.decode(data, shape)), told(array)
        error, length = relative(arrived, sent), gain(arrived, sent)
        encode = microseconds(partial(codec.encode, array), repeats)
        decode = microseconds(partial(codec.decode, data, shape), repeats)
        figures = f"{len(data):>7,} {error:>9.2g} {length:>6.3f} {encode:>10.0f} {decode:>10.0f}"
        print(f"{name:<24} {figures}")
        row = {"codec": name, "shape": list(shape), "bytes": len(data), "error": error}
        row |= {"gain": length}
        rows.append(row | {"encode_microseconds": encode, "decode_microseconds": decode})
    return rows


def main() -> None:
    parser = report.plain_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=200, help="the median of so many is shown")
    options = parser.parse_args()
    report.one_core()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    middle, shift = torch.randn(64, 64), SMOOTHING * torch.randn(64, 64)
    rows = show(SINGLE, middle, lambda array: array, options.repeats)
    print()
    pair = torch.stack([middle + shift, middle - shift])
    pairs = show(OF_PAIRS, pair, lambda array: array[0] - array[1], options.repeats)
    summary = [
        report.line(
            f"{row['codec']}, {what}",
            f"{row['bytes']:,} bytes, error {row['error']:.2g}",
            f"{first['bytes']:,} bytes as they are",
        )
        for what, (first, *others) in (("embeddings", rows), ("pairs", pairs))
        for row in others
        if row["codec"] in SHOWN
    ]
    report.write(options, {"rows": rows, "pairs": pairs}, summary)


if __name__ == "__main__":
    main()
