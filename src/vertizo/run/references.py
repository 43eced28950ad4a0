"""Reference models without a federation: of the label holder's columns, and of all in one table.

They are gradient boosting with the settings of the raw head (`vertizo.party.final_head`), on the
same training records. The label holder alone computes them, so that nothing of a label leaves it;
that of all columns exists in a simulation only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.data.vertical import VerticalData, of_classes
from vertizo.data.weights import of_labels
from vertizo.models.losses import Classification, Quantile, Regression, Task
from vertizo.models.pretrained import one_hot
from vertizo.party.closing_scores import headline
from vertizo.party.final_head import Fitted
from vertizo.party.metrics import scores
from vertizo.protocol.messages import Purpose

MOST = 100_000
"""Training records at most: both kinds of model are fitted on so many within seconds."""
KINDS: dict[Literal["boosting", "logistic"], str] = {"boosting": "boosting", "logistic": "linear"}
Figures = dict[str, float]


def plain(task: Task) -> Classification | Regression:
    """The task by which test records are scored: classes have no weights."""
    if isinstance(task, Classification):
        return Classification(task.outputs, task.positive)
    assert isinstance(task, Regression), "a study is about one label"
    return task


def alone(config: ExperimentConfig, data: VerticalData) -> Tensor | None:
    """Logits of the test records, [rows, outputs], from the label holder's own columns.

    They are the same for every record if it has no columns; None if these are tokens of texts.
    """
    if data.own is None:
        return _constant(data)
    return _boosted(config, data, [data.own.values])


def pooled(config: ExperimentConfig, data: VerticalData) -> Tensor | None:
    """Logits of the test records, [rows, outputs], from everybody's columns; None for tokens."""
    own = [] if data.own is None else [data.own.values]
    return _boosted(config, data, [*data.features, *own])


def references(config: ExperimentConfig, data: VerticalData) -> dict[str, Any] | None:
    """Score boosting and a linear model without a federation, for comparison with a run.

    ``alone`` has the figures from the label holder's own columns (None if it has none), ``pooled``
    those from everybody's, each by kind of model; ``metric`` names the figure. ``validation`` has
    the same of the validation records, None without any. Returns None for anything but a table
    with test records, for more records than `MOST`, several labels, or another loss than squared.
    """
    fits = data.preparation is not None and len(data.labels["test"]) and data.records <= MOST
    if not fits or config.data.loss != "squared" or config.data.has_several_labels:
        return None
    own = [] if data.own is None else [(data.own.values, data.own.cardinalities)]
    cardinalities = data.cardinalities or ((),) * len(data.features)
    everybody = [*zip(data.features, cardinalities, strict=True), *own]
    task, metric = plain(data.task), headline(data.task)

    def figures(
        parts: Sequence[tuple[Mapping[Purpose, Tensor], tuple[int, ...]]],
    ) -> dict[Purpose, Figures]:
        found: dict[Purpose, Figures] = {"test": {}, "validation": {}}
        for kind in KINDS:
            made = [_one_hot(*part) if kind == "logistic" else part[0] for part in parts]
            for purpose, logits in _fitted(config, data, made, kind).items():
                reached = scores(task, logits, data.labels[purpose])
                if metric in reached:  # no AUC where the records are of one class
                    found[purpose][KINDS[kind]] = float(reached[metric])
        return found

    whole, alone = figures(everybody), figures(own) if own else None

    def section(purpose: Purpose) -> dict[str, Figures | None]:
        return {"alone": None if alone is None else alone[purpose], "pooled": whole[purpose]}

    validation = section("validation") if whole["validation"] else None
    found = {"metric": metric, **section("test"), "validation": validation}
    return found if whole["test"] else None


def _one_hot(
    values: Mapping[Purpose, Tensor], cardinalities: tuple[int, ...]
) -> dict[Purpose, Tensor]:
    """A party's features, with a column for each category."""
    return {purpose: one_hot(rows, cardinalities) for purpose, rows in values.items()}


def _boosted(
    config: ExperimentConfig, data: VerticalData, parts: Sequence[Mapping[Purpose, Tensor]]
) -> Tensor | None:
    if not all(part["train"].is_floating_point() for part in parts):
        return None
    return _fitted(config, data, parts, "boosting")["test"]


def _fitted(
    config: ExperimentConfig,
    data: VerticalData,
    parts: Sequence[Mapping[Purpose, Tensor]],
    kind: Literal["boosting", "logistic"],
) -> dict[Purpose, Tensor]:
    """Logits of the test records, and of the validation records where there are any."""

    def rows(purpose: Purpose) -> Tensor:
        return torch.cat([part[purpose].flatten(1) for part in parts], 1)

    labels = data.labels["train"]
    head = Fitted(kind, plain(data.task))
    head.fit(rows("train"), labels, of_labels(labels, of_classes(config.data, data), data.weights))
    purposes: tuple[Purpose, ...] = ("test", "validation")
    return {p: head.logits(rows(p)) for p in purposes if p == "test" or len(data.labels[p])}


def _constant(data: VerticalData) -> Tensor:
    """Logits without columns, alike for all records: classes' shares in training, labels' mean."""
    task, labels, rows = plain(data.task), data.labels["train"], len(data.labels["test"])
    if isinstance(task, Classification):
        counts = torch.bincount(labels, minlength=task.outputs).double()
        return (counts / counts.sum()).clamp_min(1e-12).log().float().expand(rows, -1)
    values = labels.double().numpy()
    level = np.quantile(values, task.level) if isinstance(task, Quantile) else values.mean()
    return torch.full((rows, 1), float((level - task.mean) / task.spread))
