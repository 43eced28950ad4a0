"""What the precision of products does to a slope ``(f(w + λu) − f(w − λu)) / 2λ``.

Of a batch's mean loss along scaled-sphere directions, at first parameters, held against float64:
the length of the error over all directions, relative to the slopes'. On a card the precisions are
its own; on the processor TF32 is float32 whose products' factors are rounded to 11 bits first, as a
card rounds them, and bfloat16 is PyTorch's own.

Run: ``python benchmarks/precision.py [--json FILE]``. Two minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import report
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from vertizo.models.architectures import networks, resnet, text

CLASSES = 10
SMOOTHINGS = 1e-3, 1e-2
PRECISIONS = "float32", "tf32", "bfloat16"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ATEN = torch.ops.aten
PRODUCTS = {ATEN.convolution, ATEN.mm, ATEN.addmm, ATEN.bmm, ATEN.baddbmm}


@dataclass(frozen=True)
class Case:
    """A network and the batch that its slopes are of."""

    make: Callable[[], nn.Module]
    records: int
    directions: int
    shape: tuple[int, ...]
    """Of a record; tokens where there is one side."""


def _text() -> nn.Module:
    spec = text.Spec("random", vector=768, layers=12, heads=12, vocabulary=256)
    return text.Text(spec, 64, "mean", CLASSES)


CASES = {
    "CNN": Case(lambda: networks.cnn((3, 16, 16), [16, 32, 64, 64], 10), 64, 8, (3, 16, 16)),
    "ResNet-18": Case(lambda: resnet.whole((3, 32, 16), CLASSES, 64), 16, 8, (3, 32, 16)),
    "transformer": Case(_text, 8, 4, (64,)),
}


def tf32(numbers: Tensor) -> Tensor:
    """Rounded to TF32's 11 bits, ties to even."""
    if numbers.dtype is not torch.float32:
        return numbers
    bits = numbers.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


class Rounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds the factors of products as a card does for TF32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        if packet in PRODUCTS:
            first = 1 if packet in (ATEN.addmm, ATEN.baddbmm) else 0  # the other is added
            args = [*args]
            args[first : first + 2] = map(tf32, args[first : first + 2])
        return func(*args, **(kwargs or {}))


def arithmetic(precision: str) -> ExitStack:
    """Compute inside in that precision."""
    stack = ExitStack()
    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
    on_card = DEVICE.type == "cuda"
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    rounds = precision == "tf32" and not on_card
    stack.enter_context(Rounded() if rounds else nullcontext())  # type: ignore[no-untyped-call]
    enabled = precision == "bfloat16"
    stack.enter_context(torch.autocast(DEVICE.type, torch.bfloat16, enabled=enabled))
    return stack


def slopes(case: Case, dtype: torch.dtype, precision: str, smoothing: float) -> Tensor:
    """The slope along each direction, float64 [directions]."""
    torch.manual_seed(0)
    with DEVICE:
        module = case.make().to(dtype).eval()
    if len(case.shape) > 1:
        inputs = torch.randn(case.records, *case.shape, device=DEVICE).to(dtype)
    else:
        inputs = torch.randint(256, (case.records, *case.shape), device=DEVICE)
    labels = torch.randint(CLASSES, (case.records,), device=DEVICE)
    found = []
    with torch.no_grad(), arithmetic(precision):
        at = {name: part.detach() for name, part in module.named_parameters()}
        for _ in range(case.directions):
            u = {
                name: torch.randn(part.shape, device=DEVICE).to(dtype) for name, part in at.items()
            }
            f = [
                cross_entropy(
                    functional_call(
                        module, {name: at[name] + side * u[name] for name in at}, (inputs,)
                    ).to(torch.promote_types(dtype, torch.float32)),
                    labels,
                )
                for side in (smoothing, -smoothing)
            ]
            found.append(float(f[0].double() - f[1].double()) / (2 * smoothing))
    return torch.tensor(found, dtype=torch.float64)


def main() -> None:
    """Measure all cases, and print a table."""
    options = report.plain_parser(__doc__).parse_args()
    results: dict[str, Any] = {"device": DEVICE.type, "errors": {}}
    lines = []
    for name, case in CASES.items():
        with torch.device("meta"):
            count = sum(part.numel() for part in case.make().parameters())
        of_case: dict[str, float] = {
            "parameters": count,
            "records": case.records,
            "directions": case.directions,
        }
        results["errors"][name] = of_case
        for smoothing in SMOOTHINGS:
            wanted = slopes(case, torch.float64, "float32", smoothing)
            for precision in PRECISIONS:
                error = slopes(case, torch.float32, precision, smoothing) - wanted
                share = float(error.norm() / wanted.norm())
                of_case[f"{precision}, {smoothing:g}"] = share
                what = f"{name}, {precision}, λ = {smoothing:g}"
                print(f"{what:<40} {share:9.3%}", flush=True)
                lines.append(report.line(f"error of a slope: {what}", f"{share:.2%}"))
    report.write(options, results, lines)


if __name__ == "__main__":
    main()
