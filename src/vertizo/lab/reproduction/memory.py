"""Studies of a client's memory: its peak in training, over the memory of its model.

One batch through the client half of each method, in a process of its own: what is counted is the
resident memory at its highest less that before the model was made, so that it is the model and
what a round needs, without the interpreter and its libraries. Linux only.
"""

from __future__ import annotations

import ctypes
import gc
import math
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from vertizo.config.client import ClientConfig
from vertizo.config.error_lines import explain
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.memory import keep_freed_memory
from vertizo.core.randomness import Stream
from vertizo.lab.reproduction import outcome
from vertizo.lab.reproduction.outcome import Outcome, Picture, Point
from vertizo.lab.reproduction.runs import Order, Task, Tree, results
from vertizo.lab.reproduction.study import MemoryConfig
from vertizo.methods.base import ClientSide
from vertizo.methods.choice import METHODS
from vertizo.models.optimizers import Sgd
from vertizo.run.build import models as build_models

INFERENCE = "inference"
ROUNDS = 2
PEAK_RESET = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


def run(study: MemoryConfig, order: Order) -> Outcome:
    """Measure every method on every model."""
    seeds = range(order.seeds or study.seeds)
    names = {INFERENCE: "inference alone", **study.methods}
    unknown = next((name for name in study.methods if name not in METHODS), None)
    if unknown is not None:
        raise ConfigError(f"there is no method {unknown!r}; known are {', '.join(METHODS)}")
    tasks = {
        (label, method, seed): Task(
            f"{label}-{method}-{seed}",
            peak,
            (row.client, list(row.batch), row.tokens, method, seed),
        )
        for label, row in study.rows.items()
        for method in names
        for seed in seeds
    }
    done, by = results(tasks, order.folder, 1, order.report)  # apart, for their peaks
    lines, figures = [], []
    points: dict[str, list[Point]] = {name: [] for name in names}
    for place, (label, row) in enumerate(study.rows.items()):
        cells, weights = [], 0.0
        for method in names:
            each = [done[label, method, seed] for seed in seeds]
            weights = each[0]["weights"]
            ratios = [one["peak"] / one["weights"] for one in each]
            cells.append(outcome.text_of(ratios, 2))
            points[method].append(Point.of(place, ratios))
            figures.append({"row": label, "method": method, "weights": weights, "ratios": ratios})
        lines.append((row.words, f"{weights:,.0f}", *cells))
        lines += outcome.published_line(row.published, ("", *names))
    headings = ("model, MiB", *(f"{words}, × model" for words in names.values()))
    picture = Picture(
        study.title,
        "",
        "peak memory over the model's",
        tuple(outcome.Line(words, tuple(points[name])) for name, words in names.items()),
        log_y=True,
        bars=True,
        ticks={float(place): label for place, label in enumerate(study.rows)},
    )
    grid = outcome.Grid(study.title, headings, tuple(lines))
    return Outcome((grid,), (picture,), figures={"cells": figures}, made_by=by)


def peak(
    client: Tree, batch: list[int], tokens: int | None, method: str, seed: int
) -> dict[str, float]:
    """Peak memory and weights of one model and method in MiB, of this process."""
    if not (PEAK_RESET.exists() and hasattr(ctypes.CDLL(None), "malloc_trim")):
        raise RunError("peak memory is measured on Linux alone")
    try:
        config = TypeAdapter(ClientConfig).validate_python(client)
    except ValidationError as error:
        raise ConfigError(f"client: {explain(error, ClientConfig)}") from None
    torch.set_num_threads(1)
    keep_freed_memory()  # as training does
    root = Stream.from_seed(seed)
    _rounds(ClientConfig(), [64, 64], None, method, root)  # loads what it needs
    if config.model.name.startswith("text"):
        import transformers  # noqa: F401
    _settle()
    before = _kilobytes("VmRSS")
    parameters = _rounds(config, batch, tokens, method, root)
    return {
        "parameters": parameters,
        "weights": parameters * 4 / 2**20,
        "peak": (_kilobytes("VmHWM") - before) / 1024,
    }


def _rounds(
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
    _settle()
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


def _settle() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _kilobytes(key: str) -> int:
    """A figure that the operating system keeps of this process."""
    return int(STATUS.read_text(encoding="utf-8").split(f"{key}:")[1].split()[0])
