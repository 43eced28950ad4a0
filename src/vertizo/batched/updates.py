"""One step of every run's server model, where it can be made for all of them at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vertizo.batched.draws import Step, draw
from vertizo.models.base import Dense, Points
from vertizo.models.layers import Layers, Numbers
from vertizo.server.head import Head
from vertizo.server.losses import RecordLosses, Task
from vertizo.server.updates import FirstOrder, NoUpdate, ServerUpdate, ZerothOrder


@dataclass(frozen=True)
class Evaluated:
    """The servers' models at the batches of one round; items are runs."""

    stacks: Layers
    own: Numbers
    """Parameters, [items, d]."""
    steps: Sequence[Numbers]
    """Inputs and every layer's outputs at the last point, [items, batch, …]."""
    losses: Tensor
    """Per-record, [points, items, batch]."""
    records: RecordLosses
    """The same; its rows are those points, items and records in order."""
    labels: Tensor
    """[items, batch]."""

    @property
    def rows(self) -> Numbers:
        """The joined embeddings at the last point, [items, batch, width]."""
        return self.steps[0]

    def slopes(self, weight: float) -> Tensor:
        """``weight`` times each record's gradient of the outputs, [items, batch, outputs]."""
        items, batch = self.labels.shape
        found = self.records.slopes(self._last, weight)
        return found.view(items, batch, -1)

    def right(self) -> list[int]:
        """How many records of each item are predicted right at the last point."""
        found = self.records.right(self._last).reshape(self.labels.shape)
        counts: list[int] = np.count_nonzero(found, 1).tolist()
        return counts

    @property
    def _last(self) -> slice:
        rows = self.losses.numel()
        return slice(rows - self.labels.numel(), rows)


def evaluated(
    stacks: Layers,
    own: Numbers,
    steps: Sequence[Numbers],
    outputs: Numbers,
    labels: Tensor,
    task: Task,
) -> Evaluated:
    """With the losses of outputs [points, items, batch, outputs]."""
    logits = torch.from_numpy(outputs.reshape(-1, outputs.shape[-1]))
    records = task.losses(logits, labels.view(-1))
    losses = records.values.view(len(outputs), *labels.shape)
    return Evaluated(stacks, own, steps, losses, records, labels)


def step(
    heads: Sequence[Head],
    updates: Sequence[ServerUpdate],
    found: Evaluated,
    going: Collection[int],
) -> None:
    """One step of each item that goes on; the updates are of one kind."""
    if isinstance(updates[0], NoUpdate):
        return
    if isinstance(updates[0], FirstOrder):
        first = [update for update in updates if isinstance(update, FirstOrder)]
        slopes, written = found.slopes(first[0].weight).numpy(), np.empty_like(found.own)
        found.stacks.gradients(found.own, found.steps, slopes, written)
        gradients = torch.from_numpy(written).unbind()
        for place in going:
            first[place].optimizer.step(heads[place].parameters, Dense(gradients[place]))
    elif isinstance(updates[0], ZerothOrder):
        zeroth = [update for update in updates if isinstance(update, ZerothOrder)]
        _zeroth_order(heads, zeroth, found, going)
    else:
        for place in going:
            head, labels = heads[place], found.labels[place]
            rows = torch.from_numpy(found.rows[place])
            updates[place].step(head, head.evaluate(Points(rows), labels), rows, labels)


def _zeroth_order(
    heads: Sequence[Head],
    updates: Sequence[ZerothOrder],
    found: Evaluated,
    going: Collection[int],
) -> None:
    forward, batch_size = updates[0].forward, updates[0].batch_size
    drawn = draw([each.directions for each in updates], [each.steps for each in updates])
    smoothing = np.array([each.smoothing for each in updates])
    lengths = smoothing * drawn.scales
    offsets = lengths[None] if forward else np.stack([lengths, -lengths])
    steps = offsets.astype(np.float32)
    outputs = found.stacks.along(found.own, drawn.numbers, steps, found.rows)
    at = evaluated(found.stacks, found.own, (), outputs, found.labels, heads[0].task).losses
    first = _sums(at[0]) / batch_size
    if forward:
        slopes = (first - _sums(found.losses[-1]) / batch_size) / smoothing
    else:
        slopes = (first - _sums(at[1]) / batch_size) / (2 * smoothing)
    for place in going:
        update, coefficient = updates[place], drawn.factor * float(slopes[place])
        update.steps += 1
        update.optimizer.step(heads[place].parameters, Step([drawn], place, [coefficient]))


def _sums(losses: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Over records, [items]."""
    sums: Numbers = torch.sum(losses, 1).numpy()
    return sums.astype(np.float64)
