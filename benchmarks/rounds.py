"""Rounds per CPU second: the whole house against what one would write by hand, and the products.

For each method, model and batch size, on one core, four ways in turn within one run, so that their
ratios mean something on a shared machine:

* **house**: client party, method, codec, wire, simulator, server party: what `vertizo train` runs;
* **plain**: the loop that one would write by hand in PyTorch, with autograd where the method
  differentiates and nothing between the parties;
* **products**: the matrix products of the round alone, on tensors that are already there;
* **JAX**: many rounds compiled into one program; where the extra ``[bench]`` is installed.

All four make the same rounds (``tests/benchmarks``). Then how Vertizo's DPZV grows with the
number of clients and with the batch.

Run: ``python benchmarks/rounds.py [--only cascaded mnist 64] [--json FILE]``
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import report
import torch
from report import Rounds
from ways import house, plain_torch, products
from ways.setting import REFERENCE, REFERENCE_VARIANT, SHAPES, VARIANTS, Setting, Shape, records

from vertizo.core.memory import keep_freed_memory

BATCHES = (64, 256, 2048)
CLIENTS = (2, 4, 8, 16, 32, 64)
GROWING_BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
WAYS = ("house", "plain", "products", "jax")
AGAINST = WAYS[1:]


def jax_rounds(setting: Setting, data: Any) -> Rounds | None:
    """JAX's, where it is installed."""
    try:
        from ways import in_jax
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "jax":
            raise
        return None
    return in_jax.rounds(setting, data)


def settings(only: Sequence[str]) -> Iterator[Setting]:
    """Those that every word of ``only`` is in the name of."""
    for shape in SHAPES.values():
        for variant in VARIANTS.values():
            for batch in BATCHES:
                words = {*variant.name.split(), shape.name, str(batch)}
                if words.issuperset(only):
                    yield Setting(variant, shape, batch)


def compare(setting: Setting, seconds: float, repeats: int) -> dict[str, Any]:
    """Medians of all ways, and of the ratios."""
    data = records(setting.shape)
    made = {
        "house": house.rounds(setting, data),
        "plain": plain_torch.rounds(setting, data),
        "products": products.rounds(setting),
        "jax": jax_rounds(setting, data),
    }
    ways = {name: way for name, way in made.items() if way is not None}
    measured = report.rates(ways, seconds, repeats)
    return {
        "method": setting.variant.name,
        "model": setting.shape.name,
        "batch": setting.batch,
        "data": data.words,
        **{name: report.median(measured, name) for name in ways},
        **{
            f"house/{name}": report.median_ratio(measured, "house", name)
            for name in AGAINST
            if name in ways
        },
    }


def text(row: dict[str, Any], name: str, form: str) -> str:
    """A figure, or a dash where there is none."""
    return format(row[name], form) if name in row else "-"


def show(row: dict[str, Any]) -> None:
    """One line."""
    ways = "".join(f"{text(row, name, ',.0f'):>10}" for name in WAYS)
    ratios = "".join(f"{text(row, f'house/{name}', '.2f'):>10}" for name in AGAINST)
    print(f"{row['model']:>10} {row['method']:>20} {row['batch']:>6}{ways}{ratios}", flush=True)


def growth(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Vertizo's DPZV: MNIST cut into more and more strips, and batches of more and more."""
    variant = VARIANTS["dpzv gaussian"]
    strips = [Shape("strips", m, 784 // m, (), 16, (128,), 10) for m in CLIENTS]
    points = [("clients", m.clients, Setting(variant, m, 64)) for m in strips]
    points += [("batch", batch, Setting(variant, REFERENCE, batch)) for batch in GROWING_BATCHES]
    rows = []
    for what, size, setting in points:
        measured = report.rates(
            {"house": house.rounds(setting, records(setting.shape))}, seconds, repeats
        )
        rate = report.median(measured, "house")
        rows.append({"grows": what, "size": size, "rounds": rate, "records": rate * setting.batch})
        print(f"{what:>10} {size:>6} {rate:>10,.0f} {rate * setting.batch:>12,.0f}", flush=True)
    return rows


def lines(rows: Sequence[dict[str, Any]], grown: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """What is worth a line among all benchmarks."""
    found = []
    for row in rows:
        if (row["model"], row["method"]) == (REFERENCE.name, REFERENCE_VARIANT.name):
            ratios = (f"{text(row, f'house/{name}', '.2f')} of {name}" for name in AGAINST)
            what = f"{row['method']}, {row['model']}, batch {row['batch']}"
            found.append(report.line(what, f"{row['house']:,.0f} rounds/s", ", ".join(ratios)))
    for name in AGAINST:
        ratios_of = [row[f"house/{name}"] for row in rows if f"house/{name}" in row]
        if len(ratios_of) > 1:
            middle = statistics.median(ratios_of)
            span = f"{min(ratios_of):.2f} to {max(ratios_of):.2f}"
            what = f"house / {name}, {len(ratios_of)} settings"
            found.append(report.line(what, f"{middle:.2f} in the middle", span))
    for what in ("clients", "batch"):
        sizes = [row for row in grown if row["grows"] == what]
        if sizes:
            spread = f"{sizes[0]['size']} to {sizes[-1]['size']}"
            rates = f"{sizes[0]['rounds']:,.0f} to {sizes[-1]['rounds']:,.0f} rounds/s"
            found.append(report.line(f"dpzv gaussian, {what} {spread}", rates))
    return found


def main() -> None:
    parser = report.parser(__doc__, seconds=0.3, repeats=5)
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="WORD",
        help="of method, law, model or batch, e.g. dpzv rademacher mnist 64; growth for that alone",
    )
    options = parser.parse_args()
    report.one_core()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()  # for all alike
    rows, grown = [], []
    chosen = list(settings(options.only))
    if chosen:
        print(f"rounds per CPU second on one core; medians of {options.repeats}")
        for shape in dict.fromkeys(setting.shape for setting in chosen):
            print(f"{shape.name}: {shape.words}")
        heads = (*WAYS, *(f"/{name}" for name in AGAINST))
        print(f"{'model':>10} {'method':>20} {'batch':>6}", *(f"{head:>9}" for head in heads))
        for setting in chosen:
            rows.append(compare(setting, options.seconds, options.repeats))
            show(rows[-1])
        if all("jax" not in row for row in rows):
            print("jax: not installed; it comes with the extra [bench]")
    if not options.only or list(options.only) == ["growth"]:
        print("growth of dpzv gaussian: strips of MNIST, each client →16, server 128→10, batch 64;")
        print(f"and batches with the models of {REFERENCE.name}: rounds and records per CPU second")
        grown = growth(options.seconds, options.repeats)
    elif not chosen:
        parser.error(f"no setting has all of {' '.join(options.only)} in its name")
    shapes = {shape.name: shape.words for shape in SHAPES.values()}
    results = {"models": shapes, "rows": rows, "growth": grown}
    packages = ("torch", "numpy", "jax", "jaxlib")
    report.write(options, results, lines(rows, grown), packages)


if __name__ == "__main__":
    main()
