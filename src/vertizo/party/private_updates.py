"""Private updates: three ways to move the server model while its labels are protected.

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

import torch
from torch import Tensor

from vertizo.core import arrays
from vertizo.core.randomness import Stream
from vertizo.models.base import Points
from vertizo.models.optimizers import Dense
from vertizo.party.server_model import Evaluation, Optimised, ServerModel, StepCountingUpdate
from vertizo.privacy.clipping import clip
from vertizo.privacy.noise.discrete_gaussian import RandomBytes
from vertizo.privacy.noise.mechanisms import NoiseSource
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import estimate, two_point

ROUNDING = 1e-4
"""Share of the clip kept free for rounding in float64.

A sum of n contributions in parts of at most k is off by ``(k + n/k) n C 2⁻⁵³`` at most, 3·10⁻⁵ C
for 500,000 records formed one by one and far less for others; a norm by ``d 2⁻⁵³`` of itself.
"""


def clipped_gradient(evaluation: Evaluation, clip_norm: float, count: int | None = None) -> Tensor:
    """``Σ_i min(1, C/‖g_i‖) g_i`` over records, float64 [d_0].

    What is added up is what was measured (`vertizo.models.base.RecordGradients`). A record whose
    gradient is not finite counts as 0, at the same cost as any other. Of ``count`` records only the
    first so many count; the others are there to take their time.
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


@dataclass(eq=False)
class Noised(Optimised):
    """An update whose optimiser sees noised sums of clipped numbers only."""

    noise: NoiseSource
    """Clip C_s of a record's gradient or slope and noise σ_s on their sum, apart from replies'."""
    is_private = True

    def _descend(
        self, model: ServerModel, of: Evaluation, step: int, by: float, count: int | None = None
    ) -> None:
        """DP-SGD: along the clipped gradients' noised sum, divided ``by`` a public number."""
        noised = self.noise.onto(step, clipped_gradient(of, self.noise.clip_norm, count))
        gradient = (noised / by).to(model.parameters)
        self.optimizer.step(model.parameters, Dense(gradient))


@dataclass(eq=False)
class PrivateSgd(StepCountingUpdate, Noised):
    """DP-SGD on the batch of each query (Abadi et al. 2016), without amplification."""

    is_shared = True
    batch_size: int
    """Nominal B."""

    def step(self, model: ServerModel, evaluation: Evaluation, *_: Tensor) -> None:
        """One step along the clipped, noised gradient of the batch."""
        self._descend(model, evaluation, self._next_step(), self.batch_size)


@dataclass(eq=False)
class PrivateZerothOrder(StepCountingUpdate, Noised):
    """A two-point step whose slope is clipped for each record, added up and noised."""

    is_shared = True
    batch_size: int
    """Nominal B."""
    directions: Directions
    """The server's own, of the dimension d_0."""
    smoothing: float
    """λ."""
    evaluations = 2

    def step(
        self, model: ServerModel, evaluation: Evaluation, joined: Tensor, labels: Tensor, /
    ) -> None:
        """One step along a random direction, by the noised slope."""
        step, smoothing = self._next_step(), self.smoothing
        direction = self.directions.draw(step)
        offsets, weights = (smoothing, -smoothing), evaluation.weights
        plus, minus = model.losses_along(joined, labels, direction, offsets, weights)
        slopes = clip(two_point(plus, minus, smoothing), self.noise.clip_norm)
        noised = self.noise.sum(step, slopes.unsqueeze(1))
        slope = arrays.scalars(noised)[0] / self.batch_size
        self.optimizer.step(model.parameters, estimate(direction, slope))


@dataclass(frozen=True)
class SeededSampler:
    """Samples for simulations: repeatable, and known to everybody who knows the seed."""

    stream: Stream

    def uniform(self, step: int, records: int) -> Tensor:
        """Independent numbers in [0, 1), [records]."""
        return torch.from_numpy(self.stream.generator(step).random(records))


@dataclass(frozen=True)
class SystemSampler:
    """Samples that nobody can foresee, for real parties; the bits come from ``random_bytes``."""

    random_bytes: RandomBytes = os.urandom

    def uniform(self, step: int, records: int) -> Tensor:
        """Independent multiples of 2⁻⁵³ in [0, 1), [records]."""
        words = torch.frombuffer(bytearray(self.random_bytes(8 * records)), dtype=torch.int64)
        return (words & (2**53 - 1)).to(torch.float64) * 2.0**-53


@dataclass(frozen=True)
class Schedule:
    """When the server trains on secret samples: by the public round counter alone."""

    every: int
    """Rounds between two steps."""
    warm_up: int
    """Steps before the first round."""
    most: int
    """Steps in all."""

    def due(self, round_: int) -> int:
        """How many steps must have been made after ``round_`` rounds."""
        return min(self.most, self.warm_up + round_ // self.every)


@dataclass(eq=False, kw_only=True)
class SecretSgd(Noised):
    """DP-SGD on the embedding table, each record sampled with probability q (Poisson).

    It takes no part in the queries: `step` does nothing, and `between` is called between them, as
    often as the public round counter says. Every step works on ``capacity`` rows, those beyond the
    sample weighing nothing, so that its time does not tell the sample's size. Sums are divided by
    qD; an empty sample still adds noise.
    """

    sampling: float
    """q."""
    capacity: int
    """Most records of a sample (`guarantee.capacity`); δ pays for what is left out beyond it."""
    sampler: SeededSampler | SystemSampler
    """Draws samples that nobody outside the server can foresee."""

    def sample(self, step: int, records: int) -> tuple[Tensor, int]:
        """The rows of a step, int64 [capacity], and how many of them are its sample."""
        chosen = (self.sampler.uniform(step, records) < self.sampling).nonzero().squeeze(1)
        chosen = chosen[: self.capacity]
        rows = torch.zeros(self.capacity, dtype=torch.int64)
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
        weights: Tensor | None = None,
    ) -> None:
        """Step number ``step``, on the first ``count`` of the given rows, of D = ``records``.

        ``weights`` say how much each row's loss counts.
        """
        evaluation = model.evaluate(Points(joined), labels, weights=weights)
        self._descend(model, evaluation, step, self.sampling * records, count)
