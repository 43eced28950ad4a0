"""How the server model moves where its labels are protected: three ways.

Defined in docs/mathematics.md, Server updates.

====================  =================================================================
`PrivateSgd`          DP-SGD on the batch that was just answered, which its client knows
`PrivateZerothOrder`  one clipped, noised slope along a random direction, on that batch
`SecretSgd`           DP-SGD on the embedding table, on samples that nobody else knows,
                      between queries, on a schedule of its own
====================  =================================================================

Each bounds what a record adds, adds up, adds noise to the sum and divides by a public number. What
the model becomes is then a function of releases and of what came before: optimiser state, iterates
and schedules cost nothing more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.models.base import Points
from vertizo.models.optimizers import Dense, Optimizer
from vertizo.party.server_model import Counted, Evaluation, Optimised, ServerModel
from vertizo.privacy.clipping import clip
from vertizo.privacy.discrete_gaussian import RandomBytes
from vertizo.privacy.mechanisms import NoiseSource
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import estimate, outputs, two_point

ROUNDING = 1e-4
"""Share of the clip kept free for rounding in float64.

A sum of n contributions in parts of at most k is off by ``(k + n/k) n C 2⁻⁵³`` at most, 3·10⁻⁵ C
for 500,000 records formed one by one and far less for others; a norm by ``d 2⁻⁵³`` of itself.
"""


def clipped_gradient(evaluation: Evaluation, clip_norm: float, count: int | None = None) -> Tensor:
    """``Σ_i min(1, C/‖g_i‖) g_i`` over records, float64 [d_0].

    What is added up is what was measured (`vertizo.models.base.RecordGradients`). A record whose
    gradient is not finite counts as 0, at the same cost as any other.

    Args:
        evaluation: of the batch, at the point that is differentiated at.
        clip_norm: C.
        count: only the first so many records count; the others are there to take their time.
    """
    bound = clip_norm * (1 - ROUNDING)
    total: Tensor | None = None
    for records, gradients in evaluation.record_gradients():
        norms = gradients.squares().sqrt()
        weights = (bound / norms.clamp(min=bound)).masked_fill_(~norms.isfinite(), 0.0)
        if count is not None:
            weights[max(0, count - records.start) :] = 0.0
        part = gradients.total(weights)
        total = part if total is None else total.add_(part)
    assert total is not None, "a batch has records"
    return total


class PrivateSgd(Counted):
    """DP-SGD on the batch of each query (Abadi et al. 2016), without amplification.

    Args:
        optimizer: makes the steps.
        noise: clip C_s of a record's gradient and noise σ_s on their sum, apart from replies'.
        batch_size: nominal B.
    """

    is_private = True

    def __init__(
        self,
        optimizer: Optimizer,
        noise: NoiseSource,
        batch_size: int,
    ) -> None:
        super().__init__(optimizer)
        self._noise = noise
        self._batch_size = batch_size

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor
    ) -> None:
        """One step along the clipped, noised gradient of the batch."""
        total = clipped_gradient(evaluation, self._noise.clip_norm)
        noised = self._noise.onto(self.steps, total)
        self.steps += 1
        gradient = (noised / self._batch_size).to(model.parameters.dtype)
        self._optimizer.step(model.parameters, Dense(gradient))


class PrivateZerothOrder(Counted):
    """A two-point step whose slope is clipped for each record, added up and noised.

    Args:
        optimizer: makes the steps.
        noise: clip C_s of a record's slope and noise σ_s on their sum, apart from replies'.
        batch_size: nominal B.
        directions: the server's own, of the dimension d_0.
        smoothing: λ.
    """

    is_private = True
    evaluations = 2

    def __init__(
        self,
        optimizer: Optimizer,
        noise: NoiseSource,
        batch_size: int,
        directions: Directions,
        smoothing: float,
    ) -> None:
        super().__init__(optimizer)
        self._noise = noise
        self._batch_size = batch_size
        self._directions = directions
        self._smoothing = smoothing

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor
    ) -> None:
        """One step along a random direction, as far as the noised slope says."""
        direction = self._directions.draw(self.steps)
        smoothing = self._smoothing
        plus, minus = (
            model.task.losses(logits, labels).values
            for logits in outputs(model.model, joined, direction, (smoothing, -smoothing))
        )
        slopes = clip(two_point(plus, minus, smoothing), self._noise.clip_norm)
        noised = self._noise.sum(self.steps, slopes.unsqueeze(1))
        self.steps += 1
        slope = float(noised) / self._batch_size
        self._optimizer.step(model.parameters, estimate(direction, slope))


class Sampler(Protocol):
    """Draws samples that nobody outside the server can foresee."""

    def uniform(self, step: int, records: int) -> Tensor:
        """Independent numbers in [0, 1), [records]."""


class SeededSampler:
    """Samples for simulations: repeatable, and a secret from nobody who knows the seed."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def uniform(self, step: int, records: int) -> Tensor:
        """Independent numbers in [0, 1), [records]."""
        return torch.from_numpy(self._stream.generator(step).random(records))


class SystemSampler:
    """Samples that nobody can foresee, for real parties.

    Args:
        random_bytes: where the bits come from.
    """

    def __init__(self, random_bytes: RandomBytes = os.urandom) -> None:
        self._random_bytes = random_bytes

    def uniform(self, step: int, records: int) -> Tensor:
        """Independent multiples of 2⁻⁵³ in [0, 1), [records]."""
        words = torch.frombuffer(bytearray(self._random_bytes(8 * records)), dtype=torch.int64)
        return (words & (2**53 - 1)).to(torch.float64) * 2.0**-53


@dataclass(frozen=True)
class Schedule:
    """When the server trains on secret samples: by the public round counter alone.

    Args:
        every: rounds between two steps.
        warm_up: steps before the first round.
        most: steps in all.
    """

    every: int
    warm_up: int
    most: int

    def due(self, round_: int) -> int:
        """Steps to have been made once ``round_`` rounds are over."""
        return min(self.most, self.warm_up + round_ // self.every)


class SecretSgd(Optimised):
    """DP-SGD on the embedding table, each record sampled with probability q (Poisson).

    It takes no part in the queries: `step` does nothing, and `between` is called between them, as
    often as the public round counter says. Every step works on ``capacity`` rows, those beyond the
    sample weighing nothing, so that its time does not tell the sample's size. Sums are divided by
    qD; an empty sample still adds noise.

    Args:
        optimizer: makes the steps.
        noise: clip C_s of a record's gradient and noise σ_s on their sum, apart from replies'.
        sampling: q.
        capacity: most records of a sample (`guarantee.capacity`); what exceeds it is left out,
            which δ pays for.
        sampler: draws the samples.
    """

    is_private = True

    def __init__(
        self,
        optimizer: Optimizer,
        noise: NoiseSource,
        *,
        sampling: float,
        capacity: int,
        sampler: Sampler,
    ) -> None:
        super().__init__(optimizer)
        self._noise = noise
        self._sampling = sampling
        self._capacity = capacity
        self._sampler = sampler

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor
    ) -> None:
        """Nothing: queries do not train this server."""

    def sample(self, step: int, records: int) -> tuple[Tensor, int]:
        """The rows of a step, int64 [capacity], and how many of them are its sample."""
        chosen = (self._sampler.uniform(step, records) < self._sampling).nonzero().squeeze(1)
        chosen = chosen[: self._capacity]
        rows = torch.zeros(self._capacity, dtype=torch.int64)
        rows[: chosen.numel()] = chosen
        return rows, chosen.numel()

    def between(
        self,
        step: int,
        model: ServerModel,
        joined: Tensor,
        labels: Tensor,
        count: int,
        records: int,
    ) -> None:
        """Step number ``step``, on the first ``count`` of the given rows."""
        evaluation = model.evaluate(Points(joined), labels)
        total = clipped_gradient(evaluation, self._noise.clip_norm, count)
        noised = self._noise.onto(step, total)
        gradient = (noised / (self._sampling * records)).to(model.parameters.dtype)
        self._optimizer.step(model.parameters, Dense(gradient))
