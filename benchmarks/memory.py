"""Peak memory of a client: inference, DPZV and VAFL, for models of more than 20 million parameters.

One batch through the client model; then ask and tell of DPZV's client half, which needs two more
evaluations and no graph; then the same of VAFL's, which back-propagates. Each in a process of its
own: what is shown is the resident memory at its highest less that before the model was made, so
that it is the model and what a round needs, without the interpreter and its libraries. Linux only.
On a card it is what PyTorch had of the card's memory at most, which it counts exactly: one process
measures all, and models are made on the card, since its time is short.

* **mlp**: 25 M parameters in three layers, batch 64;
* **embeddings**: the embedding layer of DistilBERT, 24 M, 32 texts of 64 words;
* **transformer**: 6 blocks of a BERT, 23 M, 32 texts of 64 words;
* on a card also **base**, **large** and **billion**, of 85, 340 and 1,000 M.

Run: ``python benchmarks/memory.py [--models mlp ...] [--device cuda] [--json FILE]``
"""

from __future__ import annotations

import ctypes
import gc
import json
from functools import partial
from pathlib import Path
from typing import Any

import report
import torch
from torch import Tensor, nn

from vertizo.core.memory import keep_freed_memory
from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.first_order import Vafl
from vertizo.models.architectures.networks import mlp
from vertizo.models.architectures.text import Spec, Text, TextEmbeddings
from vertizo.models.base import Where
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import wrap

MODELS = ("mlp", "embeddings", "transformer")
BLOCKS = {
    "transformer": Spec("random", "bert", 512, 6, heads=8, vocabulary=8192, positions=128),
    "base": Spec("random", "bert", 768, 12, heads=12, vocabulary=256, positions=128),
    "large": Spec("random", "bert", 1024, 24, heads=16, vocabulary=32_768, positions=128),
    "billion": Spec("random", "bert", 2048, 20, heads=16, vocabulary=256, positions=128),
}
VARIANTS = ("inference", "dpzv", "vafl")
ROUNDS = 2
PEAK_RESET = Path("/proc/self/clear_refs")


def make(name: str) -> nn.Module:
    if name == "mlp":
        return mlp(4096, [4096, 2048], 16, final_relu=False)
    if name == "embeddings":
        words = Spec("random", "distilbert", 768, 1, heads=12, vocabulary=30_522, positions=512)
        return TextEmbeddings(words, 64)
    if name in BLOCKS:
        return Text(BLOCKS[name], 64, "mean", 16)
    return mlp(4096, [64], 16, final_relu=False)


def batch(name: str) -> Tensor:
    if name == "embeddings" or name in BLOCKS:
        return torch.randint(1, 256, (32, 64), dtype=torch.int32)
    return torch.randn(64, 4096)


def rounds(name: str, variant: str, count: int, device: str) -> int:
    """Makes the model, resets the peak, does the work; returns the number of parameters."""
    with torch.device(device):
        module = make(name)
    model, features = wrap(module, Where(device)), batch(name).to(device)
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        PEAK_RESET.write_text("5")
    if variant == "inference":
        for _ in range(count):
            model(features)
        return model.parameters.numel()
    root = Stream.from_seed(0)
    method = Dpzv() if variant == "dpzv" else Vafl()
    client = method.client(
        ClientSide(model, Sgd(1e-3), root.child("directions"), root.child("shared"), 0)
    )
    for number in range(count):
        answer = client.ask(number, features)
        values = torch.full((1,), 0.1, device=device) if variant == "dpzv" else answer[0].clone()
        del answer  # by now it would have been sent
        client.tell(number, features, values)
    return model.parameters.numel()


def kilobytes(key: str) -> int:
    """A figure that the operating system keeps of this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(f"{key}:")[1].split()[0])


def measure(name: str, variant: str) -> dict[str, float]:
    """Parameters, and peak memory in MiB, of this process."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as training does
    make(name if name != "mlp" else "small")  # loads what it needs
    rounds("small", variant, 1, "cpu")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = kilobytes("VmRSS")
    parameters = rounds(name, variant, ROUNDS, "cpu")
    return {"parameters": parameters, "mebibytes": (kilobytes("VmHWM") - before) / 1024}


def measure_card(name: str, variant: str) -> dict[str, float]:
    """Parameters, and peak memory in MiB, on the card."""
    rounds("small", variant, 1, "cuda")
    gc.collect()
    before = torch.cuda.memory_allocated()
    parameters = rounds(name, variant, ROUNDS, "cuda")
    most = torch.cuda.max_memory_allocated() - before
    gc.collect()
    torch.cuda.empty_cache()
    return {"parameters": parameters, "mebibytes": most / 2**20}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A line for each model."""
    return [
        report.line(
            f"{row['model']}, {row['parameters'] / 1e6:.1f} million parameters",
            f"DPZV {row['dpzv_mebibytes'] / row['inference_mebibytes']:.2f} of inference",
            f"VAFL {row['vafl_mebibytes'] / row['inference_mebibytes']:.2f}",
        )
        for row in rows
    ]


def main() -> None:
    parser = report.plain_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *BLOCKS])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "VARIANT"), help="one, as JSON")
    options = parser.parse_args()
    if options.models is None:
        options.models = dict.fromkeys([*MODELS, *(BLOCKS if options.device == "cuda" else ())])
    if options.measure:
        name, variant = options.measure
        print(json.dumps(measure(name, variant)))
        return
    of_one = measure_card if options.device == "cuda" else partial(report.of_its_own, __file__)
    print("peak memory in MiB beyond the libraries', one thread")
    print(
        f"{'model':<12} {'million':>8} {'weights':>8} {'inference':>10} {'DPZV':>14} {'VAFL':>14}"
    )
    rows: list[dict[str, Any]] = []
    for name in options.models:
        peaks = {variant: of_one(name, variant) for variant in VARIANTS}
        count = peaks["inference"]["parameters"]
        plain, zeroth, first = (peaks[variant]["mebibytes"] for variant in VARIANTS)
        rows.append(
            {
                "model": name,
                "parameters": count,
                **{f"{variant}_mebibytes": peaks[variant]["mebibytes"] for variant in VARIANTS},
            }
        )
        print(
            f"{name:<12} {count / 1e6:>8.1f} {count * 4 / 2**20:>8.1f} {plain:>10.1f} "
            f"{zeroth:>7.1f} ({zeroth / plain:.2f}) {first:>7.1f} ({first / plain:.2f})",
            flush=True,
        )
        report.write(options, {"device": options.device, "rows": rows}, summary(rows))


if __name__ == "__main__":
    main()
