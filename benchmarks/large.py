"""Growth with parameters: what DPZV costs a client beside two forward passes of its model.

For each model: the weights; peak memory of DPZV's client half (ask and tell) over that of one
batch through the model, which is the weights and one batch's activations, each in a process of its
own; and CPU time of ask and tell over that of two forward passes, one thread, alternating in one
process. Then the speed at which a direction is drawn block by block and added to parameters, that
at which its numbers are drawn alone, and that of a copy in memory. Linux only.

* **mlp**: three layers, two of them square; batch 64, or as said;
* **transformer**: a BERT of 12 blocks of 768 numbers and 20,000 words; 32 texts of 64 words, or
  as said.

Run: ``python benchmarks/large.py [--models mlp-1e4 ...] [--json FILE]``
"""

from __future__ import annotations

import ctypes
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import report
import torch
from torch import Tensor, nn

from vertizo.core.memory import keep_freed_memory
from vertizo.core.names import LawName
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.dpzv import Dpzv
from vertizo.models.architectures.networks import mlp
from vertizo.models.architectures.text import Spec, Text
from vertizo.models.base import Model
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import wrap
from vertizo.zeroth_order.directions import Direction, Kind, blocks

PEAK_RESET = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
VOCABULARY = 20_000
LAWS: tuple[LawName, ...] = ("scaled-sphere", "gaussian", "rademacher")


@dataclass(frozen=True)
class Case:
    """One model and one batch."""

    width: int
    """Of an MLP's square layers; 0 for the transformer."""
    batch: int
    words: int = 0
    laws: tuple[LawName, ...] = ("scaled-sphere",)

    def model(self) -> Model:
        return wrap(self._module())

    def _module(self) -> nn.Module:
        if self.width:
            return mlp(self.width, [self.width, self.width], 16, final_relu=False)
        spec = Spec("random", "bert", 768, 12, heads=12, vocabulary=VOCABULARY, positions=512)
        return Text(spec, self.words, "mean", 64)

    def inputs(self) -> Tensor:
        if self.width:
            return torch.randn(self.batch, self.width)
        return torch.randint(1, VOCABULARY, (self.batch, self.words), dtype=torch.int32)


SMALL = Case(64, 64)
CASES = {
    "mlp-1e4": Case(66, 64),
    "mlp-1e5": Case(220, 64),
    "mlp-1e6": Case(702, 64),
    "mlp-1e7": Case(2232, 64),
    "mlp-1e8": Case(7068, 64, laws=LAWS),
    "mlp-1e8-batch-256": Case(7068, 256, laws=("scaled-sphere", "rademacher")),
    "mlp-1e8-batch-1024": Case(7068, 1024, laws=("scaled-sphere", "rademacher")),
    "transformer-1e8": Case(0, 32, 64, laws=("scaled-sphere", "rademacher")),
    "transformer-1e8-128-words": Case(0, 32, 128),
}


def client(model: Model, law: LawName) -> Any:
    root = Stream.from_seed(0)
    return Dpzv(directions=law).client(
        ClientSide(model, Sgd(1e-6), root.child("directions"), root.child("shared"), 0)
    )


def round_of(half: Any, number: int, inputs: Tensor) -> None:
    half.ask(number, inputs)  # by the time of the reply its answer has been sent
    half.tell(number, inputs, torch.full((1,), 0.1))


def peak(name: str, law: str) -> dict[str, float]:
    """Peak memory of this process in MiB, of inference where no law is named."""
    case = CASES[name]
    work(SMALL, law or "scaled-sphere")  # loads what it needs
    if not case.width:
        import transformers  # noqa: F401
    settle()
    before = kilobytes("VmRSS")
    work(case, law)
    return {"peak": (kilobytes("VmHWM") - before) / 1024}


def work(case: Case, law: str) -> None:
    model, inputs = case.model(), case.inputs()
    settle()
    PEAK_RESET.write_text("5")
    half = client(model, law) if law else None  # type: ignore[arg-type]
    for number in range(2 if case.width else 1):
        if half is None:
            model(inputs)
        else:
            round_of(half, number, inputs)


def settle() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


LARGE = 50_000_000
"""Parameters from which on a model has a line in the summary."""


def kilobytes(key: str) -> int:
    return int(STATUS.read_text(encoding="utf-8").split(f"{key}:")[1].split()[0])


def seconds(job: Callable[[], object]) -> float:
    started = time.process_time()
    job()
    return time.process_time() - started


def again(job: Callable[[], object], times: int) -> None:
    for _ in range(times):
        job()


def duration(name: str, _: str) -> dict[str, float]:
    """CPU seconds of two forward passes, and of a round under each law; the least of some."""
    case = CASES[name]
    model, inputs = case.model(), case.inputs()
    halves = {law: client(model, law) for law in case.laws}
    number = 0

    def forward() -> None:
        model(inputs)
        model(inputs)

    if case.width:
        forward()
        for half in halves.values():
            round_of(half, number, inputs)
    else:
        model(inputs[:1])
    times: dict[str, list[float]] = {"forward": [], **{law: [] for law in halves}}
    least, enough = (5, 4.0) if case.width > 0 and case.batch <= 256 else (2, 0.0)
    started = time.process_time()
    while number < least or (time.process_time() - started < enough and number < 2000):
        number += 1
        times["forward"].append(seconds(forward))
        for law, half in halves.items():
            times[law].append(seconds(partial(round_of, half, number, inputs)))
    found = {key: min(values) for key, values in times.items()}
    return {"parameters": model.parameters.numel(), **found}


def speed(size: str, law: str) -> dict[str, float]:
    """Numbers a second, in billions: added to parameters, drawn alone, and copied."""
    dimension = int(float(size))
    vector, other = torch.zeros(dimension), torch.zeros(dimension)
    kind: Kind = "signs" if law == "rademacher" else "normals"
    direction = Direction(law, dimension, 5, keep=False)  # type: ignore[arg-type]

    def alone() -> None:
        for _ in blocks(kind, 5, dimension):
            pass

    jobs: dict[str, Callable[[], object]] = {
        "added": lambda: direction.add_to(vector, 1e-3),
        "alone": alone,
        "copy": lambda: other.copy_(vector),
    }
    if law == "scaled-sphere":
        jobs["norm"] = direction._norm_of_numbers
    times: dict[str, list[float]] = {key: [] for key in jobs}
    repeats = max(3, 10**7 // dimension)
    for job in jobs.values():
        job()
    for _ in range(5 if dimension < 10**8 else 3):
        for key, job in jobs.items():
            times[key].append(seconds(partial(again, job, repeats)))
    return {key: dimension * repeats / min(values) / 1e9 for key, values in times.items()}


JOBS = {"peak": peak, "duration": duration, "speed": speed}


def models(names: list[str]) -> list[dict[str, Any]]:
    print(
        f"{'model':<26} {'weights':>9} {'one batch':>10} | {'law':<14} {'peak':>8} {'ratio':>6} "
        f"{'two forward':>12} {'DPZV':>9} {'ratio':>6}"
    )
    rows = []
    for name in names:
        times = report.of_its_own(__file__, "duration", name, "")
        weights = times["parameters"] * 4 / 2**20
        base = report.of_its_own(__file__, "peak", name, "")["peak"]
        for law in CASES[name].laws:
            highest = report.of_its_own(__file__, "peak", name, law)["peak"]
            rows.append(
                {
                    "model": name,
                    "parameters": times["parameters"],
                    "batch": [CASES[name].batch, CASES[name].words or CASES[name].width],
                    "law": law,
                    "weights_mebibytes": weights,
                    "inference_mebibytes": base,
                    "dpzv_mebibytes": highest,
                    "forward_twice_cpu_seconds": times["forward"],
                    "dpzv_cpu_seconds": times[law],
                    "memory_over_inference": highest / base,
                    "time_over_forward_twice": times[law] / times["forward"],
                }
            )
            print(
                f"{name:<26} {weights:>9.2f} {base:>10.1f} | {law:<14} {highest:>8.1f} "
                f"{highest / base:>6.2f} {times['forward']:>11.5f}s {times[law]:>8.5f}s "
                f"{times[law] / times['forward']:>6.2f}",
                flush=True,
            )
    return rows


def speeds() -> list[dict[str, Any]]:
    print("\nbillions of numbers a second: drawn in blocks and added, drawn alone, copied")
    rows = []
    for law in LAWS[1:]:
        for size in ("1e4", "1e5", "1e6", "1e7", "1e8"):
            rate = report.of_its_own(__file__, "speed", size, law)
            slower = min(rate["alone"], rate["copy"])
            rows.append({"law": law, "parameters": int(float(size)), **rate})
            print(
                f"{law:<12} {size} {rate['added']:>7.3f} {rate['alone']:>7.3f} "
                f"{rate['copy']:>7.3f}  {rate['added'] / slower:>6.0%} of the slower",
                flush=True,
            )
    return rows


def summary(found: list[dict[str, Any]], drawn: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A line for each large model, and for each law's speed at most parameters."""
    lines = []
    for row in found:
        if row["parameters"] > LARGE:
            memory = row["dpzv_mebibytes"] / row["inference_mebibytes"]
            time_ = row["dpzv_cpu_seconds"] / row["forward_twice_cpu_seconds"]
            lines.append(
                report.line(
                    f"dpzv, {row['model']}, {row['law']}",
                    f"{memory:.2f} times the memory, {time_:.2f} times the time",
                    "a forward pass; two of them",
                )
            )
    most = max(row["parameters"] for row in drawn)
    for row in drawn:
        if row["parameters"] == most:
            share = row["added"] / min(row["alone"], row["copy"])
            lines.append(
                report.line(
                    f"{row['law']} directions of {most:.0e}, drawn and added",
                    f"{row['added']:.2f} billion a second",
                    f"{share:.0%} of the slower of generator and memory",
                )
            )
    return lines


def main() -> None:
    parser = report.plain_parser(__doc__)
    parser.add_argument("--models", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--measure", nargs=3, metavar=("JOB", "NAME", "LAW"), help="one, as JSON")
    options = parser.parse_args()
    if options.measure:
        torch.set_num_threads(1)
        keep_freed_memory()  # as training does
        job, name, law = options.measure
        print(json.dumps(JOBS[job](name, law)))
        return
    report.one_core()
    found, drawn = models(options.models), speeds()
    report.write(options, {"models": found, "generation": drawn}, summary(found, drawn))


if __name__ == "__main__":
    main()
