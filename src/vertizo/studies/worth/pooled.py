"""What the label holder predicts without a federation: alone, and with all columns in one table.

By gradient boosting with the settings of the raw head (`vertizo.party.final_head`), on the same
training records. Nobody but the label holder computes, so that nothing of a label leaves it; what
needs all columns in one place is there in a simulation only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.data.vertical import VerticalData
from vertizo.data.weights import of_classes, of_labels
from vertizo.models.losses import Classification, Quantile, Regression, Task
from vertizo.party.final_head import Fitted
from vertizo.protocol.messages import Purpose


def plain(task: Task) -> Classification | Regression:
    """The task as test records are scored: classes without weights."""
    if isinstance(task, Classification):
        return Classification(task.outputs, task.positive)
    assert isinstance(task, Regression), "a study is about one label"
    return task


def alone(config: ExperimentConfig, data: VerticalData) -> Tensor | None:
    """Logits of the test records, [rows, outputs], from the label holder's own columns.

    What does not depend on the record where it has none; None where they are tokens of texts.
    """
    if data.own is None:
        return _constant(data)
    return _boosted(config, data, [data.own.values])


def pooled(config: ExperimentConfig, data: VerticalData) -> Tensor | None:
    """Likewise from everybody's columns."""
    own = [] if data.own is None else [data.own.values]
    return _boosted(config, data, [*data.features, *own])


def _boosted(
    config: ExperimentConfig, data: VerticalData, parts: Sequence[Mapping[Purpose, Tensor]]
) -> Tensor | None:
    if not all(part["train"].is_floating_point() for part in parts):
        return None
    train, test = (torch.cat([part[p].flatten(1) for part in parts], 1) for p in ("train", "test"))
    labels = data.labels["train"]
    head = Fitted("boosting", plain(data.task))
    head.fit(train, labels, of_labels(labels, of_classes(config.data, data), data.weights))
    return head.logits(test)


def _constant(data: VerticalData) -> Tensor:
    """The same for every record: the classes' shares in training, or the labels' mean."""
    task, labels, rows = plain(data.task), data.labels["train"], len(data.labels["test"])
    if isinstance(task, Classification):
        counts = torch.bincount(labels, minlength=task.outputs).double()
        return (counts / counts.sum()).clamp_min(1e-12).log().float().expand(rows, -1)
    values = labels.double().numpy()
    level = np.quantile(values, task.level) if isinstance(task, Quantile) else values.mean()
    return torch.full((rows, 1), float((level - task.mean) / task.spread))
