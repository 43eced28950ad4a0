"""A client's peak memory in training, over the memory of its model: DPZV's Figure 4.

One batch through the client half of each method, in a process of its own: what is counted is the
resident memory at its highest less that before the model was made, so that it is the model and
what a round needs, without the interpreter and its libraries. Linux only.

Run: ``python experiments/client_memory.py [--quick] [--seeds N] [--out DIR]``. A run that was
broken off goes on with what ``runs/dpzv-figure4`` lacks. A minute and a half.
"""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import TypeAdapter
from scripted import Do, Tree, make

from vertizo.config.sections.client import ClientConfig
from vertizo.core.errors import RunError
from vertizo.core.memory import keep_freed_memory
from vertizo.core.randomness import Stream
from vertizo.lab.reproduction import outcome, plots
from vertizo.lab.reproduction.outcome import Outcome, Picture, Point
from vertizo.lab.reproduction.runs import Task
from vertizo.lab.reproduction.study import Study
from vertizo.methods.base import ClientSide
from vertizo.methods.choice import METHODS
from vertizo.models.optimizers import Sgd
from vertizo.run.build import models as build_models

NAME = "dpzv-figure4"
TITLE = "A client's peak memory in training over the memory of its model"
NOTES = [
    "The paper's figure has no numbers; its text says about 1 for DPZV and more than 2 for VAFL, "
    "measured on a GPU. Here it is resident memory of a process on a CPU, beyond the libraries', "
    'for two rounds of one client; "inference alone" is what evaluating the model takes.',
    "VFL-CZOFO's client back-propagates as VAFL's does, and makes its gradient from 100 directions "
    "of the embeddings' size, which is large where the embedding layer is at the client.",
]
INFERENCE = "inference"
WORDS = {
    INFERENCE: "inference alone",
    "dpzv": "DPZV",
    "zoo-vfl": "ZOO-VFL",
    "vafl": "VAFL",
    "czofo": "VFL-CZOFO",
}
ROUNDS = 2
PEAK_RESET = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Row:
    """A model and what is sent through it."""

    words: str
    model: Tree
    batch: list[int]
    """Shape of the features, records first."""
    tokens: int | None = None
    """For texts: their number of different tokens; features are then token numbers."""
    published: dict[str, str] = field(default_factory=dict)
    """Method → memory over the model's."""


SAID = {"dpzv": "about 1", "vafl": "over 2"}
SMALL = {"family": "bert", "vector": 512, "layers": 6, "heads": 8, "vocabulary": 8192}
BASE = {"vector": 768, "heads": 12, "vocabulary": 30522}
RANDOM = {"name": "text", "checkpoint": "random"}
ROWS = {
    "mlp": Row(
        "MLP of 25 million",
        {"name": "mlp", "hidden": [4096, 2048], "outputs": 16},
        [64, 4096],
    ),
    "resnet": Row(
        "ResNet-18", {"name": "resnet18", "outputs": 64}, [16, 3, 32, 32], published=SAID
    ),
    "embeddings": Row(
        "embedding layer of a DistilBERT",
        {**RANDOM, **BASE, "name": "text-embeddings", "family": "distilbert", "layers": 1}
        | {"positions": 512},
        [32, 64],
        8192,
    ),
    "transformer": Row(
        "6 blocks of a BERT",
        {**RANDOM, **SMALL, "positions": 128, "outputs": 16},
        [8, 64],
        8192,
        SAID,
    ),
    "bert": Row(
        "BERT-base",
        {**RANDOM, **BASE, "family": "bert", "layers": 12, "positions": 512, "outputs": 64},
        [4, 64],
        30522,
        SAID,
    ),
}
LARGE = ("transformer", "bert")
"""Left out of the quick form."""


def form(quick: bool) -> Study:
    """The study's words."""
    reduced = "without BERT-base and the transformer" if quick else None
    return Study(title=TITLE, paper="DPZV, Figure 4", notes=NOTES, reduced=reduced, seeds=1)


def run(quick: bool, seeds: int, do: Do) -> Outcome:
    """Measure every method on every model."""
    rows = {label: row for label, row in ROWS.items() if not (quick and label in LARGE)}
    done, by = do(
        {
            (label, method, seed): Task(
                f"{label}-{method}-{seed}",
                peak,
                ({"model": row.model}, row.batch, row.tokens, method, seed),
            )
            for label, row in rows.items()
            for method in WORDS
            for seed in range(seeds)
        }
    )
    lines, figures = [], []
    points: dict[str, list[Point]] = {method: [] for method in WORDS}
    for place, (label, row) in enumerate(rows.items()):
        cells, weights = [], 0.0
        for method in WORDS:
            each = [done[label, method, seed] for seed in range(seeds)]
            weights = each[0]["weights"]
            ratios = [one["peak"] / one["weights"] for one in each]
            cells.append(outcome.text_of(ratios, 2))
            points[method].append(Point.of(place, ratios))
            figures.append({"row": label, "method": method, "weights": weights, "ratios": ratios})
        lines.append((row.words, f"{weights:,.0f}", *cells))
        lines += outcome.published_line(row.published, ("", *WORDS))
    picture = Picture(
        TITLE,
        "",
        "peak memory over the model's",
        tuple(outcome.Line(words, tuple(points[method])) for method, words in WORDS.items()),
        ticks={float(place): label for place, label in enumerate(rows)},
    )
    headings = ("model, MiB", *(f"{words}, × model" for words in WORDS.values()))
    grid = outcome.Grid(TITLE, headings, tuple(lines))
    return Outcome((grid,), (picture,), figures={"cells": figures}, made_by=by)


def draw(pictures: Sequence[Picture], path: Path) -> None:
    """Bars of all methods side by side, at each model."""
    with plots.sheet(len(pictures), path) as places:
        for axes, picture in zip(places, pictures, strict=True):
            width = 0.8 / len(picture.lines)
            for place, line in enumerate(picture.lines):
                shift = (place - (len(picture.lines) - 1) / 2) * width
                at, heights = [p.x + shift for p in line.points], [p.y for p in line.points]
                axes.bar(at, heights, width, color=plots.COLOURS[place], label=line.words)
            axes.set_yscale("log")
            plots.label(axes, picture)


def peak(
    client: Tree, batch: list[int], tokens: int | None, method: str, seed: int
) -> dict[str, float]:
    """Peak memory and weights of one model and method in MiB, of this process."""
    if not (PEAK_RESET.exists() and hasattr(ctypes.CDLL(None), "malloc_trim")):
        raise RunError("peak memory is measured on Linux alone")
    config = TypeAdapter(ClientConfig).validate_python(client)
    torch.set_num_threads(1)
    keep_freed_memory()  # as training does
    root = Stream.from_seed(seed)
    rounds(ClientConfig(), [64, 64], None, method, root)  # loads what it needs
    if config.model.name.startswith("text"):
        import transformers  # noqa: F401
    settle()
    before = kilobytes("VmRSS")
    parameters = rounds(config, batch, tokens, method, root)
    return {
        "parameters": parameters,
        "weights": parameters * 4 / 2**20,
        "peak": (kilobytes("VmHWM") - before) / 1024,
    }


def rounds(
    config: ClientConfig, batch: list[int], tokens: int | None, method: str, root: Stream
) -> int:
    """What a client does in `ROUNDS` rounds, the peak counted anew once its model is made.

    Returns the number of its parameters.
    """
    features = (
        torch.randn(batch, generator=torch.Generator().manual_seed(0))
        if tokens is None
        else torch.randint(1, tokens, batch, dtype=torch.int32)
    )
    shape = tuple(batch[1:])
    model = build_models.client_model(
        config.model, shape, root.child("model"), tokens=tokens is not None
    )
    settle()
    PEAK_RESET.write_text("5")
    if method == INFERENCE:
        for _ in range(ROUNDS):
            model(features)
        return model.parameters.numel()
    chosen = METHODS[method].model_validate({"name": method})
    side = ClientSide(model, Sgd(1e-6), root.child("directions"), root.child("shared"), 0)
    half = chosen.client(side)
    for number in range(ROUNDS):
        answer = half.ask(number, features)
        values = torch.full(chosen.reply_shape(batch[0], math.prod(answer.shape[2:])), 0.1)
        del answer  # by now it would have been sent
        half.tell(number, features, values)
    return model.parameters.numel()


def settle() -> None:
    """Give back all memory that is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def kilobytes(key: str) -> int:
    """A figure that the operating system keeps of this process."""
    return int(STATUS.read_text(encoding="utf-8").split(f"{key}:")[1].split()[0])


def main() -> None:
    """Make the study."""
    make(NAME, __file__, form, run, draw, apart=True)


if __name__ == "__main__":
    main()
